"""Patch every head from a clean run into a corrupted one and back, exactly and to first order."""

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

from headwise.atlas import Atlas
from headwise.core.errors import ModelError
from headwise.core.options import part_of, recorded_options, takes_options
from headwise.experiments.ablation.scored_models import HeadOutputCollector
from headwise.experiments.patching.options import PatchOptions
from headwise.experiments.patching.pairs import (
    EncodedPair,
    choose_pairs,
    distinct_pairs,
    encode_pairs,
)
from headwise.experiments.patching.result import patching_dataset, strongest_heads
from headwise.experiments.patching.templates import PromptPair
from headwise.models import HeadModel
from headwise.models.forward_call import only_in_this_thread
from headwise.models.interventions import Intervention, InterventionPlan, Patch
from headwise.models.options import ModelOptions
from headwise.models.prefix import Prefix, SharedTokens, last_token_alone
from headwise.models.session import Session
from headwise.run.job import Job, Progress, no_progress, provenance_of
from headwise.text.encode import Batch, collate

TOLERANCE = 1e-5
BYTES_AT_ONCE = 2**28  # of activations and logits of the copies that go through the model at once


@takes_options(PatchOptions)
def patch(
    model: HeadModel | str | Path | None,
    pairs: str | Path | Sequence[PromptPair] = "agreement",
    *,
    strict: bool | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: PatchOptions,
) -> xr.Dataset:
    """Measure what each head carries from a clean input into a corrupted one (Wang et al. 2022).

    Parameters
    ----------
    model : HeadModel, str or Path
        A causal language model: a hub name, a folder or an open model.
    pairs : str, Path or sequence of PromptPair, default "agreement"
        A built-in set (`agreement`, `names`, `induction`, ...; see `builtin_pairs`), a .jsonl file
        with `clean`, `corrupted`, `answer` and `wrong` in each row, or pairs. A pair that occurs
        several times counts once.
    strict : bool, optional
        Raise for a pair that cannot be used, instead of leaving it out; default: for all but
        built-in pairs.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    overwrite : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : PatchOptions
        Each option is also a keyword.

    Returns
    -------
    Dataset
        With `d` the logit of the answer less that of the wrong answer at the last token:
        `recovered[layer, head]`, the share of `d(clean) − d(corrupted)` that comes back when the
        head's output in the corrupted run is replaced by the clean one (totals over pairs, with
        `_n` and 95 % interval); `lost`, the share that is lost the other way round; `_p`,
        `_p_adjusted`: two-sided, corrected over heads (Holm), NaN for fewer than 30 different
        pairs (intervals and tests are over units of pairs, see `PromptPair`); `estimate`:
        `recovered` to first order, from two runs and one gradient; `ablated`: the share that is
        lost when the head is zeroed in the clean run, for the heads that bring back most, NaN for
        all others; `recovered_at`, `estimate_at[layer, head, offset]` by position. Attributes:
        `clean`, `corrupted` (mean d), `clean_right`, `corrupted_right` (share of pairs with the
        expected sign of d), `units`, `pearson`, `spearman` of estimate and exact over heads.
    """
    with Job.for_call(out, overwrite=overwrite, progress=progress) as job:
        result = patch_in_job(job, model, pairs, options, strict)
        job.finish_with(result)
    return result["patching"]


def patch_in_job(
    job: Job,
    model: HeadModel | str | Path | None,
    pairs: str | Path | Sequence[PromptPair],
    options: PatchOptions,
    strict: bool | None = None,
) -> Atlas:
    """Open a model and pairs, and patch within a job; see `patch`."""
    model = part_of(options, ModelOptions).open(model)
    if model.lm_kind != "causal":
        raise ModelError(
            f"'{model.name}' has no language-modelling head for the next token, so there is no "
            "answer to patch for; choose a decoder."
        )
    chosen, strict = choose_pairs(model, pairs, options.limit, options.seed, strict)
    dataset = _patching(job, model, chosen, options, strict)
    corpus_facts = {"examples": len(chosen)}
    return Atlas({"patching": dataset}, provenance_of("patching", model, corpus_facts, options))


