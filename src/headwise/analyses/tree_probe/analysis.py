"""How much syntax all heads hold together: probes that parse, with and without words (Clark et al.
2019, §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from headwise.analyses.contract import (
    Experiment,
    ExperimentContext,
    Paper,
    at_least,
    layer_head_coords,
)
from headwise.analyses.tree_probe.collect import Sentences, collect_maps, drop_gathered, make_trees
from headwise.analyses.tree_probe.structural import structural_dataset
from headwise.core.errors import InputError, MissingAnnotationError, ParameterError
from headwise.core.labels import FEW
from headwise.core.store import Checkpoint
from headwise.models import HeadModel
from headwise.models.random_init import random_but_embeddings
from headwise.probes.structural import StructuralSettings
from headwise.probes.tree import (
    AttentionProbe,
    AttentionWordsProbe,
    DistanceWordsProbe,
    TreeProbe,
    right_branching,
)
from headwise.probes.tree_fit import (
    TreeBatches,
    TreeFitSettings,
    fit_tree_probe,
    mean_head_weights,
    score_tree_probe,
)
from headwise.probes.vectors import MODEL, InputEmbeddings, WordVectors, read_vectors
from headwise.stats.accumulators import Ratios
from headwise.text import open_corpus
from headwise.text.encode import Encoded

PROBES = (
    "attention",
    "attention_words",
    "distance_words",
    "random_attention_words",
    "right_branching",
)
DIRECTIONS = ("head_to_dependent", "dependent_to_head")  # w, then u
LEARNING_RATES = {
    "attention_words": 0.005,
    "random_attention_words": 0.005,
    "distance_words": 0.005,
}  # tried first
HIDDEN = 100
BATCH_PAIRS = {"cpu": 16_384, "cuda": 65_536}  # word pairs in a batch, padding included
KINDS = {
    "trained": ("attention", "attention_words", "distance_words"),
    "random": ("random_attention_words",),
}
EPOCHS = 30  # at most, of the structural probe
SHARES = (0.7, 0.1)  # training and validation, where the corpus is cut; the rest is the test part


@dataclass(frozen=True)
class TreeProbeAnalysis(Experiment):
    """Probes on all heads' word-level maps, §5 and Table 3.

    The probability that word i is the head of word j, over all other words of the sentence and the
    root:

    - `attention`: `p(i|j) ∝ exp(Σ_k w_k A_k[i, j] + u_k A_k[j, i])`;
    - `attention_words`: the same with `w_k = W_k · (v_i ⊕ v_j)`, `u_k = U_k · (v_i ⊕ v_j)`, v fixed word vectors (a
      word without one: zero);
    - `distance_words`: one hidden layer on v_i, v_j and distance features;
    - `random_attention_words`: `attention_words` on a model with the trained embeddings and all other weights random;
    - `right_branching`: the next word.

    The root is a candidate with zero attention, a learned bias and, for probes with words, a
    learned vector. Probes are trained on words that are no punctuation, each to the end:
    `attention`, which has one optimum, by L-BFGS; the others by Adam, with a rate searched on the
    validation part (for the random model's too), lowered twice when nothing gets better; the state
    with the best validation UAS is kept.

    Gives `uas[probe]` on the test part without punctuation, with `uas_n` (sentences) and a 95 %
    interval `uas_low`, `uas_high` over sentences (a ratio estimator: every word alike);
    `uas_deviation[probe]`: standard deviation over seeds; `validation_uas[probe]`; `weight[probe,
    direction, layer, head]`: the learned weight of each head (`head_to_dependent`: w,
    `dependent_to_head`: u), for `attention_words` its mean over test words and their true heads;
    `root_bias[probe]`; `learning_rate[probe]` that the search picked, `epochs[probe]`, and whether
    training ended by itself, `converged[probe]`. Attributes count sentences of each part.

    With `structural`, the structural probe (Hewitt & Manning 2019) on the hidden states of every
    layer beside them, a linear map under which squared distances are distances in the tree:
    `uuas[hidden_layer]`, the share of the tree's edges that the minimum spanning tree over its
    distances has (no direction, no punctuation), with its interval; `validation_uuas`, by which the
    attribute `structural_layer` is picked. Not comparable with `uas`: other vectors, undirected,
    one layer.

    Maps are kept in float16 until the probes on them are done.

    Parameters
    ----------
    train : str, default ""
        A corpus (file or SPEC) to train on, part of it for validation; the corpus of the run is
        then the test part. Without it, that corpus is cut by seed: 70 % training, 10 % validation,
        20 % test.
    train_sentences, test_sentences : int, default 4000 and 0
        At most so many, drawn by seed; 0 for all. Of `train` no more than are drawn are encoded;
        sentences left out are counted among the drawn.
    validation : float, default 0.1
        The share of `train` that is kept for validation.
    vectors : str, default "model"
        `model` (mean input embedding of a word's pieces) or a file of word vectors (GloVe text or
        npz).
    longest : int, default 80
        Sentences of more words are left out and counted.
    epochs, patience, learning_rate : int, int, float, default 60, 3, 0
        At most so many epochs; after so many without a better validation UAS the rate is lowered,
        the third time training ends; 0 to search a rate.
    structural : bool, default False
        The structural probe too.
    seeds : int, default 1
        How often each trained probe is trained: `uas` is that of the first, `uas_deviation` over
        all.
    seed : int, optional
        For splits, sampling, order of batches and random weights; by default the run's.

    Notes
    -----
    Question: How much of a parse is in the weights of all heads together?

    Assumes: The probe is simple, so that what it finds is in the maps and not learned by the probe;
    word vectors add lexical knowledge, which `distance_words` has too.

    Traps: Read it against the baselines: `right_branching` and `distance_words` parse much without
    any attention, and a random model's maps are nearly uniform, so a low `random_attention_words`
    says little. Few training sentences make low scores. A weight of a head is one of many
    correlated ones: it is no ranking of heads.

    Cost: One pass that keeps word-level maps in float16 (layers × heads × words² numbers for a
    sentence), then the training of up to four probes (`benchmarks/table_tree_probe.py`)."""

    train: str = ""
    train_sentences: int = 4000
    test_sentences: int = 0
    validation: float = 0.1
    vectors: str = MODEL
    longest: int = 80
    epochs: int = 60
    patience: int = 3
    learning_rate: float = 0.0
    structural: bool = False
    seeds: int = 1
    seed: int | None = None

    name: ClassVar[str] = "tree_probe"
    title: ClassVar[str] = "Syntax in all heads together: probes that parse"
    paper: ClassVar[Paper] = Paper("clark2019", "§5, Table 3")
    units: ClassVar[Mapping[str, str]] = {
        "share of words": "uas_deviation",
        "log odds": "root_bias",
        "rate": "learning_rate",
        "log odds a unit of attention": "weight",
    }
    requires: ClassVar[frozenset[str]] = frozenset({"words", "dependencies"})
    budget: ClassVar[int | None] = 100

    def __post_init__(self) -> None:
        least = {
            "train_sentences": 0,
            "test_sentences": 0,
            "longest": 2,
            "epochs": 1,
            "patience": 1,
            "seeds": 1,
        }
        for name, low in (least | {"learning_rate": 0, "seed": 0}).items():
            at_least(name, getattr(self, name) or 0, low)
        if not 0 < self.validation < 1:
            raise ParameterError(
                f"`validation` must lie between 0 and 1; it is {self.validation!r}."
            )

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        data = self._collect_rows(bench)
        if not all(len(part) for part in data.parts.values()):
            there = ", ".join(f"{len(part)} for {name}" for name, part in data.parts.items())
            raise InputError(
                f"The probes need sentences for training, validation and test; there are {there}: give more."
            )
        vectors = self._vectors(bench.model, data.rows)
        trees = make_trees(data.rows, vectors)
        store = bench.store.part("probes", {"sentences": data.digest()})
        fitted: dict[str, Checkpoint] = {}
        for kind, wanted in KINDS.items():
            parts: dict[str, TreeBatches] = {}
            if not all(store.has(name) for name in wanted):
                model = (
                    bench.model
                    if kind == "trained"
                    else random_but_embeddings(bench.model, self.seed or 0)
                )
                report = partial(bench.progress, f"tree_probe: maps of the {kind} model")
                maps = collect_maps(model, data.rows, store, kind, report)
                device = str(bench.model.device)
                pairs = BATCH_PAIRS["cuda" if device.startswith("cuda") else "cpu"]
                parts = {
                    name: TreeBatches(trees, maps, part, pairs, device)
                    for name, part in data.parts.items()
                }
            for name in wanted:
                fitted[name] = store.checkpoint(name, partial(self._fit, name, parts, bench))
            drop_gathered(store, f"{kind}-maps")
        correct, total = right_branching(trees, data.parts["test"])
        share = np.array([correct.sum() / max(total.sum(), 1)])
        fitted["right_branching"] = Checkpoint(
            {"correct": correct, "total": total, "by_seed": share}, {}
        )
        dataset = probe_dataset(fitted, bench.shape.layers, bench.shape.heads)
        if self.structural:
            device = str(bench.model.device)
            how = StructuralSettings(
                epochs=min(self.epochs, EPOCHS), seed=self.seed or 0, device=device
            )
            beside = structural_dataset(bench.model, data, trees, how, store, bench.progress)
            dataset = dataset.merge(beside, combine_attrs="no_conflicts")
        return dataset.assign_coords(layer_head_coords(bench.shape)).assign_attrs(
            vectors=self.vectors if self.vectors == MODEL else Path(self.vectors).name,
            vector_coverage=vectors.coverage,
            sentences_unaligned=data.unaligned,
            sentences_too_long=data.too_long,
            words_tested=int(total.sum()),
            **{f"sentences_{name}": len(part) for name, part in data.parts.items()},
        )

    # --- collect ----------------------------------------------------------------------------------

    def _collect_rows(self, bench: ExperimentContext) -> Sentences:
        """The encoded sentences of all parts, and which are for what."""
        generator = np.random.default_rng([self.seed or 0, 1])
        data = Sentences()
        seen = takewhile(lambda row: bench.limit is None or row.index < bench.limit, bench.rows)
        own, encoded = list(islice(bench.corpus, bench.limit)), {row.index: row for row in seen}
        if not self.train:
            data.take(own, encoded.get, self.longest)
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
            raise MissingAnnotationError(
                f"`train`: {corpus.name} has no trees; give a treebank (.conllu)."
            )
        given = list(corpus)
        encode = bench.model.encoder.encode
        data.take(
            given, lambda place: encode(given[place]), self.longest, self.train_sentences, generator
        )
        count = len(data.rows)
        data.take(own, encoded.get, self.longest, self.test_sentences, generator)
        order = generator.permutation(count)
        held_out = max(1, round(self.validation * count))
        tested = np.arange(count, len(data.rows))
        data.parts = {"train": order[held_out:], "validation": order[:held_out], "test": tested}
        return data

    def _vectors(self, model: HeadModel, rows: Sequence[Encoded]) -> WordVectors:
        if self.vectors == MODEL:
            return InputEmbeddings(model)
        return WordVectors(
            read_vectors(self.vectors, {word for row in rows for word in row.example.all_words})
        )

    # --- fit and score ----------------------------------------------------------------------------

    def _fit(
        self, name: str, parts: Mapping[str, TreeBatches], bench: ExperimentContext
    ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Train a probe with every seed: words found and scored of each test sentence and the
        weights of heads by the first, UAS by seed; and what `Fit` says of the first, with the
        root's bias."""
        what = f"tree_probe: {name.replace('_', ' ')}"
        bench.progress(what, 0, self.epochs)
        rate, device = self.learning_rate or LEARNING_RATES.get(name, 0.0), str(bench.model.device)
        trees = parts["train"].trees
        arrays: dict[str, np.ndarray] = {}
        facts: dict[str, float] = {}
        scores = []
        for repeat in range(self.seeds):
            seed = (self.seed or 0) + repeat
            probe = make_probe(
                name, bench.shape.layers * bench.shape.heads, trees.vectors[0].shape[1], seed
            )
            search = not self.learning_rate and repeat == 0
            settings = TreeFitSettings(rate, self.epochs, self.patience, search, seed, device)
            tell = partial(self._tell, bench, what)
            fit = fit_tree_probe(probe, parts["train"], parts["validation"], settings, tell)
            rate = fit.learning_rate  # other seeds go the way that the first found
            correct, total = score_tree_probe(probe, parts["test"])
            scores.append(correct.sum() / max(total.sum(), 1))
            if repeat == 0:
                arrays, facts = {"correct": correct, "total": total}, asdict(fit)
                if isinstance(probe, AttentionProbe | AttentionWordsProbe):
                    facts["root_bias"] = float(probe.root.detach())
                if name in ("attention", "attention_words"):
                    arrays["weights"] = mean_head_weights(probe, parts["test"])
            if probe.convex:  # every seed ends at the same optimum
                scores *= self.seeds
                break
        return arrays | {"by_seed": np.array(scores)}, facts

    def _tell(self, bench: ExperimentContext, what: str, epoch: int, _: float) -> None:
        bench.progress(what, min(epoch, self.epochs), self.epochs)

    def summary(self, dataset: xr.Dataset) -> list[str]:
        count = int(dataset.attrs["sentences_test"])
        over = f"{count:,} sentences" + (f", fewer than {FEW}: rough" if count < FEW else "")
        lines = [
            f"Words whose head is found (UAS, without punctuation), 95 % interval over {over}:"
        ]
        for name in map(str, dataset["probe"].values):
            one = dataset.sel(probe=name)
            mean, low, high = (100 * float(one[f"uas{end}"]) for end in ("", "_low", "_high"))
            late = "" if bool(one["converged"]) else "; still gaining when its epochs ended"
            lines.append(f"{name.replace('_', ' ')}: {mean:.1f} % ({low:.1f} to {high:.1f}){late}")
        if "uuas" in dataset:
            layer = int(dataset.attrs["structural_layer"])
            mean, low, high = (
                100 * float(dataset[f"uuas{end}"][layer]) for end in ("", "_low", "_high")
            )
            lines.append(
                f"structural probe, hidden states {layer}: UUAS {mean:.1f} % ({low:.1f} to {high:.1f})"
            )
        return lines


def make_probe(name: str, heads: int, size: int, seed: int) -> TreeProbe:
    """A probe by name, before training."""
    if name == "attention":
        return AttentionProbe(heads)
    if name == "distance_words":
        return DistanceWordsProbe(size, HIDDEN, torch.Generator().manual_seed(seed))
    return AttentionWordsProbe(heads, size)


def probe_dataset(fitted: Mapping[str, Checkpoint], layers: int, heads: int) -> xr.Dataset:
    """The labelled arrays of all probes."""

    def fact(name: str, default: float = np.nan) -> np.ndarray:
        found = [fitted[probe].facts.get(name, default) for probe in PROBES]
        return np.array([np.nan if value is None else value for value in found])  # JSON has no NaN

    ratio = Ratios(len(PROBES))
    correct, total = (
        torch.from_numpy(np.stack([fitted[probe].arrays[name] for probe in PROBES], 1))
        for name in ("correct", "total")
    )
    ratio.add_sums(correct, total)
    uas = ratio.summary()
    weight = np.full((len(PROBES), len(DIRECTIONS), layers, heads), np.nan, dtype=np.float32)
    deviation = np.full(len(PROBES), np.nan)
    for place, probe in enumerate(PROBES):
        arrays = fitted[probe].arrays
        if "weights" in arrays:
            weight[place] = np.moveaxis(arrays["weights"], -1, 0).reshape(weight.shape[1:])
        if len(arrays["by_seed"]) > 1:
            deviation[place] = np.std(arrays["by_seed"], ddof=1)
    share, end = {"units": "share of words"}, "end of the 95 % interval over sentences"
    rate = {"long_name": "rate that the search picked; none for L-BFGS"}
    variables: dict[str, Any] = {
        "uas": (
            "probe",
            uas["mean"],
            share | {"long_name": "words whose head is found, without punctuation"},
        ),
        "uas_n": ("probe", uas["n"], {"long_name": "test sentences"}),
        "uas_low": ("probe", np.clip(uas["low"], 0, 1), {"long_name": f"lower {end}"}),
        "uas_high": ("probe", np.clip(uas["high"], 0, 1), {"long_name": f"upper {end}"}),
        "uas_deviation": ("probe", deviation, {"long_name": "standard deviation over seeds"}),
        "validation_uas": ("probe", fact("validation"), share),
        "root_bias": ("probe", fact("root_bias")),
        "learning_rate": ("probe", fact("learning_rate"), rate),
        "epochs": ("probe", fact("epochs", 0).astype(np.int64)),
        "converged": (
            "probe",
            fact("converged", 1).astype(bool),
            {"long_name": "training ended by itself"},
        ),
        "weight": (
            ("probe", "direction", "layer", "head"),
            weight,
            {"long_name": "learned weight of a head"},
        ),
    }
    return xr.Dataset(variables, coords={"probe": list(PROBES), "direction": list(DIRECTIONS)})
