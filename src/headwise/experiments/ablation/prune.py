"""Removing heads from a model's weights, or zeroing them where its class cannot have fewer, and
what that does to score and speed."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.core.checks import at_least, check_types, one_of
from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name, parse_head
from headwise.experiments.ablation.pruning_eval import (
    PruningEvaluation,
    ScoreFunction,
    language_ground,
    seconds_of,
    timed_text,
)
from headwise.experiments.ablation.sets import Heads, checked_heads
from headwise.experiments.finetuning.classifier import HEAD_CONFIG, HEAD_FILE, save_folder
from headwise.models import HeadModel, loading
from headwise.models.forward_call import only_in_this_thread
from headwise.models.sites import Sites
from headwise.run.job import Job
from headwise.text import Corpus
from headwise.text.encode import Batch

MODES = ("auto", "remove", "zero")
TOLERANCE = 1e-5
COUNTS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
GROUPS = ("num_key_value_heads", "num_kv_heads")


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What became of a model: `table` has parameters, score (where one was asked for) and seconds
    of a run before and after; `difference` is the largest difference of its outputs to those of the
    model with the same heads disabled (zero), as a share of the largest output where that is above
    1 (float32 rounds by shares); `absolute` is the same difference as it is. `mode` is what was
    done, `note` why where that was not plain, `about` what score and seconds were measured on."""

    folder: Path
    mode: str
    heads: tuple[tuple[int, int], ...]
    difference: float
    absolute: float
    table: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True)
class PruneOptions:
    """How heads are removed, and what is looked at before and after.

    Parameters
    ----------
    mode : str, default "auto"
        `remove`: the weights get smaller, and the folder loads in plain transformers; only for
        classes whose config names the size of a head apart from their number (Llama, Mistral, Qwen,
        Gemma and their kin; not BERT or GPT-2). Such a class has one number of heads for all layers
        (and groups): where a layer is to lose more than another, the others of its heads stay as
        zeros. `zero`: the same size, the heads' share of the output projection zero; for every
        class. `auto`: `remove` where that can be, else `zero`, and `note` says why.
    batches : sequence of Batch, optional
        What outputs are compared and speed is measured on; by default some of those that the loss
        is measured on, or a few made-up inputs where there is no loss.
    score : callable, optional
        Called with a model's folder, before and after. By default the language-model loss on
        `corpus`, where the model has a language-model head.
    corpus : Corpus, optional
        The text of that loss; the built-in one by default.
    limit : int, default 200
        How many examples of it.
    seed : int, default 0
        For the examples and the tokens that are masked.
    device : str or torch.device, optional
        Where to run; a GPU where there is one.
    overwrite : bool, default False
        Replace what is there.
    """

    mode: str = "auto"
    batches: Sequence[Batch] = ()
    score: ScoreFunction | None = None
    corpus: Corpus | None = None
    limit: int = 200
    seed: int = 0
    device: str | torch.device | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        one_of("mode", self.mode, MODES)
        at_least("limit", self.limit, 1)

    def ground(self, model: HeadModel) -> PruningEvaluation:
        """What the model is compared with itself on."""
        if self.score is not None:
            return PruningEvaluation(self.batches, self.score, "")
        found = language_ground(model, self.corpus, self.limit, self.seed, self.device)
        return replace(found, batches=self.batches or found.batches)


def prune(
    folder: str | Path | None,
    heads: Heads,
    out: str | Path,
    options: PruneOptions = PruneOptions(),  # noqa: B008  (frozen)
) -> PruneResult:
    """Write a model without some of its heads as an ordinary folder.

    The written model is opened again and must give what the model gives with the same heads
    disabled, to 1e-5 (of the largest output where that is above 1); otherwise nothing stays
    written.

    Parameters
    ----------
    folder : str or Path, optional
        A model's folder or hub name; None for the demo model.
    heads : list of (layer, head)
        The heads to remove.
    out : str or Path
        Where the model goes.
    options : PruneOptions, optional
        How.
    """
    source = loading.model_path(folder)
    sources = [Path(source)] if Path(source).exists() else []
    with Job.for_folder(Path(out), overwrite=options.overwrite, sources=sources) as job:
        result = _prune(job, source, heads, options)
        job.finish()
    return result


