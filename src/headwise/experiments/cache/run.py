"""Which key/value heads need the whole context: rank them by what their output loses without distant
tokens, and judge the choice on other texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.analyses.induction.sequences import OffsetWatcher, make_sequences
from headwise.analyses.retrieval.trials import Trial, make_trial, run_trial
from headwise.atlas import Atlas
from headwise.core.errors import InputError, ModelError
from headwise.core.options import part_of, recorded_options, takes_options
from headwise.experiments.cache.options import SHARES, CacheOptions
from headwise.experiments.cache.result import CacheMeasurements, cache_dataset
from headwise.models import HeadModel
from headwise.models.kv_cache import CachePattern
from headwise.models.options import ModelOptions
from headwise.models.short_context import LongTextModel, by_group, sliding_layers
from headwise.run.job import Job, Progress, no_progress, software_versions
from headwise.text import Corpus, open_corpus
from headwise.text.encode import Batch, collate
from headwise.text.synthetic import synthetic_row

ERROR = "output error"
UNIFORM = "uniform window"
INDUCTION = "induction"
RETRIEVAL = "retrieval"
INDUCTION_SEQUENCES = 4
INDUCTION_LENGTH = 64


@takes_options(CacheOptions)
def cache(
    model: HeadModel | str | Path | None,
    corpus: str | Path | Corpus | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: CacheOptions,
) -> xr.Dataset:
    """Find which key/value heads need the whole context, and what a smaller cache costs.

    Parameters
    ----------
    model : HeadModel, str or Path
        A causal language model: a hub name, a folder or an open model.
    corpus : str, Path or Corpus, optional
        Long texts; texts that are too short are joined. By default the built-in running text.
    out : str or Path, optional
        A NetCDF file for the result. An interrupted call with `out` resumes: repeat it.
    overwrite : bool, default False
        Replace an existing file.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : CacheOptions
        Each option is also a keyword.

    Returns
    -------
    Dataset
        By key/value head: `distant`, the share of attention beyond the first `sink` and the last
        `window` tokens; `output_error`, what the output loses when it is cut (relative norm); both
        the largest of the group's heads, means over texts with 95 % intervals; `whole`, the
        recommended pattern. By `ranking` and `share` kept whole: `loss_rise` (nats per token) and
        `divergence` on texts that did not rank the heads, `needle`, the share of a needle's tokens
        that is still predicted; `bytes_per_token`. `random_loss_rise[draw]` at the recommended
        share. `pattern_of` makes the pattern of `HeadwiseCache` from it.
    """
    if out is None:
        with Job.in_folder(None, progress=progress) as job:
            return cache_in_job(job, model, corpus, options)["cache"]
    with Job.for_file(Path(out), overwrite=overwrite, progress=progress) as job:
        result = cache_in_job(job, model, corpus, options)
        job.write(result.to_bytes())
        job.finish()
    return result["cache"]


def pattern_of(dataset: xr.Dataset) -> CachePattern:
    """Return the recommended pattern of a result of `cache`, for `HeadwiseCache`."""
    facts = dataset.attrs
    sliding = {}
    for layer, size in zip(
        np.atleast_1d(facts["sliding_layers"]), np.atleast_1d(facts["sliding_sizes"]), strict=True
    ):
        sliding[int(layer)] = int(size)
    return CachePattern(
        whole=dataset["whole"].values.astype(bool),
        sink=int(facts["sink"]),
        window=int(facts["window"]),
        sliding=sliding,
        scores=dataset["output_error"].values,
        facts={
            "model": facts.get("model", ""),
            "loss_rise": float(facts["recommended_loss_rise"]),
            "texts": int(facts["judging_texts"]),
            "tokens": int(facts["length"]),
        },
    )


def cache_in_job(
    job: Job,
    model: HeadModel | str | Path | None,
    corpus: str | Path | Corpus | None,
    options: CacheOptions,
) -> Atlas:
    """Open a model and texts, and measure within a job; see `cache`."""
    if not isinstance(model, HeadModel):
        model = part_of(options, ModelOptions).open(model)
    sliding = _check_model(model)
    opened = open_corpus(corpus, prose=True)
    texts = long_texts(model, opened, options.documents, options.length)
    digest = sha256(b"".join(text.tobytes() for text in texts)).hexdigest()
    job.begin(
        {
            "model": model.identity(),
            "device": model.device.type,
            "texts": digest,
            "options": recorded_options(options),
        }
    )
    study = CacheStudy(job, model, texts, options, sliding)
    dataset = study.run()
    provenance = {
        **software_versions(),
        "model": model.identity(),
        "corpus": {"examples": len(texts), "name": opened.name},
        "cache": recorded_options(options),
    }
    return Atlas({"cache": dataset}, provenance)


def _check_model(model: HeadModel) -> dict[int, int]:
    """Return the sliding layers of a model; reject models that have no such cache."""
    if model.encoder_part is not None:
        raise ModelError(
            f"{model.name} is an encoder-decoder: its decoder's cache also holds the source; "
            "choose a model with a decoder alone."
        )
    if model.lm_kind != "causal":
        raise ModelError(
            f"{model.name} does not generate text token by token, so it keeps no cache; choose a "
            "decoder."
        )
    sliding = sliding_layers(model)
    if len(sliding) == model.layers:
        raise ModelError(
            f"All layers of {model.name} see a sliding window only: no head keeps the whole "
            "context."
        )
    return sliding


def long_texts(
    model: HeadModel, corpus: Iterable[Any], count: int, length: int
) -> list[np.ndarray]:
    """Return up to `count` texts of exactly `length` tokens; examples of a corpus are joined until
    they are long enough, and documents never share a text unless they are too short."""
    if length > model.max_length:
        raise InputError(
            f"{model.name} takes at most {model.max_length} tokens; lower `length`.",
            option="length",
        )
    beginning = [] if model.encoder.cls_id is None else [model.encoder.cls_id]
    texts: list[np.ndarray] = []
    ids: list[int] = list(beginning)
    document: str | None = None
    for example in corpus:
        if example.document != document and len(ids) < length // 2:
            # Too little was left of the last document: it is not continued by another.
            ids = list(beginning)
        document = example.document
        text = example.text if example.text is not None else " ".join(example.all_words)
        encoding = model.tokenizer(text.strip() + "\n", add_special_tokens=False, verbose=False)
        ids += encoding["input_ids"]
        if len(ids) >= length:
            texts.append(np.array(ids[:length]))
            ids = list(beginning)
        if len(texts) == count:
            return texts
    if len(texts) < 4:
        raise InputError(
            f"The corpus gives {len(texts)} texts of {length} tokens; at least 4 are needed: give a "
            "longer corpus, or lower `length`.",
            option="length",
        )
    return texts


@dataclass(frozen=True, slots=True, eq=False)
class MeasureText:
    """Measures distant attention on one text, as a unit of work."""

    long_model: LongTextModel

    def __call__(self, ids: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        mass, error, rows = self.long_model.distant(as_batch(self.long_model.model, ids))
        return {"distant": mass, "error": error, "rows": np.array(rows)}, {}


@dataclass(frozen=True, slots=True, eq=False)
class JudgeText:
    """Compares a model with short heads with the intact one on one text, for several patterns."""

    long_model: LongTextModel
    patterns: Sequence[tuple[np.ndarray, int]]  # whole heads, window
    progress: Progress = no_progress

    def __reduce__(self) -> tuple[Any, ...]:
        return JudgeText, (self.long_model, self.patterns)

    def __call__(self, ids: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        long_model = self.long_model
        batch = as_batch(long_model.model, ids)
        everything = np.ones((long_model.model.layers, long_model.model.kv_heads), bool)
        intact = long_model.hidden(batch, long_model.short(everything))
        first = long_model.sink + long_model.window
        rises = []
        divergences = []
        for number, (whole, window) in enumerate(self.patterns):
            changed = long_model.hidden(batch, long_model.short(whole, window))
            before, after, divergence = long_model.compare(batch, intact, changed, first)
            rises.append(after - before)
            divergences.append(divergence)
            self.progress("patterns", number + 1, len(self.patterns))
        return {"rise": np.array(rises), "divergence": np.array(divergences)}, {}


@dataclass(frozen=True, slots=True, eq=False)
class FindNeedle:
    """Returns the share of a needle's tokens that is predicted with some heads short."""

    long_model: LongTextModel
    patterns: Sequence[tuple[np.ndarray, int]]

    @torch.no_grad()
    def __call__(self, trial: Trial) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        model = self.long_model.model
        ids = np.array([*trial.prompt, *trial.needle[:-1]])
        batch = as_batch(model, ids)
        shares = []
        for whole, window in self.patterns:
            hidden = self.long_model.hidden(batch, self.long_model.short(whole, window))
            logits = self.long_model.logits(hidden[len(trial.prompt) - 1 :])
            predicted = logits.argmax(-1).tolist()
            hits = [token == wanted for token, wanted in zip(predicted, trial.needle, strict=True)]
            shares.append(float(np.mean(hits)))
        return {"found": np.array(shares)}, {}


