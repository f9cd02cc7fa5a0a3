"""§4.1 and §4.3 to §4.5: patterns of maps, change by fine-tuning, attention to features; Figures 1,
2, 5 to 7, App. A."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from headwise.analyses.contract import Analysis
from headwise.analyses.features.figures import from_cls, special_tokens
from headwise.analyses.patterns.figures import gallery, shares_by_corpus
from headwise.analyses.patterns.network import PATTERNS
from headwise.atlas.behaviours import attention_shares
from headwise.core.labels import head_name
from headwise.experiments.comparison import ComparisonOptions, compare
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.kovaleva2019.tasks import (
    analyse_by_task,
    compute_by_task,
    dev_corpus,
)
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportFigure,
    ReportRow,
    ReportTable,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    attention_maps,
    best_head,
    head_values,
    not_tried,
    only_if_trained,
    registered_figures,
    treebank_sentences,
)
from headwise.models import HeadModel
from headwise.plots import all_maps, heatmap_panels
from headwise.text.tasks import Task

HALF = 0.5
MIN_SHARE = 0.01  # of a pattern that "is repeated" (§4.1)
HETEROGENEOUS_SHARES = (0.32, 0.61)  # the paper's range over tasks (§4.1)
REPEATED_PATTERNS = ("vertical", "diagonal", "vertical+diagonal", "heterogeneous")
SPECIAL_TOKENS = ("cls", "sep")
N_TYPICAL = 100
N_TYPICAL_QUICK = 16
N_SENTENCES = 1000
N_SENTENCES_QUICK = 60
PAIRS = ("verb->subject", "noun->pronoun")  # §4.5
CLASSIFIER_DEVIATION = (
    "The authors released neither labels nor classifier: headwise's own was trained on maps that "
    "vision language models labelled (no person did) and on planted ones. It draws other borders "
    "between patterns."
)


# --- §4.1: patterns -------------------------------------------------------------------------------


def typical(context: ReproductionContext) -> EntryResult:
    """Figure 1."""
    limit = context.sample_size(N_TYPICAL, N_TYPICAL_QUICK)
    corpus, inputs, deviations = treebank_sentences(context, limit)
    patterns = context.run_analysis(corpus, context.analysis("patterns"))
    row = ReportRow(
        "f1",
        macro_f1(patterns["confusion"].values),
        note="macro F1 on held-out maps of like models, by labels of vision language models",
    )
    caption = (
        "Of the maps that vision language models labelled, those to which the classifier gives the "
        "highest probability."
    )
    figure = ReportFigure("gallery", "Typical maps of each pattern", caption, gallery())
    error_model = str(patterns.attrs.get("error_model", ""))
    if error_model:
        inputs["classifier scored on"] = error_model
    deviations.append(CLASSIFIER_DEVIATION)
    return EntryResult([row], figures=[figure], deviations=deviations, inputs=inputs)


def macro_f1(confusion: np.ndarray) -> float:
    """Return the mean F1 over the patterns that occur, from counts `[true, predicted]`."""
    n_correct = np.diag(confusion)
    n_true = confusion.sum(1)
    n_predicted = confusion.sum(0)
    f1 = 2 * n_correct / np.maximum(n_true + n_predicted, 1)
    return float(np.mean(f1[n_true > 0]))


def kinds(context: ReproductionContext) -> EntryResult:
    """Figure 2."""
    by_task = analyse_by_task(context, context.analysis("patterns"))
    results: dict[str, xr.Dataset] = by_task.results
    rows = []
    pattern_shares: dict[str, dict[str, float]] = {}
    for task, patterns in results.items():
        overall = patterns["overall"]
        pattern_shares[task] = {name: float(overall.sel(pattern=name)) for name in PATTERNS}
        heterogeneous = patterns.sel(pattern="heterogeneous")
        key = f"{task}-heterogeneous"
        label = f"heterogeneous, {task}"
        rows.append(ReportRow.from_variable(key, heterogeneous, "overall", label=label))
    cells = []
    for task, task_shares in pattern_shares.items():
        cells.append([task, *(100 * task_shares[name] for name in PATTERNS)])
    table = ReportTable("Share of maps by pattern (%)", ["task", *PATTERNS], cells)
    caption = "The share of all maps of all heads of each pattern."
    figure = ReportFigure("kinds", "Patterns of maps by task", caption, shares_by_corpus(results))
    return EntryResult(
        rows,
        [table],
        [figure],
        only_if_trained(context, pattern_verdicts(pattern_shares), results),
        [*by_task.deviations, CLASSIFIER_DEVIATION],
        by_task.inputs,
    )


def pattern_verdicts(pattern_shares: Mapping[str, Mapping[str, float]]) -> dict[str, Verdict]:
    """Judge the claims of §4.1 on the share of each pattern, by task."""
    heterogeneous = [task_shares["heterogeneous"] for task_shares in pattern_shares.values()]
    low, high = HETEROGENEOUS_SHARES
    in_range = all(low <= share <= high for share in heterogeneous)
    repeated = []
    for task_shares in pattern_shares.values():
        repeated += [task_shares[name] for name in REPEATED_PATTERNS]
    smallest = min(repeated)
    ours = f"{100 * min(heterogeneous):.0f} to {100 * max(heterogeneous):.0f} %"
    return {
        "heterogeneous": Verdict(ours, in_range),
        "repeated": Verdict(f"smallest share {100 * smallest:.1f} %", smallest >= MIN_SHARE),
    }


# --- §4.3: change by fine-tuning ------------------------------------------------------------------


def change(context: ReproductionContext) -> EntryResult:
    """Figure 5."""

    def compute(model: HeadModel, task: Task) -> xr.Dataset:
        def compare_maps() -> xr.Dataset:
            options = ComparisonOptions(
                analyses=(),
                names=("pre-trained", task.name),
                limit=None,
                seed=context.seed,
            )
            comparison = compare(
                [context.model, model],
                dev_corpus(task),
                options=options,
                progress=context.job.progress,
            )
            return comparison["change"]

        identity = {"task": task.fingerprint(), "model": model.identity()}
        return context.stored_dataset(f"cosine-{task.name}", identity, compare_maps)

    by_task = compute_by_task(context, compute)
    cosines = {}
    notes = []
    for task, comparison in by_task.results.items():
        cosines[task] = comparison["cosine_to"].isel(model=0, drop=True)
        notes.append(f"{task}: {comparison.attrs.get('examples', '?')} inputs")
    by_layer = {task: cosine.mean("head").values for task, cosine in cosines.items()}
    n_layers = len(next(iter(by_layer.values())))
    rows = [[task, *values.tolist()] for task, values in by_layer.items()]
    columns = ["task", *(f"L{layer}" for layer in range(n_layers))]
    table = ReportTable("Mean cosine over the heads of a layer", columns, rows)
    drawing = heatmap_panels(
        cosines,
        title="Similarity of attention maps before and after fine-tuning",
        label="cosine similarity",
        limits=(None, 1.0),
        annotate="none",
        notes=notes,
    )
    caption = (
        "Each cell is one head: the cosine of its flattened maps in both models on the same "
        "inputs. Dark: changed."
    )
    figure = ReportFigure("cosine", "How far maps are alike, by task", caption, drawing)
    verdicts = only_if_trained(context, last_layers_verdicts(by_layer), by_task.results)
    return EntryResult((), [table], [figure], verdicts, by_task.deviations, by_task.inputs)


def last_layers_verdicts(by_layer: Mapping[str, np.ndarray]) -> dict[str, Verdict]:
    """Judge whether the last two layers change most on every task but QQP, from the mean cosine
    `[layer]` by task."""
    tasks = [task for task in by_layer if task != "QQP"]
    if not tasks:
        return {}
    n_layers = len(by_layer[tasks[0]])
    if n_layers <= 3:
        return {}  # of three layers the last two are no finding
    as_claimed = []
    for task in tasks:
        two_lowest = sorted(np.argsort(by_layer[task], kind="stable")[:2].tolist())
        if two_lowest == [n_layers - 2, n_layers - 1]:
            as_claimed.append(task)
    ours = f"{len(as_claimed)} of {len(tasks)} ({', '.join(as_claimed) or 'none'})"
    return {"last-two": Verdict(ours, len(as_claimed) == len(tasks))}


# --- §4.4: attention to features ------------------------------------------------------------------


def _feature_analysis(context: ReproductionContext) -> Analysis:
    return context.analysis("features", features=("cls", "sep", "punct"), random_models=0)


def special(context: ReproductionContext) -> EntryResult:
    """Figure 6."""
    by_task = analyse_by_task(context, _feature_analysis(context))
    means: dict[str, dict[str, np.ndarray]] = {}
    for task, features in by_task.results.items():
        by_layer = features["attention"].mean("head")
        means[task] = {name: by_layer.sel(feature=name).values for name in SPECIAL_TOKENS}
    rows = []
    for task, mean in means.items():
        rows.append(
            [
                task,
                float(mean["sep"].mean()),
                float(mean["cls"].mean()),
                mean_layer(mean["sep"]),
                mean_layer(mean["cls"]),
            ]
        )
    columns = ["task", "to [SEP]", "to [CLS]", "mean layer of [SEP]", "of [CLS]"]
    table = ReportTable("Mean over heads", columns, rows)
    caption = (
        "Each cell is one head: the share of attention that the most attended such token gets "
        "from all tokens."
    )
    drawing = special_tokens(by_task.results)
    figure = ReportFigure("special", "Attention to [SEP] and [CLS] by task", caption, drawing)
    verdicts = only_if_trained(context, special_token_verdicts(means), by_task.results)
    return EntryResult((), [table], [figure], verdicts, by_task.deviations, by_task.inputs)


def mean_layer(attention: np.ndarray) -> float:
    """Return the mean layer of attention `[layer]`, weighted by the attention."""
    return float((attention * np.arange(len(attention))).sum() / attention.sum())


def special_token_verdicts(
    means: Mapping[str, Mapping[str, np.ndarray]],
) -> dict[str, Verdict]:
    """Judge the claims of §4.4 on attention `[layer]` to [CLS] and [SEP], by task."""
    early_cls = []
    to_sep = {}
    for task, mean in means.items():
        to_sep[task] = float(mean["sep"].mean())
        if mean_layer(mean["cls"]) < mean_layer(mean["sep"]):
            early_cls.append(task)
    verdicts = {
        "cls-early": Verdict(
            f"{len(early_cls)} of {len(means)} tasks", len(early_cls) == len(means)
        )
    }
    if "SST-2" in means and len(means) > 1:
        ours = ", ".join(f"{task} {share:.3f}" for task, share in to_sep.items())
        highest = max(to_sep, key=lambda task: to_sep[task])
        verdicts["sst-sep"] = Verdict(ours, highest == "SST-2")
    else:
        verdicts["sst-sep"] = not_tried("SST-2 and a task of pairs are needed")
    return verdicts


def last_layer(context: ReproductionContext) -> EntryResult:
    """Figure 7."""
    by_task = analyse_by_task(context, _feature_analysis(context))
    means: dict[str, dict[str, float]] = {}
    for task, features in by_task.results.items():
        means[task] = {}
        for name in ("sep", "cls", "punct"):
            means[task][name] = float(features["from_cls"].sel(feature=name).mean())
    rows = [[task, *mean.values()] for task, mean in means.items()]
    columns = ["task", "[SEP]", "[CLS]", ". and ,"]
    table = ReportTable("From [CLS] in the last layer, mean over heads", columns, rows)
    caption = (
        "The weight from [CLS] in the last layer to the most attended token of each type, head by "
        "head."
    )
    drawing = from_cls(by_task.results)
    figure = ReportFigure("from-cls", "What [CLS] attends to in the last layer", caption, drawing)
    deviation = "GLUE has no parts of speech: special tokens and punctuation alone are shown."
    verdicts = only_if_trained(context, {"cls-sep": cls_to_sep_verdict(means)}, by_task.results)
    return EntryResult(
        (), [table], [figure], verdicts, [*by_task.deviations, deviation], by_task.inputs
    )


def cls_to_sep_verdict(means: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge whether [CLS] attends more to [SEP] than to punctuation on most tasks."""
    as_claimed = [task for task, mean in means.items() if mean["sep"] > mean["punct"]]
    ours = f"{len(as_claimed)} of {len(means)} ({', '.join(as_claimed) or 'none'})"
    return Verdict(ours, len(as_claimed) > len(means) / 2)