def _prune(job: Job, source: str, heads: Heads, options: PruneOptions) -> PruneResult:
    mode, device, note = options.mode, options.device, ""
    target = job.output.target
    model = HeadModel.open(source, device=device, dtype=torch.float32)
    chosen = checked_heads(heads, model.layers, model.heads)
    if not chosen:
        raise ParameterError(
            "No head is named to be removed; name heads, or a rule that finds some."
        )
    job.begin({"model": model.identity(), "pruned": chosen, "mode": mode})
    ground = options.ground(model)
    samples = list(ground.batches) or [_sample(model)]
    wanted = [_output(model, batch, dict.fromkeys(chosen, "zero")) for batch in samples]
    before = {"parameters": float(model.module.num_parameters())}
    layout = {layer: list(range(model.heads)) for layer in range(model.layers)}
    if mode != "zero":
        try:
            smaller, layout = _removed(model, chosen)
            left, asked = len(layout[0]) * model.layers, model.layers * model.heads - len(chosen)
            note = f"{left - asked} heads of smaller layers stay as zeros." if left > asked else ""
            mode = "remove"
        except ModelError as error:
            if mode == "remove":
                raise
            mode, note = "zero", f"Zeroed, at the same size: {str(error).split('; ')[0]}."
    if mode == "zero":
        smaller = _zeroed(model, chosen)
    model.close()
    with job.new_folder() as beside:
        save_folder(smaller, model.tokenizer, beside)
        _copy_classifier(Path(source), beside, chosen, layout, mode)
        again = HeadModel.open(beside, device=device, dtype=torch.float32)
        given = [_output(again, batch, None) for batch in samples]
        apart = [float((a - b).abs().max()) for a, b in zip(wanted, given, strict=True)]
        difference = max(
            value / max(1.0, float(a.abs().max())) for value, a in zip(apart, wanted, strict=True)
        )
        if not difference <= TOLERANCE:
            raise ModelError(
                f"{type(smaller).__name__} without these heads differs from itself with them disabled by "
                f"{difference:.1e}; give --zero to zero them instead."
            )
    after = {"parameters": float(again.module.num_parameters())}
    with HeadModel.open(source, device=device, dtype=torch.float32) as whole, again:
        before["seconds"], after["seconds"] = seconds_of(whole, again, samples)
    if ground.score is not None:
        before |= ground.score(Path(source))
        after |= ground.score(target)
    about = "; ".join(filter(None, [ground.about, timed_text(samples)]))
    table = {"before": before, "after": after}
    return PruneResult(target, mode, tuple(chosen), difference, max(apart), table, note, about)


# --- the two ways ---------------------------------------------------------------------------------


def _zeroed(model: HeadModel, heads: Heads) -> PreTrainedModel:
    """A copy whose output projections do not read the heads."""
    found = output_projections(model)
    with torch.no_grad():
        for layer, head in heads:
            projection, heads_first = found[layer]
            columns = slice(head * model.d_head, (head + 1) * model.d_head)
            weight = projection.get_parameter("weight")
            (weight if heads_first else weight.T)[columns] = 0
    return model.module


