"""Remove heads from a model's weights, or zero them where its class cannot have fewer, and measure
score and speed before and after."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.core.errors import ModelError, ParameterError
from headwise.core.labels import head_name, parse_head
from headwise.core.options import recorded_options, takes_options
from headwise.experiments.ablation.gates import (
    GateCost,
    GateOptions,
    GateResult,
    estimate_gate_cost,
    learn_gates,
)
from headwise.experiments.ablation.options import Heads, PruneOptions
from headwise.experiments.ablation.pruning_eval import (
    describe_timing,
    pruning_evaluation,
    time_both,
)
from headwise.experiments.ablation.scored_models import open_scored_model
from headwise.experiments.ablation.sets import checked_heads, pick_heads
from headwise.experiments.finetuning.classifier import HEAD_CONFIG, HEAD_FILE, save_folder
from headwise.models import HeadModel, loading
from headwise.models.forward_call import only_in_this_thread
from headwise.models.sites import Sites
from headwise.run.job import Job, Progress, no_progress
from headwise.text import Corpus, Spec
from headwise.text.encode import Batch

TOLERANCE = 1e-5
GATES = "gates:"  # a rule: the heads that learned gates remove
# What configs call the number of heads and of key/value groups.
HEAD_COUNT_NAMES = ("num_attention_heads", "n_head", "n_heads", "num_heads")
GROUP_COUNT_NAMES = ("num_key_value_heads", "num_kv_heads")
ZERO_INSTEAD = "zero these heads instead (mode zero)"


@dataclass(frozen=True, slots=True)
class PruneResult:
    """A model without some of its heads.

    Attributes
    ----------
    folder : Path
        Where it was written.
    mode : str
        `remove` or `zero`, whichever was done.
    heads : tuple of (layer, head)
        The heads that are gone.
    difference : float
        The largest difference of its outputs to those of the model with the same heads
        zero-ablated, as a share of the largest output where that is above 1 (float32 rounds by
        shares).
    absolute : float
        The same difference in the units of the output.
    table : dict
        Parameters, score (where there is one) and seconds of a pass, `before` and `after`.
    note : str
        Why the mode is what it is, where that needs saying.
    about : str
        What score and seconds were measured on.
    gates : GateResult, optional
        Where the heads were chosen by learned gates: how good the choice is.
    """

    folder: Path
    mode: str
    heads: tuple[tuple[int, int], ...]
    difference: float
    absolute: float
    table: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""
    about: str = ""
    gates: GateResult | None = None


@takes_options(PruneOptions)
def prune(
    model: str | Path | None,
    heads: str | Heads,
    out: str | Path,
    *,
    corpus: Corpus | Spec | str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: PruneOptions,
) -> PruneResult:
    """Write a model without some of its heads as an ordinary folder.

    The written model is opened again and must give what the model gives with the same heads
    zero-ablated, to 1e-5 (of the largest output where that is above 1); otherwise nothing stays
    written.

    Parameters
    ----------
    model : str or Path, optional
        A model's folder or hub name; None for the built-in model.
    heads : str or list of (layer, head)
        A list (`L7H9,L8H1`), a layer (`L3`), a rule on the option `atlas` (`ablation.harm:bottom10`), or
        `gates:20`: the heads that learned gates remove.
    out : str or Path
        The folder of the smaller model.
    corpus : Corpus, Spec, str or Path, optional
        The text whose loss is measured; default: built-in corpus. A fine-tuned model is scored on
        the dev set of its `task` instead.
    overwrite : bool, default False
        Replace an existing model there.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : PruneOptions
        Each option is also a keyword.
    """
    source = Path(loading.model_path(model))
    sources = [source] if source.exists() else []
    with Job.for_folder(Path(out), overwrite=overwrite, sources=sources, progress=progress) as job:
        return prune_in_job(job, model, heads, corpus, options)


def prune_in_job(
    job: Job,
    model: str | Path | None,
    heads: str | Heads,
    corpus: Corpus | Spec | str | Path | None,
    options: PruneOptions,
) -> PruneResult:
    """Choose heads and remove them within a job whose output is a folder; see `prune`."""
    source = loading.model_path(model)
    gates: GateResult | None = None
    if isinstance(heads, str) and heads.startswith(GATES):
        gates = _learn_gates(job, source, heads, corpus, options)
        heads = gates.heads
    opened = HeadModel.open(source, device=options.device, dtype=torch.float32)
    if isinstance(heads, str):
        chosen = pick_heads(heads, opened.layers, opened.heads, options.atlas)
    else:
        chosen = checked_heads(heads, opened.layers, opened.heads)
    if not chosen:
        raise ParameterError(
            "No head is named to be removed; name heads, or a rule that finds some.",
            option="heads",
        )
    evaluation = pruning_evaluation(opened, source, corpus, options)
    job.begin({"model": opened.identity(), "removed": chosen, **recorded_options(options)})
    samples = list(evaluation.batches) or [_synthetic_batch(opened)]
    expected = [_output(opened, batch, dict.fromkeys(chosen, "zero")) for batch in samples]
    before = {"parameters": float(opened.module.num_parameters())}
    pruned, layout, mode, note = _prune_weights(opened, chosen, options.mode)
    opened.close()

    with job.new_folder() as folder:
        save_folder(pruned, opened.tokenizer, folder)
        _copy_classifier(Path(source), folder, chosen, layout, mode)
        written = HeadModel.open(folder, device=options.device, dtype=torch.float32)
        outputs = [_output(written, batch, None) for batch in samples]
        absolute = 0.0
        difference = 0.0
        for before_writing, after_writing in zip(expected, outputs, strict=True):
            largest_change = float((before_writing - after_writing).abs().max())
            scale = max(1.0, float(before_writing.abs().max()))
            absolute = max(absolute, largest_change)
            difference = max(difference, largest_change / scale)
        if not difference <= TOLERANCE:
            raise ModelError(
                f"{type(pruned).__name__} without these heads differs from itself with them "
                f"disabled by {difference:.1e}; {ZERO_INSTEAD}.",
                option="zero",
            )
    target = job.output.target
    after = {"parameters": float(written.module.num_parameters())}
    with HeadModel.open(source, device=options.device, dtype=torch.float32) as intact, written:
        before["seconds"], after["seconds"] = time_both(intact, written, samples)
    if evaluation.score is not None:
        before |= evaluation.score(Path(source))
        after |= evaluation.score(target)
    job.finish()
    about = describe_timing(samples)
    if evaluation.about:
        about = f"{evaluation.about}; {about}"
    return PruneResult(
        folder=target,
        mode=mode,
        heads=tuple(chosen),
        difference=difference,
        absolute=absolute,
        table={"before": before, "after": after},
        note=note,
        about=about,
        gates=gates,
    )


def _learn_gates(
    job: Job,
    source: str,
    rule: str,
    corpus: Corpus | Spec | str | Path | None,
    options: PruneOptions,
) -> GateResult:
    """Return the heads that learned gates remove, after saying what it will cost."""
    count = rule.removeprefix(GATES)
    if not count.isdecimal():
        raise ParameterError(
            f"'{rule}': how many heads the gates remove must be a number, as in gates:20.",
            option="heads",
        )
    if corpus is None and not options.names_task:
        raise ParameterError(
            f"'{rule}': gates are learned on data; name a text (`corpus`), or a task and its files.",
            option="corpus",
        )
    scored = open_scored_model(source, corpus, options)
    gate_options = GateOptions(int(count), seed=options.seed)
    job.note(_describe_cost(estimate_gate_cost(scored, gate_options)))
    return learn_gates(scored, gate_options, report=job.progress)


def _describe_cost(cost: GateCost) -> str:
    minutes = cost.seconds / 60
    duration = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{cost.seconds:.0f} seconds"
    return (
        f"Learning gates: {cost.steps} steps on {cost.tokens_per_step:,} tokens each, then "
        f"{cost.passes} passes over {cost.tokens_per_pass:,} tokens; about {duration}."
    )


def _prune_weights(
    model: HeadModel, heads: Heads, mode: str
) -> tuple[PreTrainedModel, dict[int, list[int]], str, str]:
    """Return the model without the heads, the heads that each layer has now, the mode that was
    used, and a note on it."""
    layout = {layer: list(range(model.heads)) for layer in range(model.layers)}
    if mode == "zero":
        return _zero_heads(model, heads), layout, mode, ""
    try:
        smaller, layout = _remove_heads(model, heads)
    except ModelError as error:
        if mode == "remove":
            raise
        reason = str(error).split("; ")[0]
        note = f"Zeroed, at the same size: {reason}."
        return _zero_heads(model, heads), layout, "zero", note
    n_present = len(layout[0]) * model.layers
    n_remaining = model.layers * model.heads - len(heads)
    note = ""
    if n_present > n_remaining:
        note = f"{n_present - n_remaining} heads of smaller layers stay as zeros."
    return smaller, layout, "remove", note


# --- zeroing and removing -------------------------------------------------------------------------


def _zero_heads(model: HeadModel, heads: Heads) -> PreTrainedModel:
    """Return the module with output projections that do not read the heads."""
    projections = output_projections(model)
    with torch.no_grad():
        for layer, head in heads:
            projection, input_first = projections[layer]
            inputs_of_head = slice(head * model.d_head, (head + 1) * model.d_head)
            weight: Tensor = projection.get_parameter("weight")
            if not input_first:
                weight = weight.T
            weight[inputs_of_head] = 0
    return model.module


def output_projections(model: HeadModel) -> dict[int, tuple[nn.Module, bool]]:
    """Return by layer the module that reads the concatenated head outputs, and whether its weight
    is laid out input first (GPT-2).

    It is recognised by what enters it in a run."""
    batch = _synthetic_batch(model)
    trace = model.trace(batch, {"outputs"})
    assert trace.outputs is not None
    # From [example, layer, head, token, d_head] to [layer, example, token, head * d_head].
    outputs = trace.outputs.transpose(0, 1).transpose(-3, -2).flatten(-2)
    inputs: list[tuple[nn.Module, Tensor]] = []

    def keep_input(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].numel() == outputs[0].numel():
            inputs.append((module, args[0].reshape(outputs[0].shape)))

    with ExitStack() as stack:
        for module in model.module.modules():
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                hook = module.register_forward_pre_hook(only_in_this_thread(keep_input))
                stack.callback(hook.remove)
        model.forward(batch)

    projections: dict[int, tuple[nn.Module, bool]] = {}
    mask = batch.attention_mask
    for layer in range(model.layers):
        for module, entering in inputs:
            if torch.allclose(entering[mask], outputs[layer][mask], atol=1e-5, rtol=1e-4):
                projections[layer] = (module, not isinstance(module, nn.Linear))
                break
        else:
            raise ModelError(
                f"The output projection of layer {layer} of {model.name} cannot be found, so heads "
                "cannot be taken out of its weights."
            )
    distinct = {id(module) for module, _ in projections.values()}
    if len(distinct) < model.layers:
        raise ModelError(
            f"The layers of {model.name} share their weights, so a head of one layer cannot be "
            "taken out of them."
        )
    return projections


def _layout(model: HeadModel, heads: Heads) -> dict[int, list[int]]:
    """Return the heads that each layer of the smaller model has.

    These are the heads that stay, and as many others, to be zeroed, as make all layers and all
    key/value groups equally large."""
    removed = set(heads)
    members: dict[int, list[int]] = {group: [] for group in sorted(set(model.kv_groups))}
    for head in range(model.heads):
        members[model.kv_groups[head]].append(head)

    staying: dict[int, dict[int, list[int]]] = {}
    groups_per_layer = 1
    heads_per_group = 1
    for layer in range(model.layers):
        staying[layer] = {}
        for group, group_heads in members.items():
            stay = [head for head in group_heads if (layer, head) not in removed]
            staying[layer][group] = stay
            heads_per_group = max(heads_per_group, len(stay))
        n_groups = sum(1 for stay in staying[layer].values() if stay)
        groups_per_layer = max(groups_per_layer, n_groups)

    layout: dict[int, list[int]] = {}
    for layer, by_group in staying.items():
        # Groups and heads that stay come first; removed ones only fill up.
        ranked_groups = sorted(by_group, key=lambda group: (not by_group[group], group))
        layout[layer] = []
        for group in sorted(ranked_groups[:groups_per_layer]):
            stay = by_group[group]
            fillers = [head for head in members[group] if head not in stay]
            layout[layer] += [*stay, *fillers][:heads_per_group]
        layout[layer].sort()
    return layout


def _remove_heads(model: HeadModel, heads: Heads) -> tuple[PreTrainedModel, dict[int, list[int]]]:
    """Return a smaller model of the same class with the weights of the heads that stay, and which
    these are by layer."""
    class_name = type(model.module).__name__
    layout = _layout(model, heads)
    groups: dict[int, list[int]] = {}
    for layer, stay in layout.items():
        groups[layer] = sorted({model.kv_groups[head] for head in stay})
    rejection = (
        f"{class_name} has heads of size hidden/number only, so it cannot have fewer of them; "
        f"{ZERO_INSTEAD}."
    )
    config = copy.deepcopy(model.config)
    config._attn_implementation_internal = None
    text_config = config.get_text_config()
    count_name = None
    for name in HEAD_COUNT_NAMES:
        if getattr(text_config, name, None) == model.heads:
            count_name = name
            break
    # This comes first: no other choice of heads would help.
    if count_name is None or not hasattr(text_config, "head_dim"):
        raise ModelError(rejection, option="zero")
    n_left = len(layout[0])
    if n_left == model.heads:
        raise ModelError(
            f"{class_name} has one number of heads for all layers and key/value groups, and some "
            f"layer keeps one in each place; remove some from every layer, or {ZERO_INSTEAD}.",
            option="zero",
        )
    setattr(text_config, count_name, n_left)
    for name in GROUP_COUNT_NAMES:
        if hasattr(text_config, name):
            setattr(text_config, name, len(groups[0]))
    text_config.head_dim = model.d_head
    try:
        if hasattr(config, "validate"):
            config.validate()
        smaller: PreTrainedModel = type(model.module)(config)
        smaller = smaller.to(next(model.module.parameters()).dtype)
    except Exception as error:  # configs and classes check numbers of heads in many ways
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()).rstrip(".")
        raise ModelError(
            f"{class_name} does not take {n_left} heads a layer ({reason[:200]}); remove another "
            f"number, or {ZERO_INSTEAD}.",
            option="zero",
        ) from error
    _copy_weights(smaller, model, layout, groups, rejection)
    smaller.to(model.device).eval()

    # Removed heads that only fill up a layer are zeroed, under their new numbers.
    fillers = []
    for layer, head in heads:
        if head in layout[layer]:
            fillers.append((layer, layout[layer].index(head)))
    if fillers:
        with HeadModel.open(smaller) as opened:
            _zero_heads(opened, fillers)
    return smaller, layout


def _copy_weights(
    smaller: PreTrainedModel,
    model: HeadModel,
    layout: dict[int, list[int]],
    groups: dict[int, list[int]],
    rejection: str,
) -> None:
    """Copy weights; those that shrank lose the blocks of the removed heads along the dimension that
    shrank."""
    layer_of_prefix = _layers_by_prefix(model.sites)
    weights = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
    n_shrunk = 0
    with torch.no_grad():
        for name, target in (*smaller.named_parameters(), *smaller.named_buffers()):
            weight = weights[name]
            if weight.shape == target.shape:
                target.copy_(weight)
                continue
            layer = None
            for prefix, number in layer_of_prefix.items():
                if name.startswith(f"{prefix}."):
                    layer = number
                    break
            if layer is None or weight.ndim != target.ndim:
                raise ModelError(rejection, option="zero")
            n_shrunk += 1
            blocks = ((model.heads, layout[layer]), (model.kv_heads, groups[layer]))
            for dim, size in enumerate(target.shape):
                index = _staying_index(weight.shape[dim], size, model.d_head, blocks)
                if index is None:
                    raise ModelError(rejection, option="zero")
                weight = weight.index_select(dim, index.to(weight.device))
            target.copy_(weight)
    # At least the query and the output projection of every layer have shrunk.
    if n_shrunk < 2 * model.layers:
        raise ModelError(rejection, option="zero")


def _staying_index(
    before: int, after: int, d_head: int, blocks: Sequence[tuple[int, list[int]]]
) -> Tensor | None:
    """Return the places of a dimension that belong to the heads (or key/value groups) that stay;
    None where the dimension has no such blocks."""
    if before == after:
        return torch.arange(before)
    for n_blocks, staying in blocks:
        for block_size in (d_head, 1):
            if before == n_blocks * block_size and after == len(staying) * block_size:
                return torch.arange(before).view(n_blocks, block_size)[staying].flatten()
    return None


def _layers_by_prefix(sites: Sites) -> dict[str, int]:
    """Return the layer of each attention module, by the module's path."""
    layers = {}
    for site in sites.by_module.values():
        if len(site.layers) != 1:
            raise ModelError(
                "The layers of this model share their weights, so a head of one layer cannot be "
                "taken out of them."
            )
        layers[site.path] = site.layers[0]
    return layers


