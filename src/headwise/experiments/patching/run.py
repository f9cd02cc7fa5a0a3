"""Patching every head from a clean run into a corrupted one and back, exactly and to first
order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.core.checks import at_least
from headwise.core.errors import ModelError
from headwise.experiments.ablation.prefix import Prefix
from headwise.experiments.ablation.scored_models import HeadOutputCollector
from headwise.experiments.patching.pairs import (
    EncodedPair,
    PromptPair,
    distinct_pairs,
    encode_pairs,
)
from headwise.experiments.patching.result import carriers, patching_dataset
from headwise.models import HeadModel
from headwise.models.forward_call import only_in_this_thread
from headwise.models.interventions import Intervention, Patch
from headwise.models.session import Session
from headwise.run.job import Job, Progress, no_progress, software_versions
from headwise.text.encode import Batch, collate

TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class PatchOptions:
    """What is patched.

    Parameters
    ----------
    exact : bool, default True
        Every head by a run of its own, both ways; otherwise the first-order estimate alone.
    positions : int, default 0
        So many positions, counted from the last, are also patched one at a time (clean into
        corrupted).
    ablate : int, default 10
        So many of the heads that bring back most are also zeroed, one at a time, in the clean run.
    batch : int, default 16
        Pairs that go through the model at once.
    share : bool, default True
        Run the layers below a patch once only, where the model allows it.
    """

    exact: bool = True
    positions: int = 0
    ablate: int = 10
    batch: int = 16
    share: bool = True

    def __post_init__(self) -> None:
        at_least("positions", self.positions, 0)
        at_least("ablate", self.ablate, 0)
        at_least("batch", self.batch, 1)


def patch(
    model: HeadModel,
    pairs: Sequence[PromptPair],
    options: PatchOptions = PatchOptions(),  # noqa: B008  (frozen)
    *,
    strict: bool = True,
    folder: Job | str | Path | None = None,
    overwrite: bool = False,
    report: Progress = no_progress,
) -> xr.Dataset:
    """What each head carries from a clean input into a corrupted one.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    pairs : sequence of PromptPair
        From `read_pairs`, `builtin_pairs`, or your own.
    options : PatchOptions, optional
        What is patched.
    strict : bool, default True
        Refuse a pair that cannot be used; otherwise it is left out and counted.
    folder, overwrite, report
        Where finished batches are kept, whether to start anew, and who is told how far it is.

    Returns
    -------
    Dataset
        With `d` the logit of the answer less that of the wrong answer at the last token:
        `recovered[layer, head]`, the share of `d(clean) − d(corrupted)` that comes back when the
        head's output in the corrupted run is replaced by the clean one (totals over pairs, with
        `_n` and 95 % interval); `lost`, the share that goes the other way round; `_p`,
        `_p_adjusted`: two-sided over pairs, corrected over heads (Holm), NaN for fewer than 30
        different pairs; `estimate`: `recovered` to
        first order, from two runs and one gradient; `ablated`: the share that is lost when the head
        is zeroed in the clean run, for the heads that bring back most, NaN for all others;
        `recovered_at`, `estimate_at[layer, head, offset]` by position. Attributes: `clean`,
        `corrupted` (mean d), `clean_right`, `corrupted_right` (share of pairs whose d says so),
        `pearson`, `spearman` of estimate and exact over heads.
    """
    if model.lm_kind != "causal":
        raise ModelError(
            f"'{model.name}' has no head that predicts the next token, so there is no answer to patch for."
        )
    distinct = distinct_pairs(pairs)
    n_duplicates = len(pairs) - len(distinct)
    rows, left_out = encode_pairs(model, distinct, strict)
    groups = _grouped(rows, options.batch)
    identity = {
        "model": model.identity(),
        "pairs": [asdict(pair) for pair in distinct],
        "options": asdict(options),
    }
    with (
        Job.opened(folder, overwrite=overwrite, progress=report) as job,
        model.evaluating(),
    ):
        job.begin(identity)
        share, note = options.share and Prefix.serves(model.sites), ""
        if share and not PatchRunner(model, groups[0], share).shares():
            share, note = (
                False,
                f"The layers of {model.name} pass on more than their outputs: whole runs were made.",
            )
        parts = list(job.each("pairs", PairsJob(model, options, share, job.progress), groups))
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if options.ablate:
            ablate_group = partial(_ablated, model, share, carriers(joined, options.ablate))
            lost = job.each("ablated", ablate_group, groups)
            joined["ablated"] = np.concatenate([part["ablated"] for part in lost])
    attrs = {
        "pairs": len(rows),
        "left_out_pairs": left_out,
        "duplicate_pairs": n_duplicates,
        "note": note,
    }
    return patching_dataset(joined, model, attrs)


def provenance(
    model: HeadModel, pairs: Sequence[PromptPair], options: PatchOptions
) -> dict[str, Any]:
    """What a patching was made from, as an atlas keeps it."""
    return {
        **software_versions(),
        "model": model.identity(),
        "corpus": {"examples": len(pairs)},
        "patching": asdict(options),
    }


def _grouped(rows: list[EncodedPair], size: int) -> list[list[EncodedPair]]:
    """Pairs of the same length together: then positions from the end are positions."""
    ordered = sorted(rows, key=lambda row: (len(row.clean), row.clean.index))
    groups: list[list[EncodedPair]] = []
    for row in ordered:
        if groups and len(groups[-1]) < size and len(groups[-1][0].clean) == len(row.clean):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


class PatchRunner:
    """Runs a group of pairs, clean and corrupted, with heads of the one put into the other."""

    def __init__(self, model: HeadModel, group: Sequence[EncodedPair], share: bool) -> None:
        self.model, self.share = model, share
        self.batches = {
            name: collate([getattr(row, name) for row in group], model.pad_id, model.device)
            for name in ("clean", "corrupted")
        }
        self.answer, self.wrong = (
            torch.tensor([getattr(row, name) for row in group], device=model.device)
            for name in ("answer", "wrong")
        )
        self._prefix: dict[str, Prefix] = {}
        self.outputs: dict[str, list[Tensor]] = {}
        self.difference: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, batch in self.batches.items():
                watcher, prefix = HeadOutputCollector(), Prefix(model)
                with ExitStack() as stack:
                    if share:
                        stack.enter_context(prefix.recording())
                    self.difference[name] = self._run(
                        batch, Session(model.sites, batch.attention_mask, watcher)
                    )
                self.outputs[name] = [watcher.outputs[layer] for layer in range(model.layers)]
                self._prefix[name] = prefix

    def _run(self, batch: Batch, session: Session) -> Tensor:
        """d: the logit of the answer less that of the wrong one, at the last token."""
        with session.running():
            output = self.model.run(batch.ids, batch.attention_mask, batch.types, logits=True)
        last = output.logits[
            torch.arange(len(batch), device=batch.device), batch.lengths - 1
        ].float()
        picked: Tensor = last.gather(-1, self.answer[:, None]) - last.gather(
            -1, self.wrong[:, None]
        )
        return picked[:, 0]

    def patched(
        self,
        into: str,
        layer: int,
        head: int,
        position: int | None = None,
        share: bool | None = None,
    ) -> Tensor:
        """d of the run `into` with one head's output from the other run, at all positions or at one
        from the end."""
        source = "clean" if into == "corrupted" else "corrupted"
        given = self.outputs[source][layer][:, head]
        if position is not None:
            whole = self.outputs[into][layer][:, head].clone()
            whole[:, -1 - position] = given[:, -1 - position]
            given = whole
        return self.disturbed(
            into, layer, head, Patch(output=given), self.share if share is None else share
        )

    def zeroed(self, layer: int, head: int) -> Tensor:
        """d of the clean run with one head's output zero."""
        return self.disturbed("clean", layer, head, "zero", self.share)

    @torch.no_grad()
    def disturbed(self, name: str, layer: int, head: int, how: Intervention, share: bool) -> Tensor:
        """d of a run with something done to one head."""
        batch = self.batches[name]
        session = Session(self.model.sites, batch.attention_mask, None, {layer: {head: how}})
        with ExitStack() as stack:
            if share:
                stack.enter_context(self._prefix[name].skipping(layer, session))
            return self._run(batch, session)

    def shares(self) -> bool:
        """Whether runs that share lower layers give what whole runs give, at the first, middle and
        last layer."""
        layers = self.model.layers
        for layer in {0, layers // 2, layers - 1}:
            shared, whole = (
                self.patched("corrupted", layer, 0, share=share) for share in (True, False)
            )
            if not float((shared - whole).abs().max()) <= TOLERANCE * max(
                1.0, float(whole.abs().max())
            ):
                return False
        return True

    def estimate(self) -> Tensor:
        """To first order, what `patched` would add to d of the corrupted run, `[pair, layer, head,
        token]`."""
        batch, watcher = self.batches["corrupted"], HeadOutputCollector()
        embeddings = self.model.module.get_input_embeddings()
        hook = embeddings.register_forward_hook(
            only_in_this_thread(lambda module, args, output: output.requires_grad_())
        )
        try:
            with torch.enable_grad():
                difference = self._run(
                    batch, Session(self.model.sites, batch.attention_mask, watcher)
                )
            outputs = [watcher.outputs[layer] for layer in range(self.model.layers)]
            gradients = torch.autograd.grad(difference.sum(), outputs)
        except RuntimeError as error:
            raise ModelError(
                f"The gradient of {self.model.name} cannot be taken at its heads' outputs; open it in float32."
            ) from error
        finally:
            hook.remove()
        moved = [
            (gradient * (clean - own.detach())).sum(-1)
            for gradient, clean, own in zip(gradients, self.outputs["clean"], outputs, strict=True)
        ]
        return torch.stack(moved, 1).detach()


@dataclass(frozen=True, slots=True, eq=False)
class PairsJob:
    """Patches a group of pairs, as a piece; who is told how far it is stays where it is when the
    job travels."""

    model: HeadModel
    options: PatchOptions
    share: bool
    report: Progress = no_progress

    def __reduce__(self) -> tuple[Any, ...]:
        return PairsJob, (self.model, self.options, self.share)

    def __call__(
        self, group: Sequence[EncodedPair]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        with self.model.evaluating():
            return _piece(PatchRunner(self.model, group, self.share), self.options, self.report)


def _piece(
    runner: PatchRunner, options: PatchOptions, report: Progress
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    model, corrupted = runner.model, runner.difference["corrupted"]
    pairs, tokens = len(runner.answer), runner.batches["clean"].ids.shape[1]
    estimate = runner.estimate()
    found = {
        "clean": runner.difference["clean"],
        "corrupted": corrupted,
        "estimate": estimate.sum(-1),
    }
    shape = (pairs, model.layers, model.heads)
    if options.exact:
        found["recovered"], found["lost"] = torch.zeros(shape), torch.zeros(shape)
        for layer in range(model.layers):
            for head in range(model.heads):
                found["recovered"][:, layer, head] = (
                    runner.patched("corrupted", layer, head) - corrupted
                ).cpu()
                back = runner.patched("clean", layer, head)
                found["lost"][:, layer, head] = (runner.difference["clean"] - back).cpu()
            report("layers", layer + 1, model.layers)
    if options.positions:
        kept = min(options.positions, tokens)
        found["estimate_at"] = torch.full((*shape, options.positions), torch.nan)
        found["estimate_at"][..., :kept] = estimate[..., -kept:].flip(-1).cpu()
        if options.exact:
            exact = torch.full((*shape, options.positions), torch.nan)
            for layer in range(model.layers):
                for head in range(model.heads):
                    for position in range(kept):
                        moved = runner.patched("corrupted", layer, head, position) - corrupted
                        exact[:, layer, head, position] = moved.cpu()
                report("positions", layer + 1, model.layers)
            found["recovered_at"] = exact
    return {name: value.detach().double().cpu().numpy() for name, value in found.items()}, {}


def _ablated(
    model: HeadModel, share: bool, best: Sequence[tuple[int, int]], group: Sequence[EncodedPair]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What zeroing each of these heads takes from d of the clean run, NaN for all others."""
    lost = torch.full((len(group), model.layers, model.heads), torch.nan, dtype=torch.float64)
    with model.evaluating():
        runner = PatchRunner(model, group, share)
        for layer, head in best:
            lost[:, layer, head] = (
                (runner.difference["clean"] - runner.zeroed(layer, head)).double().cpu()
            )
    return {"ablated": lost.numpy()}, {}