def output_projections(model: HeadModel) -> dict[int, tuple[nn.Module, bool]]:
    """The module that reads the concatenated head outputs of each layer, found by what enters it in
    a run, and whether its weight is laid out input first (GPT-2)."""
    batch = _sample(model)
    trace = model.trace(batch, {"outputs"})
    assert trace.outputs is not None
    outputs = (
        trace.outputs.transpose(0, 1).transpose(-3, -2).flatten(-2)
    )  # layer, example, token, head * d_head
    inputs: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].numel() == outputs[0].numel():
            inputs.append((module, args[0].reshape(outputs[0].shape)))

    linear = [
        m
        for m in model.module.modules()
        if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"
    ]
    with ExitStack() as stack:
        for module in linear:
            stack.callback(module.register_forward_pre_hook(only_in_this_thread(keep)).remove)
        model.forward(batch)
    found: dict[int, tuple[nn.Module, bool]] = {}
    real = batch.attention_mask
    for layer in range(model.layers):
        for module, entering in inputs:
            if torch.allclose(entering[real], outputs[layer][real], atol=1e-5, rtol=1e-4):
                found[layer] = (module, not isinstance(module, nn.Linear))
                break
        else:
            raise ModelError(
                f"The output projection of layer {layer} of {model.name} cannot be found, so heads cannot be taken out "
                "of its weights."
            )
    if len({id(module) for module, _ in found.values()}) < model.layers:
        raise ModelError(
            f"The layers of {model.name} share their weights, so a head of one layer cannot be taken out of them."
        )
    return found


def _layout(model: HeadModel, heads: Heads) -> dict[int, list[int]]:
    """The heads each layer of the smaller model has: those that stay, and as many others, to be
    zeroed, as make all layers and all key/value groups alike."""
    gone = set(heads)
    members = {
        g: [h for h in range(model.heads) if model.kv_groups[h] == g]
        for g in sorted(set(model.kv_groups))
    }
    stay = {
        layer: {group: [h for h in own if (layer, h) not in gone] for group, own in members.items()}
        for layer in range(model.layers)
    }
    count = max(1, *(sum(bool(own) for own in groups.values()) for groups in stay.values()))
    each = max(1, *(len(own) for groups in stay.values() for own in groups.values()))
    found = {}
    for layer, groups in stay.items():
        used = sorted(sorted(groups, key=lambda group: (not groups[group], group))[:count])
        found[layer] = sorted(
            head
            for group in used
            for head in sorted(members[group], key=lambda h: ((layer, h) in gone, h))[:each]
        )
    return found


def _removed(model: HeadModel, heads: Heads) -> tuple[PreTrainedModel, dict[int, list[int]]]:
    """A smaller model of the same class with the weights of the heads that stay, and which these
    are by layer."""
    name = type(model.module).__name__
    kept = _layout(model, heads)
    groups = {layer: sorted({model.kv_groups[h] for h in stay}) for layer, stay in kept.items()}
    instead = "give --zero to write the model with these heads zeroed"
    refusal = f"{name} takes heads of size hidden/number only, so it cannot have fewer of them; {instead}."
    config = copy.deepcopy(model.config)
    config._attn_implementation_internal = None
    text = config.get_text_config()
    number = next((key for key in COUNTS if getattr(text, key, None) == model.heads), None)
    if number is None or not hasattr(
        text, "head_dim"
    ):  # said first: no other choice of heads would help
        raise ModelError(refusal)
    left = len(kept[0])
    if left == model.heads:
        raise ModelError(
            f"{name} has one number of heads for all layers and key/value groups, and some layer keeps one in each "
            f"place; remove some from every layer, or {instead}."
        )
    setattr(text, number, left)
    for key in GROUPS:
        if hasattr(text, key):
            setattr(text, key, len(groups[0]))
    text.head_dim = model.d_head
    try:
        if hasattr(config, "validate"):
            config.validate()
        smaller: PreTrainedModel = type(model.module)(config).to(
            next(model.module.parameters()).dtype
        )
    except Exception as error:  # configs and classes check numbers of heads in many ways
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()).rstrip(".")
        raise ModelError(
            f"{name} does not take {left} heads a layer ({reason[:200]}); remove another number, or {instead}."
        ) from error
    _fill(smaller, model, kept, groups, refusal)
    smaller.to(model.device).eval()
    idle = [
        (layer, stay.index(head))
        for layer, head in heads
        for stay in (kept[layer],)
        if head in stay
    ]
    if idle:
        with HeadModel.open(smaller) as opened:
            _zeroed(opened, idle)
    return smaller, kept