def _patching(
    job: Job,
    model: HeadModel,
    pairs: Sequence[PromptPair],
    options: PatchOptions,
    strict: bool,
) -> xr.Dataset:
    distinct = distinct_pairs(pairs)
    encoded, n_left_out = encode_pairs(model, distinct, strict)
    groups = _group_by_length(encoded, options.batch)
    job.begin(
        {
            "model": model.identity(),
            "device": model.device.type,
            "pairs": [asdict(pair) for pair in distinct],
            "options": recorded_options(options),
        }
    )
    note = ""
    with model.evaluating():
        share = options.share and Prefix.supports(model.sites)
        if share and not PatchRunner(model, groups[0], share).shares():
            share = False
            note = (
                f"The layers of {model.name} pass on more than their outputs: whole runs were made."
            )
        measure_group = PatchGroup(model, options, share, job.progress)
        parts = list(job.each("pairs", measure_group, groups))
        arrays = {}
        for name in parts[0]:
            arrays[name] = np.concatenate([part[name] for part in parts])
        if options.ablate:
            heads = strongest_heads(arrays, options.ablate)
            zero_heads = partial(_zero_heads, model, share, heads)
            losses = [part["ablated"] for part in job.each("ablated", zero_heads, groups)]
            arrays["ablated"] = np.concatenate(losses)
    attributes = {
        "pairs": len(encoded),
        "left_out_pairs": n_left_out,
        "duplicate_pairs": len(pairs) - len(distinct),
        "note": note,
    }
    unit_of_pair = [pair.unit for group in groups for pair in group]
    attributes["units"] = len(set(unit_of_pair))
    _, units = np.unique(np.array(unit_of_pair), return_inverse=True)
    return patching_dataset(arrays, model, attributes, units.tolist())


def _group_by_length(pairs: list[EncodedPair], size: int) -> list[list[EncodedPair]]:
    """Return groups of pairs of the same length: then positions from the end are positions."""
    # Tokens before the first that differs run only once for a group: pairs that share many of them
    # stand together.
    ordered = sorted(pairs, key=lambda pair: (len(pair.clean), -_n_shared(pair), pair.clean.index))
    groups: list[list[EncodedPair]] = []
    for pair in ordered:
        fits = False
        if groups:
            last_group = groups[-1]
            same_length = len(last_group[0].clean) == len(pair.clean)
            fits = same_length and len(last_group) < size
        if fits:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups


def _n_shared(pair: EncodedPair) -> int:
    """Return how many tokens both inputs of a pair begin with."""
    differs = np.asarray(pair.clean.ids) != np.asarray(pair.corrupted.ids)
    return int(differs.argmax()) if differs.any() else len(differs)