def linguistic(context: ReproductionContext) -> EntryResult:
    """§4.4: attention to nouns, verbs and the like, on annotated text."""
    limit = context.sample_size(N_SENTENCES, N_SENTENCES_QUICK)
    corpus, inputs, deviations = treebank_sentences(context, limit)
    features = context.run_analysis(corpus, context.analysis("features"))
    highest = {}
    rows = []
    for name in map(str, features["feature"].values):
        attention = head_values(features["attention"].sel(feature=name))
        if not np.isfinite(attention).any():
            continue
        head = best_head(attention)
        highest[name] = float(attention[head])
        rows.append([name, highest[name], head_name(*head)])
    table = ReportTable(
        "The head with most attention to each feature", ["feature", "attention", "head"], rows
    )
    deviations.append(
        "On the pre-trained model and a treebank: GLUE's inputs have no parts of speech."
    )
    return EntryResult(
        tables=[table],
        figures=registered_figures("features", features, "features"),
        verdicts=feature_verdicts(highest),
        deviations=deviations,
        inputs=inputs,
    )


def feature_verdicts(highest: Mapping[str, float]) -> dict[str, Verdict]:
    """Judge whether linguistic features get under half of what special tokens get, from the
    highest attention of any head to each feature."""
    special_attention = [highest[name] for name in SPECIAL_TOKENS if name in highest]
    linguistic_attention = {}
    for name, attention in highest.items():
        if name not in (*SPECIAL_TOKENS, "punct"):
            linguistic_attention[name] = attention
    if not linguistic_attention or not special_attention:
        return {}
    most_attended = max(linguistic_attention, key=lambda name: linguistic_attention[name])
    attention = linguistic_attention[most_attended]
    to_special = max(special_attention)
    ours = f"{most_attended} {attention:.2f}, special tokens {to_special:.2f}"
    return {"special": Verdict(ours, attention < to_special / 2)}


