"""§4.1 and §4.3 to §4.5: kinds of map, change by fine-tuning, attention to features; Figures 1, 2,
5 to 7, App. A."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headwise.analyses.contract import Analysis
from headwise.analyses.features.figures import from_cls, special_tokens
from headwise.analyses.patterns.figures import gallery, shares_by_corpus
from headwise.analyses.patterns.network import PATTERNS
from headwise.atlas.behaviours import shares
from headwise.core.labels import head_name
from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.kovaleva2019.tasks import each_task, inputs_of, watch_tasks
from headwise.experiments.reproduction.schema import Outcome, Picture, Row, Table, Verdict
from headwise.experiments.reproduction.shared import (
    annotated,
    best_head,
    by_head,
    judged,
    maps_of,
    pictures,
    untried,
)
from headwise.models import HeadModel
from headwise.plots import all_maps, heatmap_panels
from headwise.text.tasks import Task

LEAST, LOW, HIGH = 0.01, 0.32, 0.61
COMMON = ("vertical", "diagonal", "vertical+diagonal", "heterogeneous")
OWN_CLASSIFIER = (
    "The authors released neither labels nor classifier: headwise's own, trained on maps labelled by its makers and on "
    "planted ones, counts other borders between kinds."
)
SENTENCES, QUICK_SENTENCES = 1000, 60


def typical(bench: Bench) -> Outcome:
    """Figure 1."""
    corpus, seen, differs = annotated(bench, bench.count(100, 16))
    found = bench.watch(corpus, bench.analysis("patterns"))
    row = Row(
        "f1",
        _macro_f1(found["confusion"].values),
        note="macro F1 on held-out labelled maps of like models",
    )
    caption = "Labelled maps that the classifier is surest of."
    picture = Picture("gallery", "Typical maps of each kind", caption, gallery())
    told = str(found.attrs.get("error_model", ""))
    seen = seen | ({"classifier scored on": told} if told else {})
    return Outcome([row], pictures=[picture], differs=[*differs, OWN_CLASSIFIER], seen=seen)


def _macro_f1(confusion: np.ndarray) -> float:
    """Mean F1 over the kinds that occur, from counts `[true, said]`."""
    right, true, said = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    return float(np.mean((2 * right / np.maximum(true + said, 1))[true > 0]))


def kinds(bench: Bench) -> Outcome:
    """Figure 2."""
    found = watch_tasks(bench, bench.analysis("patterns"))
    results: dict[str, xr.Dataset] = found.results
    share = {
        task: {p: float(one["overall"].sel(pattern=p)) for p in PATTERNS}
        for task, one in results.items()
    }
    rows = []
    for task, one in results.items():
        own = one.sel(pattern="heterogeneous")
        rows.append(Row.of(f"{task}-heterogeneous", own, "overall", label=f"heterogeneous, {task}"))
    cells = [[task, *(100 * own[p] for p in PATTERNS)] for task, own in share.items()]
    table = Table("Share of maps by kind (%)", ["task", *PATTERNS], cells)
    mixed = [own["heterogeneous"] for own in share.values()]
    least = min(own[p] for own in share.values() for p in COMMON)
    told = f"{100 * min(mixed):.0f} to {100 * max(mixed):.0f} %"
    verdicts = {
        "heterogeneous": Verdict(told, all(LOW <= value <= HIGH for value in mixed)),
        "repeated": Verdict(f"smallest share {100 * least:.1f} %", least >= LEAST),
    }
    figure = shares_by_corpus(results)
    picture = Picture(
        "kinds", "Kinds of map by task", "The share of all maps of all heads of each kind.", figure
    )
    claims = judged(bench, verdicts, results)
    return Outcome(rows, [table], [picture], claims, [*found.differs, OWN_CLASSIFIER], found.seen)


def change(bench: Bench) -> Outcome:
    """Figure 5."""

    def ask(model: HeadModel, task: Task) -> xr.Dataset:
        def make() -> xr.Dataset:
            options = ComparisonOptions((), ("pre-trained", task.name), limit=None, seed=bench.seed)
            return compare([bench.model, model], inputs_of(task), options, report=bench.progress)[
                "change"
            ]

        return bench.dataset(
            f"cosine-{task.name}", {"task": task.fingerprint(), "model": model.identity()}, make
        )

    found = each_task(bench, ask)
    planes = {
        task: one["cosine_to"].isel(model=0, drop=True) for task, one in found.results.items()
    }
    layers = next(iter(planes.values())).sizes["layer"]
    rows, right, others = [], [], []
    for task, plane in planes.items():
        by_layer = plane.mean("head").values
        lowest = sorted(np.argsort(by_layer, kind="stable")[:2].tolist())
        if task != "QQP":
            others.append(task)
            right += [task] if lowest == [layers - 2, layers - 1] else []
        rows.append([task, *by_layer.tolist()])
    told = f"{len(right)} of {len(others)} ({', '.join(right) or 'none'})"
    enough = layers > 3 and bool(others)  # of three layers the last two are no finding
    verdicts = {"last-two": Verdict(told, len(right) == len(others))} if enough else {}
    table = Table(
        "Mean cosine over the heads of a layer", ["task", *(f"L{i}" for i in range(layers))], rows
    )
    figure = heatmap_panels(
        planes,
        title="Similarity of attention maps before and after fine-tuning",
        label="cosine similarity",
        limits=(None, 1.0),
        annotate="none",
        notes=[
            f"{task}: {one.attrs.get('examples', '?')} inputs"
            for task, one in found.results.items()
        ],
    )
    caption = "Each cell is one head: the cosine of its flattened maps in both models on the same inputs. Dark: changed."
    picture = Picture("cosine", "How far maps are alike, by task", caption, figure)
    return Outcome(
        (), [table], [picture], judged(bench, verdicts, found.results), found.differs, found.seen
    )


def special(bench: Bench) -> Outcome:
    """Figure 6."""
    found = watch_tasks(bench, _features(bench))
    means = {
        task: {
            name: one["attention"].sel(feature=name).mean("head").values for name in ("cls", "sep")
        }
        for task, one in found.results.items()
    }
    rows, early = [], []
    by_task: dict[str, float] = {}
    for task, own in means.items():
        by_task[task] = float(own["sep"].mean())
        layer = np.arange(len(own["cls"]))
        depth = {name: float((values * layer).sum() / values.sum()) for name, values in own.items()}
        rows.append(
            [
                task,
                *(float(own[name].mean()) for name in ("sep", "cls")),
                depth["sep"],
                depth["cls"],
            ]
        )
        early += [task] if depth["cls"] < depth["sep"] else []
    verdicts = {
        "cls-early": Verdict(f"{len(early)} of {len(means)} tasks", len(early) == len(means))
    }
    if "SST-2" in means and len(means) > 1:
        told = ", ".join(f"{task} {value:.3f}" for task, value in by_task.items())
        verdicts["sst-sep"] = Verdict(told, max(by_task, key=lambda task: by_task[task]) == "SST-2")
    else:
        verdicts["sst-sep"] = untried("SST-2 and a task of pairs are needed")
    table = Table(
        "Mean over heads", ["task", "to [SEP]", "to [CLS]", "mean layer of [SEP]", "of [CLS]"], rows
    )
    caption = "Each cell is one head: the share of attention that the most attended such token gets from all tokens."
    picture = Picture(
        "special", "Attention to [SEP] and [CLS] by task", caption, special_tokens(found.results)
    )
    return Outcome(
        (), [table], [picture], judged(bench, verdicts, found.results), found.differs, found.seen
    )


def _features(bench: Bench) -> Analysis:
    return bench.analysis("features", features=("cls", "sep", "punct"), random_models=0)


def last_layer(bench: Bench) -> Outcome:
    """Figure 7."""
    found = watch_tasks(bench, _features(bench))
    rows, most = [], []
    for task, one in found.results.items():
        mean = {
            name: float(one["from_cls"].sel(feature=name).mean())
            for name in ("sep", "cls", "punct")
        }
        rows.append([task, mean["sep"], mean["cls"], mean["punct"]])
        most += [task] if mean["sep"] > mean["punct"] else []
    told = f"{len(most)} of {len(rows)} ({', '.join(most) or 'none'})"
    verdicts = {"cls-sep": Verdict(told, len(most) > len(rows) / 2)}
    table = Table(
        "From [CLS] in the last layer, mean over heads", ["task", "[SEP]", "[CLS]", ". and ,"], rows
    )
    caption = "The weight from [CLS] in the last layer to the most attended token of each kind, head by head."
    picture = Picture(
        "from-cls", "What [CLS] attends to in the last layer", caption, from_cls(found.results)
    )
    differs = [
        *found.differs,
        "GLUE has no parts of speech: special tokens and punctuation alone are shown.",
    ]
    return Outcome(
        (), [table], [picture], judged(bench, verdicts, found.results), differs, found.seen
    )


def linguistic(bench: Bench) -> Outcome:
    """§4.4: attention to nouns, verbs and the like, on text with annotations."""
    corpus, seen, differs = annotated(bench, bench.count(SENTENCES, QUICK_SENTENCES))
    found = bench.watch(corpus, bench.analysis("features"))
    best = {}
    for name in map(str, found["feature"].values):
        own = by_head(found["attention"].sel(feature=name))
        if np.isfinite(own).any():
            head = best_head(own)
            best[name] = (float(own[head]), head_name(*head))
    words = {
        name: value for name, (value, _) in best.items() if name not in ("cls", "sep", "punct")
    }
    marks = {name: value for name, (value, _) in best.items() if name in ("cls", "sep")}
    verdicts = {}
    if words and marks:
        top, high = max(words, key=lambda name: words[name]), max(marks.values())
        told = f"{top} {words[top]:.2f}, special tokens {high:.2f}"
        verdicts["special"] = Verdict(told, words[top] < high / 2)
    rows = [[name, value, head] for name, (value, head) in best.items()]
    table = Table(
        "The head with most attention to each feature", ["feature", "attention", "head"], rows
    )
    differs = [
        *differs,
        "On the pre-trained model and a treebank: GLUE's inputs have no parts of speech.",
    ]
    drawn = pictures("features", found, "features")
    return Outcome(tables=[table], pictures=drawn, claims=verdicts, differs=differs, seen=seen)


def token_pairs(bench: Bench) -> Outcome:
    """§4.5: verb to subject and noun to pronoun."""
    corpus, seen, differs = annotated(bench, bench.count(SENTENCES, QUICK_SENTENCES))
    found = bench.watch(corpus, bench.analysis("token_pairs"))
    surface = bench.watch(corpus, bench.analysis("surface"))
    near = shares(surface)
    beside = [near[name] for name in ("previous token", "next token") if name in near]
    rows, diagonal = [], []
    for pair in ("verb->subject", "noun->pronoun"):
        own = by_head(found["attention"].sel(pair=pair))
        if not np.isfinite(own).any():
            continue
        head = best_head(own)
        most = max(float(one[head]) for one in beside)
        rows.append([pair, float(own[head]), head_name(*head), most])
        diagonal.append(most > 0.5)
    told = "; ".join(f"{pair}: {head}, {most:.2f} on a neighbour" for pair, _, head, most in rows)
    verdicts = {"diagonal": Verdict(told, all(diagonal))} if diagonal else {}
    columns = [
        "pair",
        "score",
        "head",
        "its mean attention to the previous or next token, the larger",
    ]
    table = Table("The head with the highest score", columns, rows)
    drawn = pictures("token_pairs", found, "pairs", "excess")
    return Outcome(tables=[table], pictures=drawn, claims=verdicts, differs=differs, seen=seen)


def whole(bench: Bench) -> Outcome:
    """Appendix A."""

    def ask(model: HeadModel, task: Task) -> tuple[np.ndarray, list[str]]:
        fitting = sorted(
            task.dev, key=lambda example: len(str(example.text)) + len(str(example.pair or ""))
        )
        return maps_of(model, fitting[len(fitting) // 4])

    found = each_task(bench, ask)
    caption = "Rows look at columns; darker is more."
    drawn = [
        Picture(f"maps-{task}", f"All maps of one input of {task}", caption, all_maps(*own))
        for task, own in found.results.items()
    ]
    return Outcome(pictures=drawn, differs=found.differs, seen=found.seen)