class PatchRunner:
    """Runs a group of pairs, clean and corrupted, with heads of one run put into the other.

    Parameters
    ----------
    model : HeadModel
        A causal language model.
    group : sequence of EncodedPair
        Pairs of the same length.
    share : bool
        Whether the layers below a patch, and the tokens before the first in which the inputs of a
        pair differ, are run only once.

    Attributes
    ----------
    difference : dict of str to Tensor
        d of the `clean` and the `corrupted` run, `[pair]`.
    outputs : dict of str to list of Tensor
        The head outputs of both runs, `[pair, head, token, d_head]` of each layer.
    """

    def __init__(self, model: HeadModel, group: Sequence[EncodedPair], share: bool) -> None:
        self.model = model
        self.share = share
        self.batches = {
            "clean": collate([pair.clean for pair in group], model.pad_id, model.device),
            "corrupted": collate([pair.corrupted for pair in group], model.pad_id, model.device),
        }
        self.answer = torch.tensor([pair.answer for pair in group], device=model.device)
        self.wrong = torch.tensor([pair.wrong for pair in group], device=model.device)
        self._prefix: dict[str, Prefix] = {}
        self.outputs: dict[str, list[Tensor]] = {}
        self.difference: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, batch in self.batches.items():
                watcher = HeadOutputCollector()
                prefix = Prefix(model)
                session = Session(model.sites, batch.attention_mask, watcher)
                with ExitStack() as stack:
                    if share:
                        stack.enter_context(prefix.recording())
                    self.difference[name] = self._run(batch, session)
                self.outputs[name] = [watcher.outputs[layer] for layer in range(model.layers)]
                self._prefix[name] = prefix
        shared_ids = self.batches["clean"].ids[:, : self._first_difference() if share else 0]
        self.tokens = SharedTokens(model, shared_ids)
        if not self._continues():
            self.tokens = SharedTokens(model, shared_ids[:, :0])

    def _first_difference(self) -> int:
        """Return the first token in which the inputs of any pair differ; at most the last one, whose
        logits are needed."""
        clean = self.batches["clean"].ids
        differs = (clean != self.batches["corrupted"].ids).any(0)
        differs[-1] = True
        return int(differs.int().argmax())

    @torch.no_grad()
    def _continues(self) -> bool:
        """Return whether a run that begins after the shared tokens gives what a whole run gives."""
        if self.tokens.length == 0:
            return True
        batch = self.batches["corrupted"]
        expected = self.difference["corrupted"]
        continued = self._run(batch, self._session(batch, self.tokens.length), self.tokens)
        scale = max(1.0, float(expected.abs().max()))
        return float((continued - expected).abs().max()) <= TOLERANCE * scale

    def _session(self, batch: Batch, start: int, plan: InterventionPlan | None = None) -> Session:
        """Return a session for a batch from a token on."""
        mask = batch.attention_mask
        return Session(self.model.sites, mask[:, start:], None, plan, keys=mask)

    def _run(self, batch: Batch, session: Session, tokens: SharedTokens | None = None) -> Tensor:
        """Return d: the logit of the answer less that of the wrong one, at the last token.

        With `tokens` only the tokens after these run."""
        # The batch may be written several times: each copy has the same answers.
        n_copies = len(batch) // len(self.answer)
        start = 0
        past = None
        if tokens is not None:
            start = tokens.length
            past = tokens.for_copies(n_copies)
        # All inputs of a group are equally long.
        last = torch.tensor([batch.ids.shape[1] - 1 - start], device=batch.device)
        with session.running():
            output = self.model.run(
                batch.ids[:, start:],
                batch.attention_mask,
                batch.types[:, start:],
                logits=True,
                logit_rows=last,
                past=past,
            )
        rows = torch.arange(len(batch), device=batch.device)
        last_logits: Tensor = output.logits[:, -1].float()
        answer = self.answer.repeat(n_copies)
        wrong = self.wrong.repeat(n_copies)
        return last_logits[rows, answer] - last_logits[rows, wrong]

    @torch.no_grad()
    def patched(
        self,
        into: str,
        layer: int,
        head: int,
        position: int | None = None,
        share: bool | None = None,
    ) -> Tensor:
        """Return d of the run `into` with one head's output from the other run, at all positions or
        at one, counted from the end."""
        source = "clean" if into == "corrupted" else "corrupted"
        output = self.outputs[source][layer][:, head]
        if position is not None:
            other_positions = self.outputs[into][layer][:, head].clone()
            other_positions[:, -1 - position] = output[:, -1 - position]
            output = other_positions
        if share is None:
            share = self.share
        if not share:
            return self.intervened(into, layer, head, Patch(output=output), share=False)
        return self._with_outputs(into, layer, [head], output)

    @torch.no_grad()
    def patched_layer(self, into: str, layer: int) -> Tensor:
        """Return what `patched` returns for every head of a layer, `[head, pair]`.

        Several heads go through the model at once: the batch is written once for each of them, and
        in each copy another head has the output of the other run."""
        source = "clean" if into == "corrupted" else "corrupted"
        other_outputs = self.outputs[source][layer]
        at_once = self._heads_at_once()
        differences = []
        for start in range(0, self.model.heads, at_once):
            heads = range(start, min(start + at_once, self.model.heads))
            outputs = torch.cat([other_outputs[:, head] for head in heads])
            differences.append(self._with_outputs(into, layer, heads, outputs))
        return torch.cat(differences).view(self.model.heads, -1)

    def _with_outputs(self, into: str, layer: int, heads: Sequence[int], outputs: Tensor) -> Tensor:
        """Return d of runs with the output of one head replaced, `[head · pair]`.

        Parameters
        ----------
        into : str
            The run.
        layer : int
            The layer of the heads.
        heads : sequence of int
            The batch is written once for each of them.
        outputs : Tensor
            What each of them gives instead, `[head · pair, token, d_head]`. At the shared tokens it
            must be what the head gives there anyway.
        """
        n_copies = len(heads)
        n_pairs = len(self.answer)
        first = self.tokens.length
        plan: dict[int, Intervention] = {}
        for place, head in enumerate(heads):
            output = self.outputs[into][layer][:, head].repeat(n_copies, 1, 1)
            copy_of_head = slice(place * n_pairs, (place + 1) * n_pairs)
            output[copy_of_head] = outputs[copy_of_head]
            plan[head] = Patch(output=output[:, first:])
        batch = self._repeated_batch(into, n_copies)
        session = self._session(batch, first, {layer: plan})
        with ExitStack() as stack:
            if self.share:
                prefix = self._prefix[into].repeated(n_copies, layer, first)
                stack.enter_context(prefix.skipping(layer, session))
                stack.enter_context(last_token_alone(self.model))
            return self._run(batch, session, self.tokens)

    def _repeated_batch(self, name: str, times: int) -> Batch:
        rows = self.batches[name].rows * times
        return collate(rows, self.model.pad_id, self.model.device)

    def _heads_at_once(self) -> int:
        """Return how many copies of the batch go through the model at once: as many as their
        activations and logits leave room for."""
        n_pairs, n_tokens = self.batches["clean"].ids.shape
        config = self.model.config.get_text_config()
        widest = max(4 * self.model.hidden, getattr(config, "intermediate_size", None) or 0)
        vocabulary = int(config.vocab_size)
        bytes_of_copy = 4 * n_pairs * (n_tokens * widest + vocabulary)
        return max(1, min(self.model.heads, BYTES_AT_ONCE // bytes_of_copy))

    def zeroed(self, layer: int, head: int) -> Tensor:
        """Return d of the clean run with one head zero-ablated."""
        return self.intervened("clean", layer, head, "zero", self.share)

    @torch.no_grad()
    def intervened(
        self, name: str, layer: int, head: int, intervention: Intervention, share: bool
    ) -> Tensor:
        """Return d of a run with an intervention on one head."""
        batch = self.batches[name]
        plan = {layer: {head: intervention}}
        session = Session(self.model.sites, batch.attention_mask, None, plan)
        with ExitStack() as stack:
            if share:
                stack.enter_context(self._prefix[name].skipping(layer, session))
            return self._run(batch, session)

    def shares(self) -> bool:
        """Return whether runs that share lower layers give what whole runs give, at the first,
        middle and last layer."""
        n_layers = self.model.layers
        for layer in {0, n_layers // 2, n_layers - 1}:
            shared = self.patched("corrupted", layer, 0, share=True)
            whole = self.patched("corrupted", layer, 0, share=False)
            scale = max(1.0, float(whole.abs().max()))
            if not float((shared - whole).abs().max()) <= TOLERANCE * scale:
                return False
        return True

    def estimate(self) -> Tensor:
        """Return to first order what `patched` would add to d of the corrupted run, `[pair, layer,
        head, token]`: the gradient of d by a head's output, times the change of that output."""
        batch = self.batches["corrupted"]
        watcher = HeadOutputCollector()
        embeddings = self.model.module.get_input_embeddings()
        # The weights take no gradient here: the graph has to begin at the embeddings.
        hook = embeddings.register_forward_hook(
            only_in_this_thread(lambda module, args, output: output.requires_grad_())
        )
        try:
            with torch.enable_grad():
                session = Session(self.model.sites, batch.attention_mask, watcher)
                difference = self._run(batch, session)
            outputs = [watcher.outputs[layer] for layer in range(self.model.layers)]
            gradients = torch.autograd.grad(difference.sum(), outputs)
        except RuntimeError as error:
            raise ModelError(
                f"The gradient of {self.model.name} cannot be taken at its heads' outputs; open it "
                "in float32.",
                option="dtype float32",
            ) from error
        finally:
            hook.remove()
        estimates = []
        for layer, gradient in enumerate(gradients):
            change = self.outputs["clean"][layer] - outputs[layer].detach()
            estimates.append((gradient * change).sum(-1))
        return torch.stack(estimates, 1).detach()


@dataclass(frozen=True, slots=True, eq=False)
class PatchGroup:
    """Patches a group of pairs, as a unit of work. A worker gets it without the progress."""

    model: HeadModel
    options: PatchOptions
    share: bool
    progress: Progress = no_progress

    def __reduce__(self) -> tuple[Any, ...]:
        return PatchGroup, (self.model, self.options, self.share)

    def __call__(
        self, group: Sequence[EncodedPair]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        with self.model.evaluating():
            runner = PatchRunner(self.model, group, self.share)
            tensors = self._measure(runner)
        arrays = {}
        for name, values in tensors.items():
            arrays[name] = values.detach().double().cpu().numpy()
        return arrays, {}

    def _measure(self, runner: PatchRunner) -> dict[str, Tensor]:
        estimate = runner.estimate()
        tensors = {
            "clean": runner.difference["clean"],
            "corrupted": runner.difference["corrupted"],
            "estimate": estimate.sum(-1),
        }
        if self.options.exact:
            tensors["recovered"], tensors["lost"] = self._exact(runner)
        if self.options.positions:
            n_tokens = runner.batches["clean"].ids.shape[1]
            n_positions = min(self.options.positions, n_tokens)
            tensors["estimate_at"] = self._empty_by_position(runner)
            last_first = estimate[..., -n_positions:].flip(-1)
            tensors["estimate_at"][..., :n_positions] = last_first.cpu()
            if self.options.exact:
                tensors["recovered_at"] = self._exact_by_position(runner, n_positions)
        return tensors

    def _exact(self, runner: PatchRunner) -> tuple[Tensor, Tensor]:
        """Return what each head brings back and what is lost without it, `[pair, layer, head]`."""
        clean = runner.difference["clean"]
        corrupted = runner.difference["corrupted"]
        model = self.model
        recovered = torch.zeros(len(clean), model.layers, model.heads)
        lost = torch.zeros(len(clean), model.layers, model.heads)
        for layer in range(model.layers):
            with_clean = runner.patched_layer("corrupted", layer)
            recovered[:, layer] = (with_clean - corrupted).T.cpu()
            with_corrupted = runner.patched_layer("clean", layer)
            lost[:, layer] = (clean - with_corrupted).T.cpu()
            self.progress("layers", layer + 1, model.layers)
        return recovered, lost

    def _exact_by_position(self, runner: PatchRunner, n_positions: int) -> Tensor:
        corrupted = runner.difference["corrupted"]
        recovered = self._empty_by_position(runner)
        for layer in range(self.model.layers):
            for head in range(self.model.heads):
                for position in range(n_positions):
                    with_clean = runner.patched("corrupted", layer, head, position)
                    recovered[:, layer, head, position] = (with_clean - corrupted).cpu()
            self.progress("positions", layer + 1, self.model.layers)
        return recovered

    def _empty_by_position(self, runner: PatchRunner) -> Tensor:
        """Return `[pair, layer, head, position]`, NaN where an input has no such position."""
        n_pairs = len(runner.answer)
        shape = (n_pairs, self.model.layers, self.model.heads, self.options.positions)
        return torch.full(shape, torch.nan)


def _zero_heads(
    model: HeadModel,
    share: bool,
    heads: Sequence[tuple[int, int]],
    group: Sequence[EncodedPair],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what zeroing each of these heads takes from d of the clean run, NaN for all others."""
    lost = torch.full((len(group), model.layers, model.heads), torch.nan, dtype=torch.float64)
    with model.evaluating():
        runner = PatchRunner(model, group, share)
        clean = runner.difference["clean"]
        for layer, head in heads:
            lost[:, layer, head] = (clean - runner.zeroed(layer, head)).double().cpu()
    return {"ablated": lost.numpy()}, {}