# --- §4.5: token to token -------------------------------------------------------------------------


def token_pairs(context: ReproductionContext) -> EntryResult:
    """§4.5: verb to subject and noun to pronoun."""
    limit = context.sample_size(N_SENTENCES, N_SENTENCES_QUICK)
    corpus, inputs, deviations = treebank_sentences(context, limit)
    pair_scores = context.run_analysis(corpus, context.analysis("token_pairs"))
    behaviour_shares = attention_shares(context.run_analysis(corpus, context.analysis("surface")))
    neighbour_shares = []
    for behaviour in ("previous token", "next token"):
        if behaviour in behaviour_shares:
            neighbour_shares.append(behaviour_shares[behaviour])
    rows = []
    for pair in PAIRS:
        scores = head_values(pair_scores["attention"].sel(pair=pair))
        if not np.isfinite(scores).any():
            continue
        head = best_head(scores)
        on_neighbour = max(float(share[head]) for share in neighbour_shares)
        rows.append([pair, float(scores[head]), head_name(*head), on_neighbour])
    columns = [
        "pair",
        "score",
        "head",
        "its mean attention to the previous or next token, the larger",
    ]
    return EntryResult(
        tables=[ReportTable("The head with the highest score", columns, rows)],
        figures=registered_figures("token_pairs", pair_scores, "pairs", "excess"),
        verdicts=diagonal_verdicts(rows),
        deviations=deviations,
        inputs=inputs,
    )