# --- helpers --------------------------------------------------------------------------------------


def _synthetic_batch(model: HeadModel) -> Batch:
    """Return two synthetic inputs of different length."""
    vocabulary = getattr(model.module.get_input_embeddings(), "num_embeddings", 100)
    rows = []
    for index, length in enumerate((9, 6)):
        ids = (np.arange(length) * 7 + 3 + index) % max(vocabulary - 1, 1)
        rows.append(np.where(ids == model.pad_id, (ids + 1) % vocabulary, ids))
    return model.batch(rows)


def _output(model: HeadModel, batch: Batch, interventions: Any) -> Tensor:
    """Return the logits where the model has a head, else its last hidden states, without padding."""
    class_name = type(model.module).__name__
    classifies = hasattr(model.module, "num_labels") and class_name.endswith(
        "ForSequenceClassification"
    )
    has_logits = model.lm_kind is not None or classifies
    result = model.forward(batch, interventions=interventions, logits=has_logits)
    logits = getattr(result, "logits", None) if has_logits else None
    output: Tensor = result[0] if logits is None else logits
    output = output.float().cpu()
    if output.ndim == 3:
        return output[batch.attention_mask.cpu()]
    return output


def _copy_classifier(
    source: Path, target: Path, heads: Heads, layout: dict[int, list[int]], mode: str
) -> None:
    """Copy the classifier beside a model that was fine-tuned on chosen heads, with their new
    numbers."""
    if not (source / HEAD_CONFIG).is_file():
        return
    facts = json.loads((source / HEAD_CONFIG).read_text())
    if facts.get("heads") and mode == "remove":
        renamed = []
        for name in facts["heads"]:
            layer, head = parse_head(name)
            if (layer, head) in heads:
                raise ParameterError(
                    f"The classifier of '{source}' reads the head {name}, so it cannot be removed; "
                    f"{ZERO_INSTEAD}.",
                    option="zero",
                )
            renamed.append(head_name(layer, layout[layer].index(head)))
        facts["heads"] = renamed
    (target / HEAD_CONFIG).write_text(json.dumps(facts, indent=1) + "\n")
    shutil.copy(source / HEAD_FILE, target / HEAD_FILE)
