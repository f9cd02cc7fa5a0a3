"""How much syntax all heads hold together: probes that parse from attention maps, with and without word vectors (Clark et al. 2019, §5)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from headwise.analyses.contract import Bench, Experiment, Paper, at_least, layer_head_coords
from headwise.analyses.probing.analysis import with_random_weights
from headwise.core.errors import InputError, MissingAnnotationError, ParameterError
from headwise.models.view import Layer, Rows
from headwise.models.words import word_index, word_maps
from headwise.probes.tree import (
    AttentionProbe,
    AttentionWordsProbe,
    DistanceWordsProbe,
    FitSettings,
    MapFile,
    TreeProbe,
    Trees,
    fit_tree_probe,
    mean_head_weights,
    right_branching,
    score_tree_probe,
)
from headwise.probes.vectors import MODEL, InputEmbeddings, WordVectors, read_vectors
from headwise.stats.accumulators import Ratios
from headwise.text.encode import Batch, Encoded, batches
from headwise.text.example import ROOT, Example

PROBES = ("attention", "attention_words", "distance_words", "random_attention_words", "right_branching")
DIRECTIONS = ("head_to_dependent", "dependent_to_head")  # w, then u
LEARNING_RATES = {"attention": 0.05, "attention_words": 0.005, "random_attention_words": 0.005, "distance_words": 0.005}
HIDDEN = 100
NORM = 32.0  # mean squared norm that word vectors are scaled to (GloVe's own is near it), so that one learning rate serves all
COLLECT_TOKENS = 2048
SHARES = (0.7, 0.1)  # training and validation, where the corpus is cut; the rest is the test part


@dataclass(frozen=True)
class TreeProbeAnalysis(Experiment):
    """Probes on all heads' word-level maps, §5 and Table 3.

    The probability that word i is the head of word j, over all other words of the sentence and the root:

    - `attention`: `p(i|j) ∝ exp(Σ_k w_k A_k[i, j] + u_k A_k[j, i])`;
    - `attention_words`: the same with `w_k = W_k · (v_i ⊕ v_j)`, `u_k = U_k · (v_i ⊕ v_j)`, v fixed word vectors (a word without one: zero);
    - `distance_words`: one hidden layer on v_i, v_j and distance features;
    - `random_attention_words`: `attention_words` on a model with the trained embeddings and all other weights random;
    - `right_branching`: the next word.

    The root is a candidate with zero attention, a learned bias and, for probes with words, a learned vector. Probes are trained on words that are no punctuation; the state
    with the best validation UAS is kept.

    Gives `uas[probe]` on the test part without punctuation, with `uas_n` (sentences) and a 95 % interval `uas_low`, `uas_high` over sentences (a ratio estimator: every word
    alike); `uas_deviation[probe]`: standard deviation over seeds; `validation_uas[probe]`; `weight[probe, direction, layer, head]`: the learned weight of each head
    (`head_to_dependent`: w, `dependent_to_head`: u), for `attention_words` its mean over test words and their true heads. Attributes count sentences of each part.

    Maps are kept in one memory-mapped float16 file per part, deleted when the probes on it are done.

    Parameters
    ----------
    train
        A corpus (file or SPEC) to train on, part of it for validation; the corpus of the run is then the test part. Without it, that corpus is cut by seed: 70 % training, 10 %
        validation, 20 % test.
    train_sentences, test_sentences
        At most so many, drawn by seed; 0 for all.
    validation
        The share of `train` that is kept for validation.
    vectors
        `model` (mean input embedding of a word's pieces) or a file of word vectors (GloVe text or npz).
    longest
        Sentences of more words are left out and counted.
    epochs, patience, learning_rate
        At most so many epochs; stop after so many without a better validation UAS; 0 for the rate of each probe.
    seeds
        How often each trained probe is trained: `uas` is that of the first, `uas_deviation` over all.
    seed
        For splits, sampling, order of batches and random weights.
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
    seed: int = 0

    name: ClassVar[str] = "tree_probe"
    title: ClassVar[str] = "Syntax in all heads together: probes that parse"
    paper: ClassVar[Paper] = Paper("clark2019", "§5, Table 3")
    requires: ClassVar[frozenset[str]] = frozenset({"words", "dependencies"})
    budget: ClassVar[int | None] = 200

    def __post_init__(self) -> None:
        for name, low in (
            ("train_sentences", 0),
            ("test_sentences", 0),
            ("longest", 2),
            ("epochs", 1),
            ("patience", 1),
            ("seeds", 1),
            ("seed", 0),
        ):
            at_least(name, getattr(self, name), low)
        at_least("learning_rate", self.learning_rate, 0)
        if not 0 < self.validation < 1:
            raise ParameterError(f"`validation` must lie between 0 and 1; it is {self.validation!r}.")

    def perform(self, bench: Bench) -> xr.Dataset:
        torch.manual_seed(self.seed)
        data = self._collect_rows(bench)
        vectors = self._vectors(bench.model, data.rows)
        trees = make_trees(data.rows, vectors)
        fitted: dict[str, _Fitted] = {}
        if data.parts["train"].size == 0 or data.parts["validation"].size == 0 or data.parts["test"].size == 0:
            raise InputError(
                f"The probes need sentences for training, validation and test; there are {', '.join(f'{len(p)} for {n}' for n, p in data.parts.items())}: give more."
            )
        folder = Path(bench.folder)
        folder.mkdir(parents=True, exist_ok=True)
        for kind, wanted in (
            ("trained", ("attention", "attention_words", "distance_words")),
            ("random", ("random_attention_words",)),
        ):
            missing = [name for name in wanted if not (folder / f"{name}.npz").exists()]
            if missing:
                model = bench.model if kind == "trained" else random_but_embeddings(bench.model, self.seed)
                file = self._maps(model, data.rows, folder / f"maps-{kind}.f16", bench, kind)
                for name in missing:
                    bench.progress(f"tree_probe: {name.replace('_', ' ')}", 0, self.epochs)
                    self._fit(name, trees, file, data.parts, str(bench.model.device), bench).save(
                        folder / f"{name}.npz"
                    )
                file.close(delete=True)
            fitted |= {name: _Fitted.load(folder / f"{name}.npz") for name in wanted}
        correct, total = right_branching(trees, data.parts["test"])
        fitted["right_branching"] = _Fitted(
            correct, total, np.array([correct.sum() / max(total.sum(), 1)]), float("nan"), np.zeros((0, 2))
        )
        dataset = probe_dataset(fitted, bench.shape.layers, bench.shape.heads).assign_coords(
            layer_head_coords(bench.shape)
        )
        vector_name = self.vectors if self.vectors == MODEL else Path(self.vectors).name
        return dataset.assign_attrs(
            vectors=vector_name,
            vector_coverage=vectors.coverage,
            sentences_unaligned=data.unaligned,
            sentences_too_long=data.too_long,
            words_tested=int(total.sum()),
            **{f"sentences_{name}": len(part) for name, part in data.parts.items()},
        )

    # --- collect ----------------------------------------------------------------------------------------------------

    def _collect_rows(self, bench: Bench) -> _Data:
        """The encoded sentences of all parts, and which are for what."""
        from headwise.text import open_corpus

        generator = np.random.default_rng([self.seed, 1])
        unaligned = too_long = 0

        def rows_of(examples: Iterable[Example], wanted: int, first: int) -> list[Encoded]:
            nonlocal unaligned, too_long
            kept: list[Encoded] = []
            for example in examples:
                if example.heads is None or example.relations is None or example.words is None:
                    continue
                row = (
                    bench.model.encoder.encode(example, first + len(kept))
                    if len(example.all_words) <= self.longest
                    else None
                )
                if row is None or row.truncated:
                    too_long += 1
                elif not row.aligned:
                    unaligned += 1
                else:
                    kept.append(row)
            if wanted and len(kept) > wanted:
                chosen = np.sort(generator.permutation(len(kept))[:wanted])
                kept = [kept[i] for i in chosen]
            return kept

        own = islice(bench.corpus, bench.limit)
        if self.train:
            corpus = open_corpus(self.train, tokenizer=bench.model.tokenizer)
            if "dependencies" not in corpus.annotations:
                raise MissingAnnotationError(f"`train`: {corpus.name} has no trees; give a treebank (.conllu).")
            for_training = rows_of(corpus, self.train_sentences, 0)
            rows = [*for_training, *rows_of(own, self.test_sentences, len(for_training))]
            order = generator.permutation(len(for_training))
            held_out = max(1, round(self.validation * len(order)))
            parts = {
                "train": order[held_out:],
                "validation": order[:held_out],
                "test": np.arange(len(for_training), len(rows)),
            }
        else:
            rows = rows_of(own, 0, 0)
            order = generator.permutation(len(rows))
            ends = np.round(np.cumsum(SHARES) * len(rows)).astype(int)
            train, validation, test = np.split(order, ends)
            parts = {
                "train": train[: self.train_sentences or None],
                "validation": validation,
                "test": np.sort(test[: self.test_sentences or None]),
            }
        return _Data(rows, parts, unaligned, too_long)

    def _vectors(self, model: Any, rows: Sequence[Encoded]) -> WordVectors:
        if self.vectors == MODEL:
            return InputEmbeddings(model)
        return WordVectors(read_vectors(self.vectors, {word for row in rows for word in row.example.all_words}))

    def _maps(self, model: Any, rows: Sequence[Encoded], path: Path, bench: Bench, kind: str) -> MapFile:
        """Run a model over all sentences once and write its word-level maps; a file that is complete is used again."""
        sizes, heads = [row.word_count for row in rows], model.layers * model.heads
        done = path.with_suffix(".done")
        if not (done.exists() and path.exists()):
            file = MapFile(path, sizes, heads, write=True)
            place = {id(row): i for i, row in enumerate(rows)}
            seen = 0
            for batch in batches(list(rows), COLLECT_TOKENS, model.pad_id, model.device):
                watcher = _Maps(batch)
                model.forward(batch, watcher)
                maps = watcher.maps()
                for number, row in enumerate(batch.rows):
                    n = row.word_count
                    file.write(place[id(row)], maps[number, :, :n, :n])
                seen += len(batch)
                bench.progress(f"tree_probe: maps of the {kind} model", seen, len(rows))
            file.close()
            done.touch()
        return MapFile(path, sizes, heads)

    # --- fit and score ----------------------------------------------------------------------------------------------

    def _fit(
        self, name: str, trees: Trees, file: MapFile, parts: dict[str, np.ndarray], device: str, bench: Bench
    ) -> _Fitted:
        size = trees.vectors[0].shape[1]
        results = []
        best = float("nan")
        for repeat in range(self.seeds):
            seed = self.seed + repeat
            probe = make_probe(name, file.heads, size, seed)
            settings = FitSettings(
                self.learning_rate or LEARNING_RATES[name], self.epochs, self.patience, seed=seed, device=device
            )
            validation = fit_tree_probe(
                probe,
                trees,
                file,
                parts["train"],
                parts["validation"],
                settings,
                lambda epoch, _: bench.progress(f"tree_probe: {name.replace('_', ' ')}", epoch, self.epochs),
            )
            correct, total = score_tree_probe(probe, trees, file, parts["test"], settings)
            weights = np.zeros((0, 2))
            if repeat == 0 and name in ("attention", "attention_words"):
                weights = mean_head_weights(probe, trees, parts["test"], settings)
            results.append(_Fitted(correct, total, np.zeros(0), validation, weights))
            best = validation if repeat == 0 else best
        first = results[0]
        scores = np.array([r.correct.sum() / max(r.total.sum(), 1) for r in results])
        return _Fitted(first.correct, first.total, scores, best, first.weights)


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    rows: list[Encoded]
    parts: dict[str, np.ndarray]
    unaligned: int
    too_long: int


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """What is kept of a trained probe: words found and scored of each test sentence, its UAS for each seed, the validation UAS, the weights of heads."""

    correct: np.ndarray
    total: np.ndarray
    by_seed: np.ndarray
    validation: float
    weights: np.ndarray

    def save(self, path: Path) -> None:
        temporary = path.with_suffix(".tmp.npz")
        np.savez(
            temporary,
            correct=self.correct,
            total=self.total,
            by_seed=self.by_seed,
            validation=self.validation,
            weights=self.weights,
        )
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> _Fitted:
        with np.load(path, allow_pickle=False) as file:
            return cls(file["correct"], file["total"], file["by_seed"], float(file["validation"]), file["weights"])


class _Maps:
    """Gathers the word-level maps of one batch, all layers."""

    needs = frozenset({"attention"})

    def __init__(self, batch: Batch) -> None:
        self.index = word_index(batch)
        self.layers: dict[int, Tensor] = {}

    def rows(self, rows: Rows) -> None:
        part = word_maps(rows, self.index)
        self.layers[rows.layer] = self.layers[rows.layer] + part if rows.layer in self.layers else part

    def layer(self, layer: Layer) -> None:
        pass

    def maps(self) -> np.ndarray:
        """`[example, layer · heads + head, from word, to word]`"""
        return torch.cat([self.layers[layer] for layer in sorted(self.layers)], dim=1).half().cpu().numpy()


def make_trees(rows: Sequence[Encoded], vectors: WordVectors) -> Trees:
    """Heads, scored words (all but punctuation) and vectors of sentences; vectors are scaled by one number for all."""
    found = [vectors.of(row) for row in rows]
    norms = np.concatenate([(v**2).sum(1) for v in found]) if found else np.zeros(0)
    typical = norms[norms > 0].mean() if (norms > 0).any() else 1.0
    scale = np.float32(np.sqrt(NORM / typical))
    heads = [np.array([row.word_count if h == ROOT else h for h in row.example.heads or ()]) for row in rows]
    scored = [np.array([relation.split(":")[0] != "punct" for relation in row.example.relations or ()]) for row in rows]
    return Trees([v * scale for v in found], heads, scored)


def make_probe(name: str, heads: int, size: int, seed: int) -> TreeProbe:
    """A probe by name, before training."""
    if name == "attention":
        return AttentionProbe(heads)
    if name == "distance_words":
        return DistanceWordsProbe(size, HIDDEN, torch.Generator().manual_seed(seed))
    return AttentionWordsProbe(heads, size)


def random_but_embeddings(model: Any, seed: int) -> Any:
    """The same architecture with its trained embeddings (every embedding table, and all else under a module named so) and random weights elsewhere."""
    made = with_random_weights(model, seed)
    trained = dict(model.module.named_modules())
    with torch.no_grad():
        for path, module in made.module.named_modules():
            if isinstance(module, nn.Embedding) or "embed" in path.rpartition(".")[2].lower():
                module.load_state_dict(copy.deepcopy(trained[path].state_dict()))
    return made


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
        if len(own.weights):
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
