"""Split the scores of a head over the components that wrote query and key: one score of a text, or
on a corpus the rows where the head's role fires against the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.atlas import Atlas
from headwise.core.errors import InputError, ParameterError
from headwise.core.labels import existing_heads
from headwise.core.options import part_of, recorded_options, takes_options
from headwise.experiments.why.options import WhyOptions
from headwise.experiments.why.result import ROWS, CorpusMargins, margins_dataset
from headwise.models import HeadModel
from headwise.models.options import ModelOptions
from headwise.models.score_attribution import ScoreAttribution, ScoreParts, token_position
from headwise.models.statistics.request import MIN_MASS_WITHOUT_FIRST
from headwise.run.job import Job, Progress, no_progress, provenance_of
from headwise.text import Corpus, Spec, open_corpus
from headwise.text.encode import Encoded, documents_of

# The role of a head fires in a row whose most attended token has this share of the attention, the
# first token excluded.
FIRING_SHARE = 0.5
# The second token sees one token besides the first, itself: its role would fire whatever it does.
FIRST_ROW = 2


@takes_options(WhyOptions)
def why(
    head: str,
    model: HeadModel | str | Path | None,
    corpus: Corpus | Spec | str | Path | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: WhyOptions,
) -> xr.Dataset:
    """Say why a head attends where it does: split its scores over the components that wrote the
    residual stream at the query and at the key.

    With `text`, one score is split. Otherwise the scores of a corpus are: each token's score with
    the token that it attends to most (the first token excluded). Rows in which that token has at
    least half of the attention that is not on the first token are those where the head's role
    fires; their mean margins are compared with those of the other rows.

    Parameters
    ----------
    head : str
        The head, like `L5H1`.
    model : HeadModel, str or Path
        A causal language model: a hub name, a folder or an open model.
    corpus : Corpus, str, Path or Spec, optional
        Without `text`; by default the built-in running text.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    overwrite : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : WhyOptions
        Each option is also a keyword.

    Returns
    -------
    Dataset
        Of a text, what `HeadModel.why` returns. Of a corpus: `query_margin` and `key_margin`
        `[rows, component]`, what each component adds to the score by what it wrote at the query and
        at the key, where the role fires (`firing`) and elsewhere (`other`): means over examples
        with `_n` and 95 % interval; `query_difference` and `key_difference` `[component]`, firing
        less other rows of the same example, with `_n`, interval, `_p`, `_p_adjusted` (two-sided,
        corrected over components and sides by Holm; NaN below 8 examples that have both).
        Where every example has a document, intervals and tests are over documents, and 8 of
        these are needed.

    Examples
    --------
    >>> from headwise.testing import planted_decoder
    >>> decoder = planted_decoder()
    >>> with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
    ...     result = why("L1H0", model, text="word1 word2 word3 word4 word2", key="word3")
    >>> result["key_margin"].idxmax().item()  # the previous-token head
    'L0H0'
    """
    with Job.for_call(out, overwrite=overwrite, progress=progress) as job:
        result = why_in_job(job, head, model, corpus, options)
        job.finish_with(result)
    return result["why"]


def why_in_job(
    job: Job,
    head: str,
    model: HeadModel | str | Path | None,
    corpus: Corpus | Spec | str | Path | None,
    options: WhyOptions,
) -> Atlas:
    """Open a model and split the scores of a head within a job; see `why`."""
    if options.text and corpus is not None:
        raise ParameterError("Give a `text` or a corpus, not both.")
    model = part_of(options, ModelOptions).open(model)
    ((layer, number),) = existing_heads([head], model.layers, model.heads)
    attribution = ScoreAttribution(model)
    identity = {
        "model": model.identity(),
        "device": model.device.type,
        "head": [layer, number],
        "options": recorded_options(options),
    }
    if options.text:
        job.begin(identity)
        query, key = _named_tokens(attribution, layer, number, options)
        dataset = model.why(options.text, (layer, number), query, key)
        examples: dict[str, Any] = {"examples": 1}
    else:
        opened = open_corpus(
            corpus, tokenizer=model.tokenizer, limit=options.limit, seed=options.seed, prose=True
        )
        encoded = _encoded_rows(model, opened)
        rows = [row.ids[: min(options.tokens, model.max_length)] for row in encoded]
        documents = documents_of(encoded)
        digest = sha256(b"".join(row.tobytes() for row in rows)).hexdigest()
        job.begin({**identity, "rows": digest, "documents": documents})
        measure = MeasureMargins(attribution, layer, number)
        parts = list(job.each("examples", measure, rows))
        components = attribution.component_names(layer)
        dataset = margins_dataset(_stacked(parts, documents), components, (layer, number))
        examples = {"examples": len(rows), "name": opened.name}
    return Atlas({"why": dataset}, provenance_of("why", model, examples, options))


def _named_tokens(
    attribution: ScoreAttribution, layer: int, head: int, options: WhyOptions
) -> tuple[str | int, str | int]:
    """Return query and key as `HeadModel.why` takes them, with the defaults in place."""
    batch = attribution.graph.model.one_input(options.text)
    query: str | int = _as_position(options.query) if options.query else -1
    if options.key:
        return query, _as_position(options.key)
    row = token_position(batch, query, "query")
    weights = attribution.parts(batch, layer, head).weights[row].clone()
    if row > 0:
        weights[0] = 0.0
    return query, int(weights.argmax())


def _as_position(token: str) -> str | int:
    """Return a number as a position; a token that is a number is written with its space, " 5"."""
    digits = token.removeprefix("-")
    return int(token) if digits.isdigit() else token


def _encoded_rows(model: HeadModel, corpus: Corpus) -> list[Encoded]:
    """Return the examples that are long enough, as tokens. Callers cut them: a decoder's scores do
    not depend on what follows."""
    rows = []
    for index, example in enumerate(corpus):
        row = model.encoder.encode(example, index)
        if row is not None and len(row) > FIRST_ROW:
            rows.append(row)
    if not rows:
        raise InputError(f"The corpus holds no example of more than {FIRST_ROW} tokens.")
    return rows


def firing_rows(parts: ScoreParts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, the token that each attends to most, and whether the head's role fires there.

    A row that leaves next to nothing for tokens other than the first does not fire: that is how
    many heads are idle."""
    weights = parts.weights[FIRST_ROW:].clone()
    weights[:, 0] = 0.0
    without_first = weights.sum(-1)
    largest, keys = weights.max(-1)
    rows = torch.arange(FIRST_ROW, len(parts.weights), device=weights.device)
    fires = largest >= FIRING_SHARE * without_first
    return rows, keys, fires & (without_first > MIN_MASS_WITHOUT_FIRST)


