"""Which key/value heads need the whole context: rank them by what their output loses without distant
tokens, and judge the choice on other texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from headwise.analyses.induction.sequences import OffsetWatcher, make_sequences
from headwise.analyses.retrieval.trials import (
    PASSED,
    Trial,
    make_trial,
    max_answer_tokens,
    mean_needle_tokens,
    retrieval_scores,
)
from headwise.atlas import Atlas
from headwise.core.errors import InputError, ModelError
from headwise.core.options import part_of, recorded_options, takes_options
from headwise.experiments.cache.effect import effects_on_prediction
from headwise.experiments.cache.gates import learn_cache_gates
from headwise.experiments.cache.options import (
    EFFECT,
    ERROR,
    GATES,
    INDUCTION,
    RANKINGS,
    RETRIEVAL,
    CacheOptions,
)
from headwise.experiments.cache.result import (
    UNIFORM,
    CacheMeasurements,
    cache_dataset,
    describe_recommendation,
    score_name,
)
from headwise.models import HeadModel
from headwise.models.kv_cache import CachePattern
from headwise.models.options import ModelOptions
from headwise.models.short_context import LongTextModel, by_group, sliding_layers
from headwise.run.job import Job, Progress, no_progress, provenance_of
from headwise.text import Corpus, open_corpus
from headwise.text.encode import Batch, collate
from headwise.text.synthetic import synthetic_row

MIN_TEXTS = 4  # two rank heads, two judge
GATES_OPEN = 0.25  # the share of gates that may stay open, unless `keep` says another
INDUCTION_SEQUENCES = 8
INDUCTION_LENGTH = 64
COMPARED_AT_ONCE = 8  # patterns whose last hidden states are in memory
Pattern = tuple[np.ndarray, int]  # whole heads, window of the others


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
        the largest of the group's heads, means over the texts that rank with 95 % intervals
        (`head_distant`, `head_output_error`: of each query head); `score_...`, what each ranking
        goes by; `whole`, the recommended pattern; `needs_context`, its whole heads where cutting
        them too raises the loss and random choices do worse (of random weights none). By `ranking`
        (the one that makes the pattern first) and `share` kept whole: `loss_rise` (nats per token)
        and `divergence` on texts that did not rank the heads, `needle`, the share of a needle's
        tokens that is still predicted; `bytes_per_token`. `random_loss_rise[draw]`,
        `random_needle[draw]` of random choices at `compared_share` (the recommended one, unless it
        leaves nothing to choose), with one-sided p-values as attributes: `random_p`,
        `random_needle_p`, and against the uniform window `uniform_p`, `uniform_needle_p`.
        `pattern_of` makes the pattern of `HeadwiseCache` from it.
    """
    with Job.for_call(out, overwrite=overwrite, progress=progress) as job:
        result = cache_in_job(job, model, corpus, options)
        job.finish_with(result)
    return result["cache"]


