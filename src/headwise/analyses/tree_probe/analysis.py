"""How much syntax all heads hold together: probes that parse, with and without words (Clark et al.
2019, §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

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
from headwise.analyses.tree_probe.collect import (
    SentenceSets,
    collect_maps,
    drop_collection,
    make_trees,
)
from headwise.analyses.tree_probe.structural import structural_dataset
from headwise.core.errors import InputError, MissingAnnotationError, ParameterError
from headwise.core.labels import FEW
from headwise.core.store import Checkpoint, CheckpointStore
from headwise.models import HeadModel
from headwise.models.random_init import random_but_embeddings
from headwise.probes.structural import StructuralSettings
from headwise.probes.tree import (
    AttentionProbe,
    AttentionWordsProbe,
    DependencyTrees,
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
# The first rate that the search tries.
LEARNING_RATES = {
    "attention_words": 0.005,
    "random_attention_words": 0.005,
    "distance_words": 0.005,
}
HIDDEN = 100  # width of the hidden layer of `distance_words`
BATCH_PAIRS = {"cpu": 16_384, "cuda": 65_536}  # word pairs in a batch, padding included
# The probes that are fitted on the maps of the trained model, and of one with random weights.
PROBES_OF_MODEL = {
    "trained": ("attention", "attention_words", "distance_words"),
    "random": ("random_attention_words",),
}
STRUCTURAL_EPOCHS = 30  # the most epochs of the structural probe
SPLIT = (0.7, 0.1)  # training and validation part of a corpus; the rest is the test part


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
    learned vector. Probes are trained on all words but punctuation, until they converge:
    `attention`, which has one optimum, by L-BFGS; the others by Adam, with a learning rate searched
    on the validation part (also for the random model) and lowered twice when validation stops
    improving; the state with the best validation UAS is kept.

    Gives `uas[probe]` on the test part without punctuation, with `uas_n` (sentences) and a 95 %
    interval `uas_low`, `uas_high` over sentences (a ratio estimator: every word alike);
    `uas_deviation[probe]`: standard deviation over seeds; `validation_uas[probe]`; `weight[probe,
    direction, layer, head]`: the learned weight of each head (`head_to_dependent`: w,
    `dependent_to_head`: u), for `attention_words` its mean over test words and their true heads;
    `root_bias[probe]`; `learning_rate[probe]` that the search selected, `epochs[probe]`, and
    whether training ended before its limit of epochs, `converged[probe]`. Attributes count sentences of each part.

    With `structural`, the structural probe (Hewitt & Manning 2019) on the hidden states of every
    layer, a linear map under which squared distances are distances in the tree:
    `uuas[hidden_layer]`, the share of the tree's edges that the minimum spanning tree over its
    distances has (direction and punctuation ignored), with its interval; `validation_uuas`, which
    selects the attribute `structural_layer`. Not comparable with `uas`: other vectors, undirected,
    one layer.

    Maps are stored in float16 until the probes on them are fitted.

    Parameters
    ----------
    train : str, default ""
        A corpus (file or SPEC) to train on, part of it for validation; the corpus of the run is
        then the test part. Without it, that corpus is split by the seed: 70 % training, 10 % validation,
        20 % test.
    train_sentences, test_sentences : int, default 4000 and 0
        The most sentences, drawn by the seed; 0 for all. Of `train` only drawn sentences are
        encoded; those left out are counted among them.
    validation : float, default 0.1
        The share of `train` for validation.
    vectors : str, default "model"
        `model` (mean input embedding of a word's subwords) or a file of word vectors (GloVe text or
        npz).
    longest : int, default 80
        Sentences of more words are left out and counted.
    epochs, patience, learning_rate : int, int, float, default 60, 3, 0
        The most epochs; the epochs without a better validation UAS after which the rate is lowered,
        the third time training ends; the learning rate, 0 to search one.
    structural : bool, default False
        Also train the structural probe.
    seeds : int, default 1
        How often each probe is trained: `uas` is that of the first, `uas_deviation` over all.
    seed : int, optional
        For splits, sampling, order of batches and random weights; by default the run's.

    Notes
    -----
    Question: How much of a parse is in the weights of all heads together?

    Assumes: The probe is simple, so that what it finds is in the maps and not learned by the probe;
    word vectors add lexical knowledge, which `distance_words` has too.

    Pitfalls: Read it against the baselines: `right_branching` and `distance_words` parse much
    without any attention, and a random model's maps are nearly uniform, so a low
    `random_attention_words` says little. Few training sentences make low scores. A weight of a head
    is one of many correlated ones: it is no ranking of heads.

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
    fits: ClassVar[bool] = True
    depth_power: ClassVar[float | None] = 0.75
    typical_passes: ClassVar[float] = 90.0

    def __post_init__(self) -> None:
        at_least("train_sentences", self.train_sentences, 0)
        at_least("test_sentences", self.test_sentences, 0)
        at_least("longest", self.longest, 2)
        at_least("epochs", self.epochs, 1)
        at_least("patience", self.patience, 1)
        at_least("seeds", self.seeds, 1)
        at_least("learning_rate", self.learning_rate, 0)
        at_least("seed", self.seed or 0, 0)
        if not 0 < self.validation < 1:
            raise ParameterError(
                f"`validation` must lie between 0 and 1; it is {self.validation!r}."
            )

    def smallest(self) -> tuple[Self, float]:
        # The search for a learning rate takes eight epochs whatever their limit is; fits end after
        # about twelve more.
        n_epochs = 8 + min(self.epochs, 12)
        return replace(self, epochs=2, seeds=1), n_epochs / (8 + 2) * self.seeds

    def perform(self, context: ExperimentContext) -> xr.Dataset:
        sentences = self._choose_sentences(context)
        if not all(len(part) for part in sentences.parts.values()):
            counts = ", ".join(f"{len(part)} for {name}" for name, part in sentences.parts.items())
            raise InputError(
                "The probes need sentences for training, validation and test; there are "
                f"{counts}: use a larger corpus."
            )
        vectors = self._word_vectors(context.model, sentences.rows)
        trees = make_trees(sentences.rows, vectors)
        store = context.store.part("probes", {"sentences": sentences.digest()})
        fitted = self._fit_probes(context, sentences, trees, store)

        correct, total = right_branching(trees, sentences.parts["test"])
        uas = np.array([correct.sum() / max(total.sum(), 1)])
        fitted["right_branching"] = Checkpoint(
            {"correct": correct, "total": total, "by_seed": uas}, {}
        )
        dataset = probe_dataset(fitted, context.shape.layers, context.shape.heads)
        if self.structural:
            settings = StructuralSettings(
                epochs=min(self.epochs, STRUCTURAL_EPOCHS),
                seed=self.seed or 0,
                device=str(context.model.device),
            )
            structural = structural_dataset(
                context.model, sentences, trees, settings, store, context.progress
            )
            dataset = dataset.merge(structural, combine_attrs="no_conflicts")
        dataset = dataset.assign_coords(layer_head_coords(context.shape))
        return dataset.assign_attrs(
            vectors=self.vectors if self.vectors == MODEL else Path(self.vectors).name,
            vector_coverage=vectors.coverage,
            sentences_unaligned=sentences.unaligned,
            sentences_too_long=sentences.too_long,
            words_tested=int(total.sum()),
            **{f"sentences_{name}": len(part) for name, part in sentences.parts.items()},
        )

    # --- collect ----------------------------------------------------------------------------------

    def _choose_sentences(self, context: ExperimentContext) -> SentenceSets:
        """Return the encoded sentences of all parts."""
        generator = np.random.default_rng([self.seed or 0, 1])
        sentences = SentenceSets()
        corpus_examples = list(islice(context.corpus, context.limit))
        encoded = {}
        for row in context.rows:
            if context.limit is not None and row.index >= context.limit:
                break
            encoded[row.index] = row
        if not self.train:
            sentences.add(corpus_examples, encoded.get, self.longest)
            n_sentences = len(sentences.rows)
            ends = np.round(np.cumsum(SPLIT) * n_sentences).astype(int)
            train, validation, test = np.split(generator.permutation(n_sentences), ends)
            sentences.parts = {
                "train": train[: self.train_sentences or None],
                "validation": validation,
                "test": np.sort(test[: self.test_sentences or None]),
            }
            return sentences

        train_corpus = open_corpus(self.train, tokenizer=context.model.tokenizer)
        if "dependencies" not in train_corpus.annotations:
            raise MissingAnnotationError(
                f"`train`: {train_corpus.name} has no trees; use a treebank (.conllu)."
            )
        train_examples = list(train_corpus)

        def encode(position: int) -> Encoded | None:
            return context.model.encoder.encode(train_examples[position])

        sentences.add(train_examples, encode, self.longest, self.train_sentences, generator)
        n_train = len(sentences.rows)
        sentences.add(corpus_examples, encoded.get, self.longest, self.test_sentences, generator)
        order = generator.permutation(n_train)
        n_validation = max(1, round(self.validation * n_train))
        sentences.parts = {
            "train": order[n_validation:],
            "validation": order[:n_validation],
            "test": np.arange(n_train, len(sentences.rows)),
        }
        return sentences

    def _word_vectors(self, model: HeadModel, rows: Sequence[Encoded]) -> WordVectors:
        if self.vectors == MODEL:
            return InputEmbeddings(model)
        words: set[str] = set()
        for row in rows:
            words.update(row.example.all_words)
        return WordVectors(read_vectors(self.vectors, words))

    # --- fit and score ----------------------------------------------------------------------------

    def _fit_probes(
        self,
        context: ExperimentContext,
        sentences: SentenceSets,
        trees: DependencyTrees,
        store: CheckpointStore,
    ) -> dict[str, Checkpoint]:
        """Return the checkpoints of all trained probes, by name."""
        device = str(context.model.device)
        batch_pairs = BATCH_PAIRS["cuda" if device.startswith("cuda") else "cpu"]
        fitted: dict[str, Checkpoint] = {}
        for kind, names in PROBES_OF_MODEL.items():
            batches: dict[str, TreeBatches] = {}
            # Maps are large: they are collected only if a probe on them is still to be fitted.
            if not all(store.has(name) for name in names):
                model = context.model
                if kind == "random":
                    model = random_but_embeddings(context.model, self.seed or 0)
                report = partial(context.progress, f"tree_probe: maps of the {kind} model")
                maps = collect_maps(model, sentences.rows, store, kind, report)
                for part, numbers in sentences.parts.items():
                    batches[part] = TreeBatches(trees, maps, numbers, batch_pairs, device)
            for name in names:
                fitted[name] = store.checkpoint(
                    name, partial(self._fit_probe, name, batches, context)
                )
            drop_collection(store, f"{kind}-maps")
        return fitted

    def _fit_probe(
        self, name: str, batches: Mapping[str, TreeBatches], context: ExperimentContext
    ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Train and score a probe with every seed.

        Returns arrays (correct and scored words of each test sentence and the weights of heads, of
        the first seed; UAS by seed) and facts (the fields of `TreeFit` and the root's bias, of the
        first seed).
        """
        what = f"tree_probe: {name.replace('_', ' ')}"

        def report(epoch: int, uas: float) -> None:
            context.progress(what, min(epoch, self.epochs), self.epochs)

        context.progress(what, 0, self.epochs)
        n_heads = context.shape.layers * context.shape.heads
        vector_size = batches["train"].trees.vectors[0].shape[1]
        learning_rate = self.learning_rate or LEARNING_RATES.get(name, 0.0)
        arrays: dict[str, np.ndarray] = {}
        facts: dict[str, float] = {}
        uas_by_seed = []
        for repeat in range(self.seeds):
            seed = (self.seed or 0) + repeat
            probe = make_probe(name, n_heads, vector_size, seed)
            settings = TreeFitSettings(
                learning_rate=learning_rate,
                epochs=self.epochs,
                patience=self.patience,
                search=not self.learning_rate and repeat == 0,
                seed=seed,
                device=str(context.model.device),
            )
            fit = fit_tree_probe(probe, batches["train"], batches["validation"], settings, report)
            learning_rate = fit.learning_rate  # other seeds use the rate that the first found
            correct, total = score_tree_probe(probe, batches["test"])
            uas_by_seed.append(correct.sum() / max(total.sum(), 1))
            if repeat == 0:
                arrays["correct"] = correct
                arrays["total"] = total
                facts.update(asdict(fit))
                if isinstance(probe, AttentionProbe | AttentionWordsProbe):
                    facts["root_bias"] = float(probe.root.detach())
                if name in ("attention", "attention_words"):
                    arrays["weights"] = mean_head_weights(probe, batches["test"])
            if probe.convex:  # every seed reaches the same optimum
                uas_by_seed *= self.seeds
                break
        arrays["by_seed"] = np.array(uas_by_seed)
        return arrays, facts

    def summary(self, dataset: xr.Dataset) -> list[str]:
        n_sentences = int(dataset.attrs["sentences_test"])
        over = f"{n_sentences:,} sentences"
        if n_sentences < FEW:
            over += f", fewer than {FEW}: rough"
        lines = [
            f"Words whose head is found (UAS, without punctuation), 95 % interval over {over}:"
        ]
        for name in map(str, dataset["probe"].values):
            row = dataset.sel(probe=name)
            line = f"{name.replace('_', ' ')}: {_percent_with_interval(row, 'uas')}"
            if not bool(row["converged"]):
                line += "; still improving when its epochs ended"
            lines.append(line)
        if "uuas" in dataset:
            layer = int(dataset.attrs["structural_layer"])
            uuas = _percent_with_interval(dataset.isel(hidden_layer=layer), "uuas")
            lines.append(f"structural probe, hidden states {layer}: UUAS {uuas}")
        return lines


