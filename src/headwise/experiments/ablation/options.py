"""The options of `ablate` and `prune`; this module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.core.errors import ParameterError
from headwise.core.options import option
from headwise.models.options import ModelOptions

AUTO = "auto"
ABLATION_METHODS = ("uniform", "zero", "mean", "corpus_mean", "resample")
PRUNE_MODES = ("auto", "remove", "zero")
# The names of `headwise.stats.corrections`, which imports scipy.
CORRECTION_NAMES = ("holm", "benjamini_hochberg", "none")
MAX_LENGTH = 128
Heads = list[tuple[int, int]]


def parse_sets(items: Sequence[str]) -> dict[str, str]:
    """Return sets of heads by name, from `NAME=RULE`, or from a rule that is then its own name.

    >>> parse_sets(["sinks=roles:delimiter", "frames:top5"])
    {'sinks': 'roles:delimiter', 'frames:top5': 'frames:top5'}
    """
    sets: dict[str, str] = {}
    for item in items:
        name, equals, rule = item.partition("=")
        # `probing.accuracy=MRPC:top12` is a rule with a label, not a name and a rule.
        has_name = bool(equals) and ":" not in name and "." not in name
        if has_name:
            name = name.strip()
        else:
            name = item
            rule = item
        if not name or name in sets:
            raise ParameterError(f"The set '{item}' needs a name of its own, as NAME=RULE.")
        sets[name] = rule
    return sets


@dataclass(frozen=True)
class EvaluationOptions(ModelOptions):
    """What a model is scored on: the dev set of a task where one is named, else a text."""

    # The identity of a job holds a fingerprint of the examples that these five options select, and
    # the length they are cut to.
    task: Any = option(
        None,
        cli_type=str | None,
        in_identity=False,
        help="MRPC, STS-B, SST-2, RTE, CoLA, QNLI, QQP, MNLI, or a name for your own files.",
    )
    data: Path | str | None = option(
        None,
        cli_type=Path | None,
        in_identity=False,
        help="The task's folder, or GLUE's folder with the task's in it.",
    )
    dev: str | Path | None = option(
        None,
        cli_type=str | None,
        in_identity=False,
        help="The file that is scored, instead of the folder's.",
    )
    limit: int | None = option(
        None,
        min=1,
        in_identity=False,
        help="Use at most this many examples, drawn at random by the seed.",
    )
    max_length: int = option(
        MAX_LENGTH,
        min=2,
        in_identity=False,
        help="Cut inputs to this many tokens (special ones included).",
    )
    seed: int = option(0, min=0, help="For everything random.")

    @property
    def names_task(self) -> bool:
        """Whether a task is named, by its name or by its files."""
        return self.task is not None or bool(self.data or self.dev)


@dataclass(frozen=True)
class AblationOptions(EvaluationOptions):
    """The options of `ablate`: which heads are disabled, how, and what is measured beside it."""

    how: str = option(
        AUTO,
        choices=(AUTO, *ABLATION_METHODS),
        help="uniform (uniform attention, the paper's), zero (zero ablation), mean (mean ablation "
        "over the input), corpus_mean (over all tokens of all inputs), resample (resample "
        "ablation: the output on another input); auto: zero for causal models, uniform for others.",
    )
    heads: Any = option(
        "all",
        cli_type=str,
        help="Single heads to disable: all, none, a list (L7H9,L8H1) or a rule.",
    )
    layers: bool = option(True, flag="layers/no-layers", help="Disable whole layers too.")
    sets: Mapping[str, Any] = option(
        default_factory=dict,
        flag="set",
        cli_type=list[str] | None,
        parse=parse_sets,
        help="Heads disabled together, NAME=RULE: a list, L3, roles:delimiter, frames:top5; "
        "repeatable.",
    )
    importance: bool = option(
        True,
        flag="importance/no-importance",
        help="First-order importance too (Michel et al. 2019).",
    )
    sinks: bool = option(
        True,
        command_line=False,
        help="The share of each head's attention that goes to the first token too.",
    )
    correction: str = option(
        "holm",
        choices=CORRECTION_NAMES,
        help="holm, benjamini_hochberg or none, over heads (and layers, and sets, apart).",
    )
    # Part of the identity although it is for speed: reused activations may round differently.
    share: bool = option(
        True,
        command_line=False,
        help="Reuse the activations of the layers below a disabled head instead of running these "
        "layers again, where the model allows it.",
    )


@dataclass(frozen=True)
class PruneOptions(EvaluationOptions):
    """The options of `prune`: how heads are removed, and what is measured before and after.

    Without a task or a text the score is the language-modelling loss on the built-in corpus, where
    the model has a language-modelling head."""

    # The weights that are written are float32, on one device.
    dtype: Any = option(
        None,
        command_line=False,
        in_identity=False,
        help="Precision in which a text is scored.",
    )
    device_map: Any = option(
        None,
        command_line=False,
        in_identity=False,
        help="For scoring a text: the devices of a large model.",
    )
    mode: str = option(
        "auto",
        choices=PRUNE_MODES,
        command_line=False,
        help="remove: the weights get smaller, and the folder loads in plain transformers; only "
        "for classes whose config names the size of a head apart from their number (Llama, "
        "Mistral, Qwen, Gemma and their kin; not BERT or GPT-2). Such a class has one number of "
        "heads for all layers (and groups): where a layer is to lose more than another, the "
        "others of its heads stay as zeros. zero: the same size, the heads' share of the output "
        "projection zero; for every class. auto: remove where that is possible, else zero, and "
        "the note says why.",
    )
    # Rules are recorded as the heads they select; scores and speed are measured anew in every call.
    atlas: Any = option(
        None,
        command_line=False,
        in_identity=False,
        help="Results of the same model by group (an atlas), where rules are looked up.",
    )
    score: Any = option(
        None,
        command_line=False,
        in_identity=False,
        help="A function that takes a model's folder and returns scores by name, called before "
        "and after; instead of a task or a text.",
    )
    batches: Sequence[Any] = option(
        (),
        command_line=False,
        in_identity=False,
        help="The inputs on which outputs are compared and speed is measured; default: some of "
        "those that are scored, or a few synthetic ones.",
    )