def pattern_of(dataset: xr.Dataset) -> CachePattern:
    """Return the recommended pattern of a result of `cache`, for `HeadwiseCache`."""
    facts = dataset.attrs
    sliding = {}
    for layer, size in zip(
        np.atleast_1d(facts["sliding_layers"]), np.atleast_1d(facts["sliding_sizes"]), strict=True
    ):
        sliding[int(layer)] = int(size)
    ranking = str(dataset["ranking"].values[0])
    return CachePattern(
        whole=dataset["whole"].values.astype(bool),
        sink=int(facts["sink"]),
        window=int(facts["window"]),
        sliding=sliding,
        scores=dataset[score_name(ranking)].values,
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
    model = part_of(options, ModelOptions).open(model)
    sliding = _check_model(model)
    opened = open_corpus(corpus, prose=True)
    long = long_texts(model, opened, options.documents, options.length)
    digest = sha256(b"".join(text.tobytes() for text in long.texts)).hexdigest()
    job.begin(
        {
            "model": model.identity(),
            "device": model.device.type,
            "texts": digest,
            "options": recorded_options(options),
        }
    )
    study = CacheStudy(job, model, long.texts, options, sliding)
    dataset = study.run()
    dataset.attrs["documents_apart"] = int(long.documents_apart)
    dataset.attrs["summary"] = "\n\n".join(describe_recommendation(dataset))
    corpus_facts = {"examples": len(long.texts), "name": opened.name}
    return Atlas({"cache": dataset}, provenance_of("cache", model, corpus_facts, options))


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


@dataclass(frozen=True, slots=True, eq=False)
class LongTexts:
    """Texts of equal length, as token ids.

    Attributes
    ----------
    texts
        One array of ids each.
    documents_apart
        Whether no document is in two of them.
    """

    texts: list[np.ndarray]
    documents_apart: bool


def long_texts(model: HeadModel, corpus: Iterable[Any], count: int, length: int) -> LongTexts:
    """Return up to `count` texts of exactly `length` tokens, no document in two of them.

    Examples are joined until a text is long enough; what is left of its last document is skipped. A
    text has at least half of its tokens from its first document, if the corpus has four such texts.
    Otherwise short documents are joined, too; if even that gives fewer than four, several texts are
    taken from one document."""
    if length > model.max_length:
        raise InputError(
            f"{model.name} takes at most {model.max_length} tokens; lower `length`.",
            option="length",
        )
    texts: list[np.ndarray] = []
    for documents_apart, shortest in ((True, length // 2), (True, 0), (False, 0)):
        joined = _joined_texts(model, corpus, length, documents_apart, shortest)
        texts = list(islice(joined, count))
        if len(texts) >= MIN_TEXTS:
            return LongTexts(texts, documents_apart)
    raise InputError(
        f"The corpus gives {len(texts)} texts of {length} tokens; at least {MIN_TEXTS} are needed: "
        "give a longer corpus, or lower `length`.",
        option="length",
    )


def _joined_texts(
    model: HeadModel, corpus: Iterable[Any], length: int, documents_apart: bool, shortest: int
) -> Iterator[np.ndarray]:
    """Yield texts of the examples of a corpus, joined and cut to a length. A document of fewer than
    `shortest` tokens is not continued by another; examples without a document are always joined."""
    beginning = [] if model.encoder.cls_id is None else [model.encoder.cls_id]
    ids: list[int] = list(beginning)
    previous: str | None = None
    documents_in_text: set[str] = set()
    used: set[str] = set()
    for example in corpus:
        document = example.document
        if documents_apart and document in used:
            continue
        if document != previous and len(ids) < shortest:
            ids = list(beginning)
            documents_in_text.clear()
        previous = document
        if document is not None:
            documents_in_text.add(document)
        text = example.text if example.text is not None else " ".join(example.all_words)
        encoding = model.tokenizer(text.strip() + "\n", add_special_tokens=False, verbose=False)
        ids += encoding["input_ids"]
        if len(ids) >= length:
            yield np.array(ids[:length])
            ids = list(beginning)
            used |= documents_in_text
            documents_in_text.clear()


@dataclass(frozen=True, slots=True, eq=False)
class MeasureText:
    """Measures distant attention on one text, as a unit of work."""

    long_model: LongTextModel

    def __call__(self, ids: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        mass, error, rows = self.long_model.distant(as_batch(self.long_model.model, ids))
        return {"distant": mass, "error": error, "rows": np.array(rows)}, {}


@dataclass(frozen=True, slots=True, eq=False)
class MeasureEffect:
    """Measures what each key/value head contributes to the divergence of one text when all are
    short, as a unit of work."""

    long_model: LongTextModel
    free: np.ndarray

    def __call__(self, ids: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        batch = as_batch(self.long_model.model, ids)
        return {"effect": effects_on_prediction(self.long_model, batch, self.free)}, {}


@dataclass(frozen=True, slots=True, eq=False)
class JudgeText:
    """Compares a model with short heads with the intact one on one text, for several patterns."""

    long_model: LongTextModel
    patterns: Sequence[Pattern]
    progress: Progress = no_progress

    def __reduce__(self) -> tuple[Any, ...]:
        return JudgeText, (self.long_model, self.patterns)

    def __call__(self, ids: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        long_model = self.long_model
        batch = as_batch(long_model.model, ids)
        everything = np.ones((long_model.model.layers, long_model.model.kv_heads), bool)
        intact = long_model.hidden(batch, long_model.short(everything))
        first = long_model.sink + long_model.window
        rises: list[float] = []
        divergences: list[float] = []
        for start in range(0, len(self.patterns), COMPARED_AT_ONCE):
            changed = []
            for whole, window in self.patterns[start : start + COMPARED_AT_ONCE]:
                changed.append(long_model.hidden(batch, long_model.short(whole, window)))
                self.progress("patterns", start + len(changed), len(self.patterns))
            before, after, divergence = long_model.compare(batch, intact, changed, first)
            rises += (after - before).tolist()
            divergences += divergence.tolist()
        gain = long_model.gain(batch, intact, first)
        arrays = {
            "rise": np.array(rises),
            "divergence": np.array(divergences),
            "gain": np.array([gain]),
        }
        return arrays, {}


@dataclass(frozen=True, slots=True, eq=False)
class FindNeedle:
    """Returns the share of a needle's tokens that is predicted with some heads short."""

    long_model: LongTextModel
    patterns: Sequence[Pattern]

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


@dataclass(frozen=True, slots=True, eq=False)
class AskForNeedle:
    """Returns the retrieval score of every head on one needle: NaN if the model does not find it.

    Wu et al. let the model write its answer. Here the needle's own tokens are read one by one and
    each next token is predicted, in a single pass that forms no weights but those of the answer: a
    pass over thousands of tokens fits a small machine."""

    long_model: LongTextModel

    @torch.no_grad()
    def __call__(self, trial: Trial) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        model = self.long_model.model
        ids = np.array([*trial.prompt, *trial.needle[:-1]])
        first = len(trial.prompt) - 1
        hidden, attended = self.long_model.attended_keys(as_batch(model, ids), first)
        predicted = self.long_model.logits(hidden[first:]).argmax(-1).tolist()
        hits = [token == wanted for token, wanted in zip(predicted, trial.needle, strict=True)]
        score = np.full((model.layers, model.heads), np.nan)
        if np.mean(hits) >= PASSED:
            score = retrieval_scores(trial, predicted, attended)
        return {"score": score, "emitted": np.array(np.mean(hits))}, {}


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
        # First of all: texts that are too short for a needle are no news after hours of work.
        trials = self.trials(self.judging_texts)
        distant, error = self.measure_distant()
        rankings = self._chosen_first(self.rankings(error))
        shares = {*self.options.shares}
        if self.options.keep is not None:
            shares.add(self.options.keep)
        patterns: dict[tuple[str, float], Pattern] = {}
        for share in sorted(shares):
            for name, scores in rankings.items():
                patterns[name, share] = (self.choose(scores.mean(0), share), self.options.window)
            patterns[UNIFORM, share] = self.uniform(share)
        judged = self.judge("judged", list(patterns.values()), self.judging_texts)
        rises = judged["rise"]
        recommended = self._recommend(sorted(shares), rises, list(patterns))
        compared = self._compared_share(sorted(shares), recommended)
        random = self.random_patterns(compared)
        found = None
        if trials:
            everything = (np.ones_like(self.free), self.options.window)
            found = self.find_needles("needles", [everything, *patterns.values()], trials)
        n_random = self.options.random_texts
        drawn = None
        drawn_found = None
        if random:
            drawn = self.judge("random", random, self.judging_texts[:n_random])
            if trials:
                drawn_found = self.find_needles("random-needles", random, trials[:n_random])
        return cache_dataset(
            CacheMeasurements(
                model=self.model,
                options=self.options,
                sliding=self.sliding,
                distant=distant,
                error=error,
                patterns=patterns,
                rises=rises,
                divergences=judged["divergence"],
                gain=judged["gain"],
                recommended=recommended,
                compared=compared,
                random_rises=None if drawn is None else drawn["rise"],
                found=found,
                random_found=drawn_found,
                needle_tokens=mean_needle_tokens(trials),
                rankings=rankings,
                length=len(self.judging_texts[0]),
            )
        )

    def measure_distant(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the distant attention of each query head, and what its output loses without it,
        both `[text, layer, head]`, on the texts that rank."""
        measure_text = MeasureText(self.long_model)
        measured = list(self.job.each("texts", measure_text, self.ranking_texts))
        distant = np.stack([part["distant"] for part in measured])
        error = np.stack([part["error"] for part in measured])
        return distant, error

    def rankings(self, error: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scores of all rankings that the options ask for, by name `[text (or sequence,
        needle), layer, key/value head]`.

        Parameters
        ----------
        error : ndarray
            From `measure_distant`.
        """
        rankings = {ERROR: by_group(error, self.model.kv_heads)}
        if self.options.effects:
            rankings[EFFECT] = self._effects()
        if self.options.recipes:
            rankings[INDUCTION] = self._induction()
            retrieval = self._retrieval(self.trials(self.ranking_texts, self.options.needles))
            if retrieval is not None:
                rankings[RETRIEVAL] = retrieval
        if self.options.gates:
            rankings[GATES] = self._gates()
        return rankings

    def _chosen_first(self, rankings: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the rankings with the one that makes the pattern first."""
        chosen = RANKINGS[self.options.rank_by]
        if chosen not in rankings:
            raise InputError(
                f"{self.model.name} finds no needle in {len(self.ranking_texts[0])} tokens, so its "
                "heads cannot be ranked by retrieval; rank them by something else.",
                option="rank_by",
            )
        return {chosen: rankings[chosen], **rankings}

    def choose(self, scores: np.ndarray, share: float) -> np.ndarray:
        """Return the key/value heads with the highest scores, as many as the share says; layers with
        a sliding window count as whole."""
        whole = ~self.free
        count = round(share * int(self.free.sum()))
        order = np.argsort(-np.where(self.free, scores, -np.inf), axis=None, kind="stable")
        whole.flat[order[:count]] = True
        return whole

    def uniform(self, share: float) -> tuple[np.ndarray, int]:
        """Return all heads short, with a window that takes as much memory as this share of whole
        heads."""
        length = len(self.judging_texts[0])
        short = self.options.sink + self.options.window
        mean_tokens = share * length + (1 - share) * short
        return ~self.free, max(1, round(mean_tokens) - self.options.sink)

    def judge(
        self, name: str, patterns: Sequence[Pattern], texts: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return rises of the loss and divergences, `[text, pattern]`, and the gain of the intact model,
        `[text]`."""
        distinct, places = _distinct(patterns)
        judge_text = JudgeText(self.long_model, distinct, self.job.progress)
        parts = list(self.job.each(name, judge_text, texts))
        judged = {"gain": np.stack([part["gain"] for part in parts])[:, 0]}
        for key in ("rise", "divergence"):
            judged[key] = np.stack([part[key] for part in parts])[:, places]
        return judged

    def _recommend(
        self, shares: Sequence[float], rises: np.ndarray, names: Sequence[tuple[str, float]]
    ) -> float:
        """Return the smallest share whose loss rises by no more than is acceptable, or the share
        that was asked for; 1 if none of those tried is good enough."""
        if self.options.keep is not None:
            return self.options.keep
        for share in shares:
            rise = rises[:, names.index((RANKINGS[self.options.rank_by], share))].mean()
            if rise <= self.options.at_most:
                return share
        return 1.0

    def _compared_share(self, shares: Sequence[float], recommended: float) -> float:
        """Return the share at which the ranking is compared with random choices: the recommended
        one, or, where that leaves nothing to choose, the nearest one tried that does."""
        between = [share for share in shares if 0 < share < 1]
        if recommended in between or not between:
            return recommended
        return between[0] if recommended == 0 else between[-1]

    def random_patterns(self, share: float) -> list[Pattern]:
        if share in (0.0, 1.0):
            return []  # there is nothing to choose
        random = np.random.default_rng(self.options.seed)
        patterns: list[Pattern] = []
        for _ in range(self.options.random):
            scores = random.random(self.free.shape)
            patterns.append((self.choose(scores, share), self.options.window))
        return patterns

    def _induction(self) -> np.ndarray:
        """Return the induction score of each key/value head by sequence (RazorAttention's recipe),
        `[sequence, layer, key/value head]`."""

        def measure() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
            repeated = make_sequences(
                self.model, INDUCTION_SEQUENCES, INDUCTION_LENGTH, self.options.seed
            )
            batch = collate(repeated.rows, self.model.pad_id, self.model.device)
            watcher = OffsetWatcher(repeated)
            self.model.forward(batch, watcher)
            layers = [watcher.profile[layer] for layer in range(self.model.layers)]
            # The token after the earlier occurrence.
            score = torch.stack(layers)[..., repeated.length - 1]
            return {"score": score.transpose(0, 1).cpu().numpy()}, {}

        score = self.job.checkpoint("induction", measure).arrays["score"]
        return by_group(score, self.model.kv_heads)

    def _effects(self) -> np.ndarray:
        """Return what each key/value head contributes to the divergence when all are short,
        `[text, layer, key/value head]`."""
        texts = self.ranking_texts[: self.options.effects]
        parts = self.job.each("effects", MeasureEffect(self.long_model, self.free), texts)
        return np.stack([part["effect"] for part in parts])

    def _gates(self) -> np.ndarray:
        """Return how open the learned gate of each key/value head ends (DuoAttention's recipe), as one
        sample `[1, layer, key/value head]`."""
        share = GATES_OPEN if self.options.keep is None else self.options.keep
        n_free = int(self.free.sum())
        n_open = min(max(1, round(share * n_free)), n_free - 1)

        def measure() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
            batches = [as_batch(self.model, ids) for ids in self.ranking_texts]
            openness = learn_cache_gates(
                self.long_model,
                batches,
                self.free,
                n_open,
                steps=self.options.gates,
                seed=self.options.seed,
                report=self.job.progress,
            )
            return {"openness": openness}, {}

        return self.job.checkpoint("gates", measure).arrays["openness"][None]

    def trials(self, texts: Sequence[np.ndarray], first_needle: int = 0) -> list[Trial]:
        """Return needles in unrelated text, each at another depth beyond the window."""
        if not self.options.needles:
            return []
        # The answer must fit behind the prompt.
        length = min(len(texts[0]), self.model.max_length - max_answer_tokens(self.model))
        trials = []
        for number in range(self.options.needles):
            text = texts[number % len(texts)]
            hay = [int(token) for token in text[1:]]
            depth = 0.1 + 0.5 * number / max(self.options.needles - 1, 1)
            try:
                trials.append(make_trial(self.model, hay, length, depth, first_needle + number))
            except InputError as error:
                raise InputError(
                    f"Texts of {length} tokens have no room for a needle and its question; raise "
                    "`length`, or set `needles` to 0.",
                    option="length",
                ) from error
        return trials

    def _retrieval(self, trials: Sequence[Trial]) -> np.ndarray | None:
        """Return the retrieval score of each key/value head by needle (Wu et al.; HeadKV's recipe),
        `[needle, layer, key/value head]`; None if the model finds no needle."""
        scores = []
        for part in self.job.each("trials", AskForNeedle(self.long_model), list(trials)):
            if not np.isnan(part["score"]).any():
                scores.append(part["score"])
        if not scores:
            return None
        return by_group(np.stack(scores), self.model.kv_heads)

    def find_needles(
        self, name: str, patterns: Sequence[Pattern], trials: Sequence[Trial]
    ) -> np.ndarray:
        """Return the share of each needle that is predicted, `[needle, pattern]`."""
        distinct, places = _distinct(patterns)
        find = FindNeedle(self.long_model, distinct)
        parts = self.job.each(name, find, list(trials))
        return np.stack([part["found"] for part in parts])[:, places]


def _distinct(patterns: Sequence[Pattern]) -> tuple[list[Pattern], list[int]]:
    """Return patterns without repetition, and the place of each given one among them.

    Without a whole head all rankings are one pattern; a pass of thousands of tokens is dear."""
    distinct: list[Pattern] = []
    numbers: dict[tuple[bytes, int], int] = {}
    places = []
    for whole, window in patterns:
        key = (whole.tobytes(), window)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append((whole, window))
        places.append(numbers[key])
    return distinct, places