def diagonal_verdicts(rows: Sequence[Sequence[object]]) -> dict[str, Verdict]:
    """Judge whether the best head of each pair is a diagonal one: over half on a neighbour.

    Each row has the pair, its score, the head, and the head's attention to a neighbour.
    """
    if not rows:
        return {}
    parts = []
    are_diagonal = []
    for pair, _, head, on_neighbour in rows:
        assert isinstance(on_neighbour, float)
        parts.append(f"{pair}: {head}, {on_neighbour:.2f} on a neighbour")
        are_diagonal.append(on_neighbour > HALF)
    return {"diagonal": Verdict("; ".join(parts), all(are_diagonal))}


# --- appendix -------------------------------------------------------------------------------------


def whole(context: ReproductionContext) -> EntryResult:
    """Appendix A."""

    def compute(model: HeadModel, task: Task) -> tuple[np.ndarray, list[str]]:
        by_length = sorted(
            task.dev, key=lambda example: len(str(example.text)) + len(str(example.pair or ""))
        )
        # A fairly short input, whose maps can be read.
        return attention_maps(model, by_length[len(by_length) // 4])

    by_task = compute_by_task(context, compute)
    caption = "Rows are attending tokens, columns attended ones; darker is more."
    figures = []
    for task, (maps, tokens) in by_task.results.items():
        title = f"All maps of one input of {task}"
        figures.append(ReportFigure(f"maps-{task}", title, caption, all_maps(maps, tokens)))
    return EntryResult(figures=figures, deviations=by_task.deviations, inputs=by_task.inputs)