def _percent_with_interval(dataset: xr.Dataset, name: str) -> str:
    mean = 100 * float(dataset[name])
    low = 100 * float(dataset[f"{name}_low"])
    high = 100 * float(dataset[f"{name}_high"])
    return f"{mean:.1f} % ({low:.1f} to {high:.1f})"


def make_probe(name: str, heads: int, size: int, seed: int) -> TreeProbe:
    """Return an untrained probe by name."""
    if name == "attention":
        return AttentionProbe(heads)
    if name == "distance_words":
        return DistanceWordsProbe(size, HIDDEN, torch.Generator().manual_seed(seed))
    return AttentionWordsProbe(heads, size)


def probe_dataset(fitted: Mapping[str, Checkpoint], layers: int, heads: int) -> xr.Dataset:
    """Return the labelled arrays of all probes."""

    def facts(name: str, default: float = np.nan) -> np.ndarray:
        values = []
        for probe in PROBES:
            value = fitted[probe].facts.get(name, default)
            values.append(np.nan if value is None else value)  # JSON has no NaN
        return np.array(values)

    correct = np.stack([fitted[probe].arrays["correct"] for probe in PROBES], 1)
    total = np.stack([fitted[probe].arrays["total"] for probe in PROBES], 1)
    ratio = Ratios(len(PROBES))
    ratio.add_sums(torch.from_numpy(correct), torch.from_numpy(total))
    uas = ratio.summary()
    weight = np.full((len(PROBES), len(DIRECTIONS), layers, heads), np.nan, dtype=np.float32)
    deviation = np.full(len(PROBES), np.nan)
    for position, probe in enumerate(PROBES):
        arrays = fitted[probe].arrays
        if "weights" in arrays:
            weight[position] = np.moveaxis(arrays["weights"], -1, 0).reshape(weight.shape[1:])
        if len(arrays["by_seed"]) > 1:
            deviation[position] = np.std(arrays["by_seed"], ddof=1)

    share = {"units": "share of words"}
    uas_attrs = share | {"long_name": "words whose head is found, without punctuation"}
    interval = "end of the 95 % interval over sentences"
    rate_attrs = {"long_name": "learning rate that the search selected; none for L-BFGS"}
    converged_attrs = {"long_name": "training ended before its limit of epochs"}
    weight_dims = ("probe", "direction", "layer", "head")
    variables: dict[str, Any] = {
        "uas": ("probe", uas["mean"], uas_attrs),
        "uas_n": ("probe", uas["n"], {"long_name": "test sentences"}),
        "uas_low": ("probe", np.clip(uas["low"], 0, 1), {"long_name": f"lower {interval}"}),
        "uas_high": ("probe", np.clip(uas["high"], 0, 1), {"long_name": f"upper {interval}"}),
        "uas_deviation": ("probe", deviation, {"long_name": "standard deviation over seeds"}),
        "validation_uas": ("probe", facts("validation"), share),
        "root_bias": ("probe", facts("root_bias")),
        "learning_rate": ("probe", facts("learning_rate"), rate_attrs),
        "epochs": ("probe", facts("epochs", 0).astype(np.int64)),
        "converged": ("probe", facts("converged", 1).astype(bool), converged_attrs),
        "weight": (weight_dims, weight, {"long_name": "learned weight of a head"}),
    }
    return xr.Dataset(variables, coords={"probe": list(PROBES), "direction": list(DIRECTIONS)})