def as_batch(model: HeadModel, ids: np.ndarray) -> Batch:
    """Return token ids as a batch of one text."""
    row = synthetic_row(model.encoder, [int(token) for token in ids])
    return collate([row], model.pad_id, model.device)


class CacheStudy:
    """The steps of one study; each is kept as checkpoints.

    Parameters
    ----------
    job : Job
        A job that has begun.
    model : HeadModel
        A causal language model.
    texts : sequence of array
        Token ids, all equally long; every second one ranks heads, the others judge.
    options : CacheOptions
        See there.
    sliding : mapping of int to int
        The layers with a sliding window; their heads have no choice.
    """

    def __init__(
        self,
        job: Job,
        model: HeadModel,
        texts: Sequence[np.ndarray],
        options: CacheOptions,
        sliding: dict[int, int],
    ) -> None:
        self.job = job
        self.model = model
        self.options = options
        self.sliding = sliding
        self.ranking_texts = list(texts[::2])
        self.judging_texts = list(texts[1::2])
        self.long_model = LongTextModel(model, options.sink, options.window)
        self.free = np.ones((model.layers, model.kv_heads), bool)
        self.free[list(sliding)] = False

    def run(self) -> xr.Dataset:
        """Return the result; see `cache`."""
        texts = [*self.ranking_texts, *self.judging_texts]
        measured = list(self.job.each("texts", MeasureText(self.long_model), texts))
        kv_heads = self.model.kv_heads
        distant = by_group(np.stack([part["distant"] for part in measured]), kv_heads)
        error = by_group(np.stack([part["error"] for part in measured]), kv_heads)
        rankings = {ERROR: error[: len(self.ranking_texts)].mean(0)}
        trials = self._trials()
        if self.options.recipes:
            rankings[INDUCTION] = self._induction()
            retrieval = self._retrieval(trials)
            if retrieval is not None:
                rankings[RETRIEVAL] = retrieval
        shares = sorted({*SHARES} if self.options.keep is None else {*SHARES, self.options.keep})
        patterns: dict[tuple[str, float], tuple[np.ndarray, int]] = {}
        for share in shares:
            for name, scores in rankings.items():
                patterns[name, share] = (self.choose(scores, share), self.options.window)
            patterns[UNIFORM, share] = self._uniform(share)
        judged = self._judge("judged", list(patterns.values()))
        rises = judged["rise"]
        recommended = self._recommend(shares, rises, list(patterns))
        random = self._random_patterns(recommended)
        drawn = self._judge("random", random) if random else None
        found = self._find_needles(trials, [*patterns.values(), *random])
        return cache_dataset(
            CacheMeasurements(
                model=self.model,
                options=self.options,
                sliding=self.sliding,
                distant=distant,
                error=error,
                n_ranking_texts=len(self.ranking_texts),
                patterns=patterns,
                rises=rises,
                divergences=judged["divergence"],
                recommended=recommended,
                random_rises=None if drawn is None else drawn["rise"],
                found=found,
                rankings=rankings,
                length=len(texts[0]),
            )
        )

    def choose(self, scores: np.ndarray, share: float) -> np.ndarray:
        """Return the key/value heads with the highest scores, as many as the share says; layers with
        a sliding window count as whole."""
        whole = ~self.free
        count = round(share * int(self.free.sum()))
        order = np.argsort(-np.where(self.free, scores, -np.inf), axis=None, kind="stable")
        whole.flat[order[:count]] = True
        return whole

    def _uniform(self, share: float) -> tuple[np.ndarray, int]:
        """Return all heads short, with a window that takes as much memory as this share of whole
        heads."""
        length = len(self.judging_texts[0])
        short = self.options.sink + self.options.window
        mean_tokens = share * length + (1 - share) * short
        return ~self.free, max(1, round(mean_tokens) - self.options.sink)

    def _judge(
        self, name: str, patterns: Sequence[tuple[np.ndarray, int]]
    ) -> dict[str, np.ndarray]:
        """Return rises of the loss and divergences, `[text, pattern]`."""
        judge_text = JudgeText(self.long_model, patterns, self.job.progress)
        parts = list(self.job.each(name, judge_text, self.judging_texts))
        return {key: np.stack([part[key] for part in parts]) for key in parts[0]}

    def _recommend(
        self, shares: Sequence[float], rises: np.ndarray, names: Sequence[tuple[str, float]]
    ) -> float:
        """Return the smallest share whose loss rises by no more than is acceptable, or the share
        that was asked for; 1 if none of those tried is good enough."""
        if self.options.keep is not None:
            return self.options.keep
        for share in shares:
            rise = rises[:, names.index((ERROR, share))].mean()
            if rise <= self.options.at_most:
                return share
        return 1.0

    def _random_patterns(self, share: float) -> list[tuple[np.ndarray, int]]:
        if share in (0.0, 1.0):
            return []  # there is nothing to choose
        random = np.random.default_rng(self.options.seed)
        patterns = []
        for _ in range(self.options.random):
            scores = random.random(self.free.shape)
            patterns.append((self.choose(scores, share), self.options.window))
        return patterns

    def _induction(self) -> np.ndarray:
        """Return the induction score of each key/value head (RazorAttention's recipe)."""

        def measure() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
            repeated = make_sequences(
                self.model, INDUCTION_SEQUENCES, INDUCTION_LENGTH, self.options.seed
            )
            batch = collate(repeated.rows, self.model.pad_id, self.model.device)
            watcher = OffsetWatcher(repeated)
            self.model.forward(batch, watcher)
            layers = [watcher.profile[layer] for layer in range(self.model.layers)]
            # The token after the earlier occurrence.
            score = torch.stack(layers)[..., repeated.length - 1].mean(1)
            return {"score": score.cpu().numpy()}, {}

        score = self.job.checkpoint("induction", measure).arrays["score"]
        return by_group(score, self.model.kv_heads)

    def _trials(self) -> list[Trial]:
        """Return needles in unrelated text, each at another depth beyond the window."""
        if not self.options.needles:
            return []
        hay: list[int] = []
        for text in self.judging_texts:
            hay += [int(token) for token in text[1:]]
        length = len(self.judging_texts[0])
        trials = []
        for number in range(self.options.needles):
            depth = 0.1 + 0.5 * number / max(self.options.needles - 1, 1)
            trials.append(make_trial(self.model, hay, length, depth, number))
        return trials

    def _retrieval(self, trials: Sequence[Trial]) -> np.ndarray | None:
        """Return the retrieval score of each key/value head (Wu et al.; HeadKV's recipe); None if
        the model passes no trial."""
        scores = []
        for part in self.job.each("trials", _RunTrial(self.model), list(trials)):
            if not np.isnan(part["score"]).any():
                scores.append(part["score"])
        if not scores:
            return None
        return by_group(np.mean(scores, 0), self.model.kv_heads)

    def _find_needles(
        self, trials: Sequence[Trial], patterns: Sequence[tuple[np.ndarray, int]]
    ) -> np.ndarray | None:
        """Return the share of each needle that is predicted, `[needle, pattern]`, the intact model
        first."""
        if not trials:
            return None
        everything = (np.ones_like(self.free), self.options.window)
        find = FindNeedle(self.long_model, [everything, *patterns])
        return np.stack([part["found"] for part in self.job.each("needles", find, list(trials))])


@dataclass(frozen=True, slots=True, eq=False)
class _RunTrial:
    """Asks for one needle, as a unit of work."""

    model: HeadModel

    def __call__(self, trial: Trial) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return run_trial(self.model, trial)
