"""Cut the attention from some tokens to a span in a window of layers, and see what the answer loses
(Geva et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from headwise.analyses.papers import reference
from headwise.atlas import Atlas
from headwise.core.errors import InputError, ModelError
from headwise.core.labels import existing_heads, parse_head
from headwise.core.options import part_of, recorded_options, takes_options
from headwise.experiments.knockout.options import KnockoutOptions
from headwise.experiments.patching.pairs import first_token, token_stretches, without_marks
from headwise.experiments.patching.templates import capital_texts
from headwise.models import HeadModel
from headwise.models.options import ModelOptions
from headwise.models.sites import LayerCount, Sites
from headwise.models.tap import Call, TapSession, use_session
from headwise.run.job import Job, Progress, no_progress, provenance_of
from headwise.stats.corrections import holm
from headwise.stats.units import mean_over_units
from headwise.text.encode import collate
from headwise.text.readers.files import on_disk
from headwise.text.readers.rows import json_rows

SPANS = ("marked", "first", "other")
BUILTIN_TEXTS = "capitals"
MIN_TEXTS = 8  # fewer are not tested
LAYERS_PER_WINDOW = 5  # by default a window is one of so many parts of the layers


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text with marked spans (`The capital of [[France]] is`) and the answer that follows it.

    `unit` names what several texts have in common (the country): texts of one unit count as one
    observation. Without it each text is a unit."""

    text: str
    answer: str
    where: str = ""
    unit: str = ""


@takes_options(KnockoutOptions)
def knockout(
    model: HeadModel | str | Path | None,
    texts: str | Path | Sequence[MarkedText] = BUILTIN_TEXTS,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: KnockoutOptions,
) -> xr.Dataset:
    """Cut the attention to a marked span in a window of layers, and measure what the answer loses.

    Only texts whose answer is the model's own prediction count.

    Parameters
    ----------
    model : HeadModel, str or Path
        A causal language model: a hub name, a folder or an open model.
    texts : str, Path or sequence of MarkedText, default "capitals"
        The built-in set (`capitals`), a .jsonl file with `text` (spans marked `[[...]]`) and
        `answer` in each row, or texts.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    overwrite : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : KnockoutOptions
        Each option is also a keyword.

    Returns
    -------
    Dataset
        `change[span, renormalised, layer]`: the relative change of the answer's probability when
        attention to the span (`marked`, `first`: the first token, `other`: all others before the
        last) is cut in the window of layers around `layer`, with `_n`, 95 % interval, `_p`,
        `_p_adjusted` (two-sided, corrected over spans and layers by Holm; NaN below 8 texts).
        Texts of one unit (`MarkedText`) count as one observation. `renormalised` says whether the
        remaining weights of a row are scaled up to 1. Attributes: `texts`, `right` (share whose
        answer is predicted), `probability`, `window`.
    """
    with Job.for_call(out, overwrite=overwrite, progress=progress) as job:
        result = knockout_in_job(job, model, texts, options)
        job.finish_with(result)
    return result["knockout"]


def knockout_in_job(
    job: Job,
    model: HeadModel | str | Path | None,
    texts: str | Path | Sequence[MarkedText],
    options: KnockoutOptions,
) -> Atlas:
    """Open a model and texts, and cut attention within a job; see `knockout`."""
    model = part_of(options, ModelOptions).open(model)
    if model.lm_kind != "causal":
        raise ModelError(
            f"'{model.name}' has no language-modelling head for the next token, so no answer "
            "follows a text; choose a decoder."
        )
    chosen = _choose_texts(texts, options)
    plan = _KnockoutPlan.make(model, options)
    job.begin(
        {
            "model": model.identity(),
            "device": model.device.type,
            "texts": [asdict(text) for text in chosen],
            "options": recorded_options(options),
        }
    )
    cut_text = CutText(model, options, plan)
    parts = list(job.each("texts", cut_text, chosen))
    dataset = _dataset(model, plan, parts, _units_of(chosen))
    corpus_facts = {"examples": len(chosen)}
    return Atlas({"knockout": dataset}, provenance_of("knockout", model, corpus_facts, options))


def _choose_texts(
    texts: str | Path | Sequence[MarkedText], options: KnockoutOptions
) -> list[MarkedText]:
    if isinstance(texts, str) and texts == BUILTIN_TEXTS:
        chosen = []
        for text, answer in capital_texts(options.limit, options.seed):
            # Texts that ask for the same capital are of one country.
            chosen.append(MarkedText(text, answer, "capitals", unit=answer))
        return chosen
    if isinstance(texts, str | Path):
        return read_marked_texts(texts)[: options.limit]
    return list(texts)