@dataclass(frozen=True, slots=True, eq=False)
class MeasureMargins:
    """Measures mean margins on one example, as a unit of work."""

    attribution: ScoreAttribution
    layer: int
    head: int

    def __call__(self, ids: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        batch = self.attribution.graph.model.batch(torch.as_tensor(ids)[None])
        parts = self.attribution.parts(batch, self.layer, self.head)
        rows, keys, fires = firing_rows(parts)
        shape = (len(ROWS), len(parts.components))
        arrays = {
            "query": np.full(shape, np.nan),
            "key": np.full(shape, np.nan),
            "score": np.full(len(ROWS), np.nan),
            "count": np.array([int(fires.sum()), int((~fires).sum())]),
        }
        for place, chosen in enumerate((fires, ~fires)):
            if not bool(chosen.any()):
                continue
            query = rows[chosen]
            key = keys[chosen]
            arrays["query"][place] = _mean(parts.query_margins(query, key))
            arrays["key"][place] = _mean(parts.key_margins(query, key))
            arrays["score"][place] = _mean(parts.scores[query, key])
        return arrays, {}


def _mean(values: torch.Tensor) -> np.ndarray:
    """Return the mean over rows."""
    mean: np.ndarray = values.double().mean(0).cpu().numpy()
    return mean


def _stacked(
    parts: Sequence[dict[str, np.ndarray]], documents: Sequence[int] | None
) -> CorpusMargins:
    return CorpusMargins(
        query=np.stack([part["query"] for part in parts]),
        key=np.stack([part["key"] for part in parts]),
        score=np.stack([part["score"] for part in parts]),
        count=np.stack([part["count"] for part in parts]),
        units=documents,
    )
