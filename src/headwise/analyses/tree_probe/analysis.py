"""How much syntax all heads hold together: probes that parse, with and without words (Clark et al. 2019, §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import Bench, Experiment, Paper, at_least, layer_head_coords
from headwise.analyses.tree_probe.collect import Sentences, collect_maps, make_trees
from headwise.core.errors import InputError, MissingAnnotationError, ParameterError
from headwise.core.store import Piece
from headwise.models import HeadModel
from headwise.models.twins import random_but_embeddings
from headwise.probes.tree import (
    AttentionProbe,
    AttentionWordsProbe,
    DistanceWordsProbe,
    FitSettings,
    TreeProbe,
    Trees,
    WordMaps,
    fit_tree_probe,
    mean_head_weights,
    right_branching,
    score_tree_probe,
)
from headwise.probes.vectors import MODEL, InputEmbeddings, WordVectors, read_vectors
from headwise.stats.accumulators import Ratios
from headwise.text.encode import Encoded

PROBES = ("attention", "attention_words", "distance_words", "random_attention_words", "right_branching")
DIRECTIONS = ("head_to_dependent", "dependent_to_head")  # w, then u
LEARNING_RATES = {"attention": 0.05, "attention_words": 0.005, "random_attention_words": 0.005, "distance_words": 0.005}
HIDDEN = 100
KINDS = {"trained": ("attention", "attention_words", "distance_words"), "random": ("random_attention_words",)}
SHARES = (0.7, 0.1)  # training and validation, where the corpus is cut; the rest is the test part


@dataclass(frozen=True)
class TreeProbeAnalysis(Experiment):
    """Probes on all heads' word-level maps, §5 and Table 3.

    The probability that word i is the head of word j, over all other words of the sentence and the root:

    - `attention`: `p(i|j) ∝ exp(Σ_k w_k A_k[i, j] + u_k A_k[j, i])`;
    - `attention_words`: the same with `w_k = W_k · (v_i ⊕ v_j)`, `u_k = U_k · (v_i ⊕ v_j)`, v fixed word vectors (a
      word without one: zero);
    - `distance_words`: one hidden layer on v_i, v_j and distance features;
    - `random_attention_words`: `attention_words` on a model with the trained embeddings and all other weights random;
    - `right_branching`: the next word.

    The root is a candidate with zero attention, a learned bias and, for probes with words, a learned vector. Probes are
    trained on words that are no punctuation; the state with the best validation UAS is kept.

    Gives `uas[probe]` on the test part without punctuation, with `uas_n` (sentences) and a 95 % interval `uas_low`,
    `uas_high` over sentences (a ratio estimator: every word alike); `uas_deviation[probe]`: standard deviation over
    seeds; `validation_uas[probe]`; `weight[probe, direction, layer, head]`: the learned weight of each head
    (`head_to_dependent`: w, `dependent_to_head`: u), for `attention_words` its mean over test words and their true
    heads. Attributes count sentences of each part.

    Maps are kept in float16 until the probes on them are done.

    Parameters
    ----------
    train : str, default ""
        A corpus (file or SPEC) to train on, part of it for validation; the corpus of the run is then the test part.
        Without it, that corpus is cut by seed: 70 % training, 10 % validation, 20 % test.
    train_sentences, test_sentences : int, default 4000 and 0
        At most so many, drawn by seed; 0 for all.
    validation : float, default 0.1
        The share of `train` that is kept for validation.
    vectors : str, default "model"
        `model` (mean input embedding of a word's pieces) or a file of word vectors (GloVe text or npz).
    longest : int, default 80
        Sentences of more words are left out and counted.
    epochs, patience, learning_rate : int, int, float, default 20, 2, 0
        At most so many epochs; stop after so many without a better validation UAS; 0 for the rate of each probe.
    seeds : int, default 1
        How often each trained probe is trained: `uas` is that of the first, `uas_deviation` over all.
    seed : int, optional
        For splits, sampling, order of batches and random weights; by default the run's.
    """

    train: str = ""
    train_sentences: int = 4000
    test_sentences: int = 0
    validation: float = 0.1
    vectors: str = MODEL
    longest: int = 80
    epochs: int = 20
    patience: int = 2
    learning_rate: float = 0.0
    seeds: int = 1
    seed: int | None = None

    name: ClassVar[str] = "tree_probe"
    title: ClassVar[str] = "Syntax in all heads together: probes that parse"
    paper: ClassVar[Paper] = Paper("clark2019", "§5, Table 3")
    requires: ClassVar[frozenset[str]] = frozenset({"words", "dependencies"})
    budget: ClassVar[int | None] = 200

    def __post_init__(self) -> None:
        least = {"train_sentences": 0, "test_sentences": 0, "longest": 2, "epochs": 1, "patience": 1, "seeds": 1}
        for name, low in (least | {"learning_rate": 0, "seed": 0}).items():
            at_least(name, getattr(self, name) or 0, low)
        if not 0 < self.validation < 1:
            raise ParameterError(f"`validation` must lie between 0 and 1; it is {self.validation!r}.")

    def perform(self, bench: Bench) -> xr.Dataset:
        data = self._collect_rows(bench)
        if not all(len(part) for part in data.parts.values()):
            there = ", ".join(f"{len(part)} for {name}" for name, part in data.parts.items())
            raise InputError(
                f"The probes need sentences for training, validation and test; there are {there}: give more."
            )
        vectors = self._vectors(bench.model, data.rows)
        trees = make_trees(data.rows, vectors)
        store = bench.store.part("probes", {"sentences": data.digest()})
        fitted: dict[str, _Fitted] = {}
        for kind, wanted in KINDS.items():
            maps = None
            if not all(store.has(name) for name in wanted):
                model = bench.model if kind == "trained" else random_but_embeddings(bench.model, self.seed or 0)
                report = partial(bench.progress, f"tree_probe: maps of the {kind} model")
                maps = collect_maps(model, data.rows, store, kind, report)
            for name in wanted:
                fitted[name] = _Fitted.of(store.piece(name, partial(self._fit, name, trees, maps, data.parts, bench)))
            for name in store.names():
                if name.startswith(f"{kind}-maps-"):
                    store.drop(name)
        correct, total = right_branching(trees, data.parts["test"])
        share = np.array([correct.sum() / max(total.sum(), 1)])
        fitted["right_branching"] = _Fitted(correct, total, share, float("nan"))
        dataset = probe_dataset(fitted, bench.shape.layers, bench.shape.heads)
        return dataset.assign_coords(layer_head_coords(bench.shape)).assign_attrs(
            vectors=self.vectors if self.vectors == MODEL else Path(self.vectors).name,
            vector_coverage=vectors.coverage,
            sentences_unaligned=data.unaligned,
            sentences_too_long=data.too_long,
            words_tested=int(total.sum()),
            **{f"sentences_{name}": len(part) for name, part in data.parts.items()},
        )

    # --- collect ----------------------------------------------------------------------------------------------------

    def _collect_rows(self, bench: Bench) -> Sentences:
        """The encoded sentences of all parts, and which are for what."""
        from headwise.text import open_corpus

        generator = np.random.default_rng([self.seed or 0, 1])
        data = Sentences()
        encoded = {row.index: row for row in bench.rows}
        own = ((example, encoded.get(i)) for i, example in enumerate(islice(bench.corpus, bench.limit)))
        if not self.train:
            data.take(own, self.longest)
            ends = np.round(np.cumsum(SHARES) * len(data.rows)).astype(int)
            train, validation, test = np.split(generator.permutation(len(data.rows)), ends)
            data.parts = {
                "train": train[: self.train_sentences or None],
                "validation": validation,
                "test": np.sort(test[: self.test_sentences or None]),
            }
            return data
        corpus = open_corpus(self.train, tokenizer=bench.model.tokenizer)
        if "dependencies" not in corpus.annotations:
            raise MissingAnnotationError(f"`train`: {corpus.name} has no trees; give a treebank (.conllu).")
        data.take(((example, bench.model.encoder.encode(example)) for example in corpus), self.longest)
        data.thin(self.train_sentences, generator)
        count = len(data.rows)
        data.take(own, self.longest)
        data.thin(self.test_sentences, generator, count)
        order = generator.permutation(count)
        held_out = max(1, round(self.validation * count))
        tested = np.arange(count, len(data.rows))
        data.parts = {"train": order[held_out:], "validation": order[:held_out], "test": tested}
        return data

    def _vectors(self, model: HeadModel, rows: Sequence[Encoded]) -> WordVectors:
        if self.vectors == MODEL:
            return InputEmbeddings(model)
        return WordVectors(read_vectors(self.vectors, {word for row in rows for word in row.example.all_words}))

    # --- fit and score ----------------------------------------------------------------------------------------------

    def _fit(
        self, name: str, trees: Trees, maps: WordMaps | None, parts: Mapping[str, np.ndarray], bench: Bench
    ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Train a probe with every seed: what `_Fitted` holds, of the first but for its scores."""
        what = f"tree_probe: {name.replace('_', ' ')}"
        bench.progress(what, 0, self.epochs)
        arrays: dict[str, np.ndarray] = {}
        scores, best = [], float("nan")
        for repeat in range(self.seeds):
            seed = (self.seed or 0) + repeat
            probe = make_probe(name, bench.shape.layers * bench.shape.heads, trees.vectors[0].shape[1], seed)
            rate, device = self.learning_rate or LEARNING_RATES[name], str(bench.model.device)
            settings = FitSettings(rate, self.epochs, self.patience, seed=seed, device=device)
            validation = fit_tree_probe(
                probe,
                trees,
                maps,
                parts["train"],
                parts["validation"],
                settings,
                lambda epoch, _: bench.progress(what, epoch, self.epochs),
            )
            correct, total = score_tree_probe(probe, trees, maps, parts["test"], settings)
            scores.append(correct.sum() / max(total.sum(), 1))
            if repeat == 0:
                arrays, best = {"correct": correct, "total": total}, validation
                if name in ("attention", "attention_words"):
                    arrays["weights"] = mean_head_weights(probe, trees, parts["test"], settings)
        return arrays | {"by_seed": np.array(scores)}, {"validation": best}


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """What is kept of a probe: words found and scored of each test sentence, UAS by seed and on validation, weights."""

    correct: np.ndarray
    total: np.ndarray
    by_seed: np.ndarray
    validation: float
    weights: np.ndarray | None = None

    @classmethod
    def of(cls, piece: Piece) -> _Fitted:
        found, weights = piece.arrays, piece.arrays.get("weights")
        return cls(found["correct"], found["total"], found["by_seed"], piece.facts["validation"], weights)


def make_probe(name: str, heads: int, size: int, seed: int) -> TreeProbe:
    """A probe by name, before training."""
    if name == "attention":
        return AttentionProbe(heads)
    if name == "distance_words":
        return DistanceWordsProbe(size, HIDDEN, torch.Generator().manual_seed(seed))
    return AttentionWordsProbe(heads, size)


def probe_dataset(fitted: dict[str, _Fitted], layers: int, heads: int) -> xr.Dataset:
    """The labelled arrays of all probes."""
    low, high, uas, count = (np.full(len(PROBES), np.nan) for _ in range(4))
    weight = np.full((len(PROBES), len(DIRECTIONS), layers, heads), np.nan)
    for place, name in enumerate(PROBES):
        own = fitted[name]
        ratio = Ratios(1)
        ratio.add_sums(torch.from_numpy(own.correct)[:, None], torch.from_numpy(own.total)[:, None])
        summary = ratio.summary()
        uas[place], low[place], high[place], count[place] = (summary[key][0] for key in ("mean", "low", "high", "n"))
        if own.weights is not None:
            weight[place] = np.moveaxis(own.weights, -1, 0).reshape(len(DIRECTIONS), layers, heads)
    deviation = [np.std(fitted[name].by_seed, ddof=1) if len(fitted[name].by_seed) > 1 else np.nan for name in PROBES]
    share = {"units": "share of words"}
    variables: dict[str, Any] = {
        "uas": ("probe", uas, share | {"long_name": "words whose head is found, without punctuation"}),
        "uas_n": ("probe", count.astype(np.int64), {"long_name": "test sentences"}),
        "uas_low": ("probe", np.clip(low, 0, 1), {"long_name": "lower end of the 95 % interval over sentences"}),
        "uas_high": ("probe", np.clip(high, 0, 1), {"long_name": "upper end of the 95 % interval over sentences"}),
        "uas_deviation": ("probe", np.array(deviation), {"long_name": "standard deviation over seeds"}),
        "validation_uas": ("probe", np.array([fitted[name].validation for name in PROBES]), share),
        "weight": (
            ("probe", "direction", "layer", "head"),
            weight.astype(np.float32),
            {"long_name": "learned weight of a head"},
        ),
    }
    return xr.Dataset(variables, coords={"probe": list(PROBES), "direction": list(DIRECTIONS)})