def _units_of(texts: Sequence[MarkedText]) -> np.ndarray:
    """Return the number of the unit of each text."""
    number_of_unit: dict[str | int, int] = {}
    units = []
    for place, text in enumerate(texts):
        # A text without a unit is one of its own; numbers cannot be names of units.
        unit = text.unit or place
        units.append(number_of_unit.setdefault(unit, len(number_of_unit)))
    return np.array(units, dtype=int)


def read_marked_texts(path: str | Path) -> list[MarkedText]:
    """Read texts from a JSONL file with `text` and `answer`, and perhaps `unit`, in each row."""
    texts = []
    for where, row in json_rows(on_disk(Path(path))):
        for name in ("text", "answer"):
            if not isinstance(row.get(name), str):
                raise InputError(f"{where}: the field `{name}` must be a text.")
        unit = row.get("unit", "")
        if not isinstance(unit, str):
            raise InputError(f"{where}: the field `unit` must be a text, or be left out.")
        texts.append(MarkedText(row["text"], row["answer"], where, unit))
    if not texts:
        raise InputError(f"{path} holds no texts; each line must have `text` and `answer`.")
    return texts


@dataclass(frozen=True, slots=True)
class _KnockoutPlan:
    """Which layers and heads are cut: one window for every layer, around it."""

    windows: tuple[tuple[int, int], ...]
    heads: tuple[tuple[int, int], ...]  # none: all

    @classmethod
    def make(cls, model: HeadModel, options: KnockoutOptions) -> _KnockoutPlan:
        size = options.window or max(1, model.layers // LAYERS_PER_WINDOW)
        windows = []
        for layer in range(model.layers):
            start = max(0, layer - size // 2)
            windows.append((start, min(model.layers, layer - size // 2 + size)))
        named = [parse_head(name.strip()) for name in options.heads.split(",") if name.strip()]
        heads = existing_heads(named, model.layers, model.heads)
        return cls(tuple(windows), tuple(heads))


class KnockoutSession(TapSession):
    """A pass in which every example has attention cut in layers of its own.

    Parameters
    ----------
    sites : Sites
        The attention modules.
    cut : Tensor
        Bool `[example, query, key]`: what no longer attends to what.
    windows : Tensor
        First layer and layer after the last, `[example, 2]`.
    renormalised : Tensor
        Bool `[example]`: whether the remaining weights of a row are scaled up.
    heads : sequence of (int, int)
        Layers and heads that are cut; none: all.
    """

    def __init__(
        self,
        sites: Sites,
        cut: Tensor,
        windows: Tensor,
        renormalised: Tensor,
        heads: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.layer_count = LayerCount(sites)
        self.cut = cut
        self.windows = windows
        self.renormalised = renormalised
        self.heads = heads

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        layer = self.layer_count.of_call(call.module)
        if layer is None:
            return call.plain()
        key, value = call.repeated()
        weights, _ = call.weights(key, 0, call.sizes[2])
        is_cut_here = (self.windows[:, 0] <= layer) & (layer < self.windows[:, 1])
        hidden = self.cut[:, None] & is_cut_here[:, None, None, None]
        if self.heads:
            is_named = torch.zeros(weights.shape[1], dtype=torch.bool, device=weights.device)
            is_named[[head for place, head in self.heads if place == layer]] = True
            hidden = hidden & is_named[:, None, None]
        kept = weights.masked_fill(hidden, 0.0)
        # A learned sink keeps its mass: what is scaled up is what the tokens had.
        mass = weights.sum(-1, keepdim=True)
        left = kept.sum(-1, keepdim=True)
        scaled = kept * (mass / left.clamp(min=torch.finfo(kept.dtype).tiny))
        scaled = torch.where(left > 0, scaled, kept)
        kept = torch.where(self.renormalised[:, None, None, None], scaled, kept)
        output = kept.to(value.dtype) @ value
        return output.transpose(1, 2).contiguous(), None


@dataclass(frozen=True, slots=True, eq=False)
class CutText:
    """Cuts the attention of one text in every window, as a unit of work."""

    model: HeadModel
    options: KnockoutOptions
    plan: _KnockoutPlan

    @torch.no_grad()
    def __call__(self, marked: MarkedText) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        model = self.model
        plain, spans = without_marks(marked.text)
        if not spans:
            raise InputError(f"{marked.where}: '{marked.text}' has no marked span, [[...]].")
        row = model.encode(plain)
        answer = first_token(model, marked.answer, marked.where)
        stretches = token_stretches(model, plain, spans, len(row))
        cuts = torch.as_tensor(self._cuts(stretches, len(row)), device=model.device)
        batch = collate([row], model.pad_id, model.device)
        logits = model.forward(batch, logits=True).logits[0, -1].float()
        before = logits.softmax(-1)[answer]
        changes = np.full((len(cuts), 2, model.layers), np.nan)
        for span in range(len(cuts)):
            if not bool(cuts[span].any()):
                continue  # this text has no such token
            for renormalised in (0, 1):
                after = self._cut(batch.ids, answer, cuts[span], bool(renormalised))
                changes[span, renormalised] = ((after - before) / before).double().cpu().numpy()
        arrays = {
            "change": changes,
            "probability": np.array(float(before)),
            "right": np.array(bool(logits.argmax() == answer)),
        }
        return arrays, {}

    def _cuts(self, stretches: Sequence[range], n_tokens: int) -> np.ndarray:
        """Return which query loses sight of which key, by span, bool `[span, query, key]`."""
        is_marked = np.zeros(n_tokens, bool)
        for stretch in stretches[1::2]:
            is_marked[stretch.start : stretch.stop] = True
        is_first = np.zeros(n_tokens, bool)
        is_first[0] = not is_marked[0]
        is_last = np.zeros(n_tokens, bool)
        is_last[-1] = True
        keys = {"marked": is_marked, "first": is_first, "other": ~is_marked & ~is_first & ~is_last}
        cuts = np.zeros((len(SPANS), n_tokens, n_tokens), bool)
        for number, name in enumerate(SPANS):
            span = keys[name] & ~is_last
            rows = is_last
            if self.options.rows == "after" and span.any():
                rows = np.arange(n_tokens) > np.flatnonzero(span).max()
            cuts[number] = rows[:, None] & span[None]
        return cuts

    def _cut(self, ids: Tensor, answer: int, cut: Tensor, renormalised: bool) -> Tensor:
        """Return the probability of the answer with attention cut in each window, `[layer]`."""
        model = self.model
        windows = torch.tensor(self.plan.windows, device=ids.device)
        probabilities = []
        for start in range(0, len(windows), self.options.batch):
            part = windows[start : start + self.options.batch]
            copies = ids.expand(len(part), -1)
            session = KnockoutSession(
                model.sites,
                cut.expand(len(part), -1, -1),
                part,
                torch.full((len(part),), renormalised, device=ids.device),
                self.plan.heads,
            )
            mask = torch.ones_like(copies, dtype=torch.bool)
            with model.evaluating(), use_session(session):
                output = model.run(copies, mask, torch.zeros_like(copies), logits=True)
            probabilities.append(output.logits[:, -1].float().softmax(-1)[:, answer])
        return torch.cat(probabilities)


def _dataset(
    model: HeadModel,
    plan: _KnockoutPlan,
    parts: Sequence[dict[str, np.ndarray]],
    units: np.ndarray,
) -> xr.Dataset:
    """Return means over the texts whose answer the model predicts, with intervals and tests over
    `units[text]`."""
    is_right = np.array([bool(part["right"]) for part in parts])
    changes = np.stack([part["change"] for part in parts])[is_right]
    probabilities = np.array([float(part["probability"]) for part in parts])[is_right]
    count = (~np.isnan(changes)).sum(0)
    units = units[is_right]
    over_units = mean_over_units(changes, units)
    mean = over_units.value
    low, high = over_units.interval()
    p = np.full(mean.shape, np.nan)
    for span in range(len(SPANS)):
        is_present = ~np.isnan(changes[:, span]).any((1, 2))
        values = changes[is_present, span]
        if is_present.sum() >= MIN_TEXTS and len(np.unique(units[is_present])) > 1:
            above = mean_over_units(values, units[is_present]).p_above()
            below = mean_over_units(-values, units[is_present]).p_above()
            p[span] = np.minimum(1, 2 * np.minimum(above, below))
    dims = ("span", "renormalised", "layer")
    variables = {
        "change": (dims, mean, {"long_name": "relative change of the answer's probability"}),
        "change_n": (dims, count),
        "change_low": (dims, low),
        "change_high": (dims, high),
        "change_p": (dims, p),
        "change_p_adjusted": (dims, holm(p)),
    }
    first_window = plan.windows[len(plan.windows) // 2]
    attributes = {
        "title": "Knockout: what the answer loses when attention to a span is cut",
        "paper": reference("geva2023").short,
        "citation": reference("geva2023").citation,
        "texts": int(is_right.sum()),
        "right": float(is_right.mean()),
        "all_texts": len(parts),
        "probability": float(probabilities.mean()) if len(probabilities) else float("nan"),
        "window": first_window[1] - first_window[0],
        "note": "",
    }
    if is_right.sum() < MIN_TEXTS:
        attributes["note"] = (
            f"The model predicts the answer of {int(is_right.sum())} texts; with fewer than "
            f"{MIN_TEXTS} nothing is tested."
        )
    elif len(np.unique(units)) < 2:
        attributes["note"] = (
            "All texts whose answer the model predicts have the same unit; nothing is tested."
        )
    coords = {
        "span": list(SPANS),
        "renormalised": [False, True],
        "layer": np.arange(model.layers),
    }
    return xr.Dataset(variables, coords, attributes)
