"""The tool that trains the pattern classifier: its parts, the whole on a few maps, the shipped
files made again."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score
from torch import nn

from headwise.analyses import patterns
from headwise.analyses.patterns import (
    PATTERNS,
    Label,
    load_classifier,
    save_maps,
    shipped_classifier,
)
from headwise.analyses.patterns.maps import map_images
from headwise.analyses.patterns.network import WEIGHTS, PatternClassifier, PatternNetwork
from headwise.analyses.patterns.store import append_label
from headwise.core.errors import InputError

ROOT = Path(__file__).parents[3]
DATA = ROOT / "data" / "patterns"
SHIPPED = Path(patterns.__file__).parent
TOOL = ROOT / "tools" / "train_patterns"
if not TOOL.is_dir():
    pytest.skip("the tool is part of the repository, not of the package", allow_module_level=True)
sys.path.insert(0, str(TOOL))
labelled, planted, fitting, train = (
    importlib.import_module(name) for name in ("labelled", "planted", "fitting", "train")
)
Labelled, augmented, load_labelled = labelled.Labelled, labelled.augmented, labelled.load_labelled
Settings, fit, predict, head_folds, score = (
    fitting.Settings,
    fitting.fit,
    fitting.predict,
    train.head_folds,
    train.score,
)


def planted_set(count: int, seed: int = 0) -> Labelled:
    """Stripes and diagonals over noise, of several lengths, half of them causal."""
    rng = np.random.default_rng(seed)
    weights = torch.zeros(count, 40, 40)
    lengths, labels, causal = [], [], []
    for k in range(count):
        n = int(rng.integers(12, 41))
        a = 0.15 * rng.dirichlet(np.ones(n), n)
        if k % 2:
            a[:, rng.integers(0, n // 2)] += 0.85
        else:
            a[np.arange(1, n), np.arange(n - 1)] += 0.85
            a[0, 0] += 0.85
        look_back = bool(k % 4 > 1)
        a = np.tril(a) if look_back else a
        weights[k, :n, :n] = torch.tensor(a / np.maximum(a.sum(-1, keepdims=True), 1e-9))
        lengths.append(n)
        labels.append(0 if k % 2 else 1)
        causal.append(look_back)
    names = np.array([f"map {k}" for k in range(count)])
    heads = np.array([f"head {k // 3}" for k in range(count)])
    return Labelled(
        weights,
        torch.tensor(lengths),
        torch.tensor(causal),
        torch.tensor(labels),
        torch.eye(5)[labels],
        np.full(count, "m"),
        heads,
        np.full(count, "design"),
        names,
    )


def test_planted_maps_are_attention_with_what_their_label_says() -> None:
    made, again = planted.planted_maps(40, seed=3), planted.planted_maps(40, seed=3)
    assert made.digest == again.digest
    assert planted.planted_maps(5, seed=4).digest != planted.planted_maps(5, seed=3).digest
    assert torch.bincount(made.labels).tolist() == [8] * 5
    for k, n in enumerate(made.lengths.tolist()):
        weights = made.weights[k, :n, :n]
        torch.testing.assert_close(weights.sum(-1), torch.ones(n))
        assert made.weights[k].sum() == pytest.approx(n, rel=1e-4)
        near = torch.stack(
            [torch.diagonal(weights, offset).sum() / n for offset in range(-4, 5)]
        ).max()
        usual = float(weights.median())
        if made.causal[k]:
            assert weights.triu(1).abs().max() == 0
        if PATTERNS[made.labels[k]] in ("diagonal", "vertical+diagonal"):
            assert near > 1.5 / n  # more than uniform attention gives
        if PATTERNS[made.labels[k]] in ("vertical", "vertical+diagonal"):
            assert weights.mean(0).max() > 2 * usual


@pytest.mark.slow
def test_networks_trained_side_by_side_are_those_trained_in_turn() -> None:
    data, beside = planted_set(24), planted.planted_maps(10)
    settings = Settings(widths=(4,) * 8, epochs=1, batch=8, planted=0.5)
    tasks = [fitting.Task(np.arange(24) % 3 != k, settings, k) for k in range(2)]
    alone, together = (list(fitting.fit_all(data, beside, tasks, jobs)) for jobs in (1, 2))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(predict([one], data), predict([other], data), atol=1e-6)
    without = fit(data.select(tasks[0].keep), settings, 0)
    assert (
        np.abs(predict([without], data) - predict([alone[0]], data)).max() > 1e-6
    )  # planted maps took part


def test_augmented_maps_are_maps() -> None:
    data = planted_set(40)
    generator = torch.Generator().manual_seed(0)
    weights, lengths = augmented(data.weights, data.lengths, data.causal, generator)
    assert (lengths <= data.lengths).all()
    assert (lengths < data.lengths).any()
    for k, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(weights[k, :n, :n].sum(-1), torch.ones(n), atol=1e-4, rtol=0)
        assert weights[k, n:].abs().max() == 0 if n < 40 else True
        assert weights[k, :, n:].abs().max() == 0 if n < 40 else True
        if data.causal[k]:
            assert weights[k].triu(1).abs().max() == 0
        elif data.labels[k] == 0:  # the stripe is still there
            assert weights[k, :n, :n].mean(0).max() > 0.4


def test_folds_keep_heads_together() -> None:
    data = planted_set(60)
    fold = head_folds(data)
    assert set(fold) == set(range(5))
    for head in set(data.head):
        assert len(set(fold[data.head == head])) == 1


def test_a_small_network_learns_and_is_the_same_by_seed() -> None:
    settings = Settings(
        widths=(8,) * 8, epochs=15, batch=8, dropout=0.0, smoothing=0.0, augment=False
    )
    data, fresh = planted_set(32), planted_set(24, seed=1)
    short = replace(settings, epochs=1, batch=16, mixup=0.2, augment=True)
    np.testing.assert_array_equal(
        predict([fit(data, short, 5)], fresh), predict([fit(data, short, 5)], fresh)
    )
    networks = [fit(data, settings, 0)]
    said = [predict([network], fresh) for network in networks]
    assert (said[0].argmax(-1) == fresh.labels.numpy()).mean() > 0.9
    assert (
        networks[0].convolutions[0].weight[:, 3:].abs().max() == 0
    )  # channels it was not shown do not count


def test_scores_equal_others() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 200)
    said = np.where(rng.random(200) < 0.7, truth, rng.integers(0, 5, 200))
    heads = np.repeat([f"h{k}" for k in range(50)], 4)
    got = score(truth, said, heads)
    for k, name in enumerate(PATTERNS):
        assert got[name][0] == pytest.approx(f1_score(truth == k, said == k), abs=6e-4)
        assert got[name][1] <= got[name][0] <= got[name][2]
    assert got["macro F1"][0] == pytest.approx(f1_score(truth, said, average="macro"), abs=6e-4)
    assert got["accuracy"][0] == pytest.approx(accuracy_score(truth, said), abs=6e-4)
    # A class that does not occur says nothing about the classifier, and is not in the macro mean.
    few = truth < 4
    assert score(truth[few], np.minimum(said[few], 3), heads[few])["macro F1"][0] == pytest.approx(
        f1_score(truth[few], np.minimum(said[few], 3), average="macro"), abs=6e-4
    )


def test_reading_labelled_maps(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    save_maps(
        tmp_path / "maps.npz",
        {"a": rng.dirichlet(np.ones(8), 8), "b": rng.dirichlet(np.ones(5), 5)},
    )
    append_label(tmp_path / "labels.csv", Label("b", "block", "x"))
    append_label(tmp_path / "labels.csv", Label("a", "diagonal", "x", 2))
    append_label(tmp_path / "labels.csv", Label("b", "vertical", "y"))
    with (tmp_path / "maps.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "model", "causal", "layer", "head", "drawn"])
        writer.writerow(["b", "m", "0", "1", "2", "design"])
    got = load_labelled(tmp_path)
    assert (got.names.tolist(), got.lengths.tolist(), got.labels.tolist(), got.head.tolist()) == (
        ["b"],
        [5],
        [3],
        ["m L1H2"],
    )
    torch.testing.assert_close(got.weights[0].sum(-1), torch.ones(5))
    # A second labeller's opinion is there to be compared with; it must not replace the first nor
    # count twice.
    assert load_labelled(tmp_path, labeller="y").labels.tolist() == [0]
    with pytest.raises(InputError, match="no labels of 'z' in pass 1"):
        load_labelled(tmp_path, labeller="z")
    with pytest.raises(InputError, match="says nothing of the labelled map 'a'"):
        load_labelled(tmp_path, round=2)


def test_where_two_labelled_and_a_third_decided_their_labels_count(tmp_path: Path) -> None:
    names, rng = "abc", np.random.default_rng(0)
    save_maps(tmp_path / "maps.npz", {name: rng.dirichlet(np.ones(5), 5) for name in names})
    said = {
        "x": dict.fromkeys(names, "heterogeneous"),
        labelled.PAIR[0]: {"a": "block", "b": "vertical", "c": "vertical"},
        labelled.PAIR[1]: {"a": "block", "b": "diagonal", "c": "diagonal"},
        labelled.DECIDES: {"b": "diagonal", "c": "vertical+diagonal"},
    }
    for labeller, own in said.items():
        for name, label in own.items():
            append_label(tmp_path / "labels.csv", Label(name, label, labeller))
    with (tmp_path / "maps.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "model", "causal", "layer", "head", "drawn"])
        writer.writerows([name, "m", "0", "1", "2", "design"] for name in names)
    got = load_labelled(tmp_path)
    assert [PATTERNS[k] for k in got.labels] == ["block", "diagonal", "vertical+diagonal"]
    third = 1 / 3
    votes = [[0, 0, 0, 1, 0], [third, 2 * third, 0, 0, 0], [third, third, third, 0, 0]]
    torch.testing.assert_close(got.votes, torch.tensor(votes))
    assert load_labelled(tmp_path, labeller="x").labels.tolist() == [4] * 3
    # A network that learns votes learns something else than one that learns labels.
    settings = Settings(widths=(4,) * 8, epochs=1, batch=3, augment=False)
    one, other = (
        predict([fit(got, replace(settings, votes=votes), 0)], got) for votes in (False, True)
    )
    assert np.abs(one - other).max() > 1e-6


def test_saving_and_loading_is_the_same_function(tmp_path: Path) -> None:
    torch.manual_seed(1)
    networks = []
    for _ in range(2):
        made = PatternNetwork()
        # Statistics as after training, so that taking them into the convolution is a real test.
        for layer in made.convolutions:
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean = torch.randn(layer.num_features) * 0.1
                layer.running_var = torch.rand(layer.num_features) + 0.5
        made.load_state_dict(
            {
                k: v.half().float() if v.is_floating_point() else v
                for k, v in made.state_dict().items()
            }
        )
        networks.append(made.eval())
    counts = np.arange(25).reshape(5, 5)
    train.save_classifier(
        tmp_path / "w.safetensors", PatternClassifier(tuple(networks), counts, counts.T)
    )
    back = load_classifier(tmp_path / "w.safetensors")
    shown = map_images((3 * torch.randn(4, 30, 30)).softmax(-1), causal=False)
    with torch.no_grad():
        expected = sum(made(shown).softmax(-1) for made in networks) / 2
    torch.testing.assert_close(back.probabilities(shown), expected, atol=1e-5, rtol=1e-4)
    np.testing.assert_array_equal(back.confusion, counts)
    np.testing.assert_array_equal(back.confusion_causal, counts.T)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in back.networks[0].convolutions)


def test_typical_maps_are_sure_and_right_and_of_different_heads_and_texts() -> None:
    sure = np.array([0.9, 0.8, 0.95, 0.99, 0.9, 0.7, 0.94])
    probabilities = np.stack([sure, 1 - sure, *np.zeros((3, 7))], axis=1)
    maps = Labelled(
        weights=torch.zeros(7, 1, 1),
        lengths=torch.tensor([30, 30, 30, 10, 30, 30, 30]),
        causal=torch.tensor([False, False, False, False, False, True, False]),
        labels=torch.tensor([0, 0, 0, 0, 1, 0, 0]),
        votes=torch.eye(5)[[0, 0, 0, 0, 1, 0, 0]],
        model=np.full(7, "m"),
        head=np.array(["x", "y", "x", "z", "w", "v", "u"]),
        drawn=np.full(7, "design"),
        names=np.array(
            [f"m/{text}/h" for text in "1234563"]
        ),  # the last is on the text of the third, which is surer
    )
    assert train.pick_typical(maps, probabilities)["vertical"] == [2, 1, 5]


def test_the_whole_tool_on_a_few_maps(tmp_path: Path) -> None:
    """One tiny epoch from a folder of labelled maps to weights that load and say what they were
    trained on."""
    made = planted_set(48)
    maps, rows = {}, [["id", "model", "causal", "layer", "head", "drawn"]]
    for k, n in enumerate(made.lengths.tolist()):
        causal = bool(made.causal[k])
        model = ("story", "other")[k % 8 == 2] if causal else (train.HELD_OUT, "bert")[k % 8 > 3]
        maps[f"{model}/{k}/h"] = made.weights[k, :n, :n].numpy()
        rows.append([f"{model}/{k}/h", model, str(int(causal)), str(k), "0", "design"])
        label = PATTERNS[int(made.labels[k])]
        append_label(tmp_path / "labels.csv", Label(f"{model}/{k}/h", label, "x"))
    save_maps(tmp_path / "maps.npz", maps)
    with (tmp_path / "maps.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    out, report, typical = (tmp_path / name for name in ("w.safetensors", "r.json", "t.npz"))
    errors = tmp_path / "errors.json"
    files = f"{tmp_path} --out {out} --report {report} --typical {typical} --errors {errors}"
    train.main(f"{files} --networks 1 --fold-networks 1 --epochs 1 --planted 20".split())
    classifier = load_classifier(out)
    assert len(classifier.networks) == 1
    assert (
        classifier.confusion.sum() == 24
    )  # every encoder map is judged once by a network that did not see its head
    assert classifier.confusion_causal.sum() == 24
    assert json.loads(report.read_text())["causal, each model left out"]["n"] == 24
    assert typical.exists()
    by_head = json.loads(errors.read_text())
    counted = np.array(by_head["unseen"]["causal"]["tables"])
    assert counted.shape[1:] == (5, 5)
    np.testing.assert_array_equal(counted.sum(0), classifier.confusion_causal)
    with safe_open(out, "pt") as file:
        assert file.metadata()["data"] == load_labelled(tmp_path).digest


@pytest.fixture(scope="module")
def everything() -> Labelled:
    return load_labelled(DATA)


@pytest.fixture(scope="module")
def said_of_everything(everything: Labelled) -> np.ndarray:
    return train.probabilities_of(everything, shipped_classifier())


def test_the_shipped_weights_name_the_data_they_were_trained_on(everything: Labelled) -> None:
    with safe_open(SHIPPED / WEIGHTS, "pt") as file:
        about = file.metadata()
    assert about["data"] == everything.digest
    chosen = json.loads((DATA / "results.json").read_text())["chosen"]
    written = asdict(Settings()) | json.loads(
        about["settings"]
    )  # files from before a setting have its default
    assert json.loads(json.dumps(written)) == json.loads(
        json.dumps(asdict(train.CANDIDATES[chosen]))
    )
    other = replace(everything, labels=(everything.labels + 1) % len(PATTERNS))
    assert other.digest != everything.digest


@pytest.mark.slow
def test_the_shipped_typical_maps_are_made_again(
    everything: Labelled, said_of_everything: np.ndarray, tmp_path: Path
) -> None:
    train.write_typical(tmp_path / "typical.npz", everything, said_of_everything)
    with np.load(tmp_path / "typical.npz") as again, np.load(SHIPPED / "typical.npz") as shipped:
        assert again.files == shipped.files
        for name in shipped.files:
            np.testing.assert_array_equal(again[name], shipped[name])


@pytest.mark.slow
def test_the_held_out_figures_are_those_of_the_shipped_weights(
    everything: Labelled, said_of_everything: np.ndarray
) -> None:
    """The macro F1 reported for the model that training never saw comes out of the shipped weights
    and these maps."""
    own = everything.model == train.HELD_OUT
    held, said = everything.select(own), said_of_everything[own].argmax(-1)
    got = train.score(held.labels.numpy(), said, held.head, repeats=10)["macro F1"][0]
    reported = json.loads((DATA / "results.json").read_text())[f"held out, {train.HELD_OUT}"][
        "macro F1"
    ]
    assert got == pytest.approx(
        reported[0], abs=0.02
    )  # weights were rounded to half precision after scoring


def test_the_tables_of_results_are_what_the_labels_and_the_shipped_classifier_give() -> None:
    agree = importlib.import_module("agree")
    said, found = (DATA / "RESULTS.md").read_text(encoding="utf-8"), agree.all_tables(DATA)
    for name, table in found.items():
        there = said.partition(f"<!-- {name}, made by tools/train_patterns/agree.py -->")[
            2
        ].partition("<!-- end -->")[0]
        assert there.strip() == table
    made = found["agreement"]
    fourth, fifth = (_labels(name) for name in labelled.PAIR)
    both = sorted(set(fourth) & set(fifth))
    assert len(both) == 285
    pair = [fourth[name] for name in both], [fifth[name] for name in both]
    told = f"labellers fourth and fifth | 285 | {cohen_kappa_score(*pair):.2f}"
    assert told in made
    assert f"{f1_score(*pair, average='macro'):.2f} (" in next(
        line for line in made.splitlines() if told in line
    )


def _labels(labeller: str) -> dict[str, str]:
    """By map, the first pass of a labeller, read in another way than the tool's."""
    with (DATA / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["labeller"] == labeller and row["pass"] == "1"
        ]
    return {row["id"]: row["label"] for row in rows if row["id"].startswith("all-MiniLM-L6-v2/")}