def _fill(
    smaller: PreTrainedModel,
    model: HeadModel,
    kept: dict[int, list[int]],
    groups: dict[int, list[int]],
    refusal: str,
) -> None:
    """Copy weights; those that shrank lose the blocks of the removed heads along the dimension that
    shrank."""
    layer_of = _layers_by_prefix(model.sites)
    own = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
    shrank = 0
    with torch.no_grad():
        for key, value in (*smaller.named_parameters(), *smaller.named_buffers()):
            old = own[key]
            if old.shape == value.shape:
                value.copy_(old)
                continue
            layer = next(
                (number for prefix, number in layer_of.items() if key.startswith(prefix + ".")),
                None,
            )
            if layer is None or old.ndim != value.ndim:
                raise ModelError(refusal)
            shrank += 1
            stay = ((model.heads, kept[layer]), (model.kv_heads, groups[layer]))
            for dim, after in enumerate(value.shape):
                places = _staying(old.shape[dim], after, model.d_head, stay)
                if places is None:
                    raise ModelError(refusal)
                old = old.index_select(dim, places.to(old.device))
            value.copy_(old)
    if shrank < 2 * model.layers:
        raise ModelError(refusal)


def _staying(
    before: int, after: int, d_head: int, stay: Sequence[tuple[int, list[int]]]
) -> Tensor | None:
    """Which places of a dimension are those of the heads (or key/value groups) that stay; None
    where it has no such blocks."""
    if before == after:
        return torch.arange(before)
    for total, own in stay:
        for size in (d_head, 1):
            if before == total * size and after == len(own) * size:
                return torch.arange(before).view(total, size)[own].flatten()
    return None


def _layers_by_prefix(sites: Sites) -> dict[str, int]:
    found = {}
    for site in sites.by_module.values():
        if len(site.layers) != 1:
            raise ModelError(
                "The layers of this model share their weights, so a head of one layer cannot be taken out of them."
            )
        found[site.path] = site.layers[0]
    return found


# --- helpers --------------------------------------------------------------------------------------


def _sample(model: HeadModel) -> Batch:
    """Two made-up inputs of different length."""
    vocabulary = getattr(model.module.get_input_embeddings(), "num_embeddings", 100)
    rows = []
    for index, length in enumerate((9, 6)):
        ids = (np.arange(length) * 7 + 3 + index) % max(vocabulary - 1, 1)
        rows.append(np.where(ids == model.pad_id, (ids + 1) % vocabulary, ids))
    return model.batch(rows)


def _output(model: HeadModel, batch: Batch, interventions: Any) -> Tensor:
    has_head = model.lm_kind is not None or (
        hasattr(model.module, "num_labels")
        and type(model.module).__name__.endswith("ForSequenceClassification")
    )
    output = model.forward(batch, interventions=interventions, logits=has_head)
    found: Tensor = (
        output.logits if has_head and getattr(output, "logits", None) is not None else output[0]
    )
    found = found.float().cpu()
    return found[batch.attention_mask.cpu()] if found.ndim == 3 else found


def _copy_classifier(
    source: Path, target: Path, heads: Heads, layout: dict[int, list[int]], mode: str
) -> None:
    """The classifier beside a model that was fine-tuned on chosen heads: copied, the heads
    renumbered."""
    if not (source / HEAD_CONFIG).is_file():
        return
    facts = json.loads((source / HEAD_CONFIG).read_text())
    if facts.get("heads") and mode == "remove":
        renamed = []
        for name in facts["heads"]:
            layer, head = parse_head(name)
            if (layer, head) in heads:
                raise ParameterError(
                    f"The classifier of '{source}' reads the head {name}, so it cannot be removed; give --zero to zero "
                    "it."
                )
            renamed.append(head_name(layer, layout[layer].index(head)))
        facts["heads"] = renamed
    (target / HEAD_CONFIG).write_text(json.dumps(facts, indent=1) + "\n")
    shutil.copy(source / HEAD_FILE, target / HEAD_FILE)
