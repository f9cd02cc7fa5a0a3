"""§4.1 and §4.3 to §4.5: patterns of maps, change by fine-tuning, attention to features; Figures 1,
2, 5 to 7, App. A."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from headwise.experiments.reproduction.estimates import Estimates, weighted_layer
from headwise.experiments.reproduction.kovaleva2019 import claims
from headwise.experiments.reproduction.kovaleva2019.tasks import (
    analyse_by_task,
    compute_by_task,
    dev_corpus,
)
from headwise.experiments.reproduction.rules import Evidence
from headwise.experiments.reproduction.schema import (
    EntryResult,
    ReportFigure,
    ReportRow,
    ReportTable,
)
from headwise.experiments.reproduction.shared import (
    attention_maps,
    best_head,
    evidence_on_learned,
    head_values,
    registered_figures,
    special_token_deviations,
    treebank_sentences,
)
from headwise.models import HeadModel
from headwise.plots import all_maps, heatmap_panels
from headwise.text import annotate
from headwise.text.tasks import Task

N_CANDIDATES = 3  # heads that are shown for a pair of word classes (§4.5)
N_TYPICAL = 100
N_TYPICAL_QUICK = 16
N_SENTENCES = 1000
N_SENTENCES_QUICK = 60
FEATURE_TITLES = {"sep": "[SEP]", "cls": "[CLS]", "punct": ". and ,"}
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
        evidence_on_learned(
            context,
            ("heterogeneous", "repeated"),
            results,
            by_task.not_learned,
            claims.pattern_evidence,
        ),
        [*by_task.deviations, CLASSIFIER_DEVIATION],
        by_task.inputs,
    )


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

    def gather(comparisons: Mapping[str, xr.Dataset]) -> dict[str, Evidence]:
        cosine_by_task = {}
        n_inputs = []
        for task, comparison in comparisons.items():
            of_task = comparison.isel(model=0)
            cosine_by_task[task] = Estimates.of(of_task, "cosine_to")
            n_inputs.append(int(of_task["cosine_to_n"].max()))
        return claims.last_layers_evidence(cosine_by_task, min(n_inputs))

    evidence = evidence_on_learned(
        context, ("last-two",), by_task.results, by_task.not_learned, gather
    )
    return EntryResult((), [table], [figure], evidence, by_task.deviations, by_task.inputs)


# --- §4.4: attention to features ------------------------------------------------------------------


def _feature_analysis(context: ReproductionContext) -> Analysis:
    return context.analysis("features", features=("cls", "sep", "punct"), random_models=0)


def special(context: ReproductionContext) -> EntryResult:
    """Figure 6."""
    by_task = analyse_by_task(context, _feature_analysis(context))
    rows = []
    for task, features in by_task.results.items():
        to_sep = Estimates.of(features, "attention", feature="sep")
        to_cls = Estimates.of(features, "attention", feature="cls")
        rows.append(
            [
                task,
                to_sep.mean().value,
                to_cls.mean().value,
                weighted_layer(to_sep).value,
                weighted_layer(to_cls).value,
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
    evidence = evidence_on_learned(
        context,
        ("cls-early", "sst-sep"),
        by_task.results,
        by_task.not_learned,
        claims.special_token_evidence,
    )
    deviations = [*by_task.deviations, *special_token_deviations(context)]
    return EntryResult((), [table], [figure], evidence, deviations, by_task.inputs)


def last_layer(context: ReproductionContext) -> EntryResult:
    """Figure 7."""
    by_task = analyse_by_task(context, _feature_analysis(context))
    tables = [_from_cls_table("on the inputs of each task", by_task.results)]
    caption = (
        "The weight from [CLS] in the last layer to the most attended token of each type, head by "
        "head, on the inputs of each task."
    )
    title = "What [CLS] attends to in the last layer"
    figures = [ReportFigure("from-cls", title, caption, from_cls(by_task.results))]
    words = _features_of_words(context)
    if words.results:
        tables.append(_from_cls_table(words.text, words.results))
        caption = (
            "The weight from [CLS] in the last layer to the most attended token of each type, "
            f"nouns, verbs and the like among them: the models of the tasks {words.text}."
        )
        title = "What [CLS] attends to in the last layer, with parts of speech"
        figures.append(ReportFigure("from-cls-words", title, caption, from_cls(words.results)))
    evidence = evidence_on_learned(
        context, ("cls-sep",), by_task.results, by_task.not_learned, claims.cls_to_sep_evidence
    )
    deviations = [*by_task.deviations, *words.deviations]
    return EntryResult((), tables, figures, evidence, deviations, by_task.inputs | words.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class WordFeatures:
    """Attention to features of words by the model of each task, and on which text."""

    results: Mapping[str, xr.Dataset]
    text: str
    inputs: dict[str, str]
    deviations: Sequence[str]


def _features_of_words(context: ReproductionContext) -> WordFeatures:
    """Return attention to nouns, verbs and the like by the model of each task.

    GLUE has no parts of speech: its inputs are parsed where the options name a parser; otherwise
    the models read sentences of a treebank.
    """
    analysis = context.analysis("features", random_models=0)
    parser = context.options.parser
    if parser:

        def compute(model: HeadModel, task: Task) -> xr.Dataset:
            return context.run_analysis(annotate(dev_corpus(task), parser), analysis, model=model)

        by_task = compute_by_task(context, compute)
        inputs = {"parser": parser}
        return WordFeatures(by_task.results, "on the parsed inputs of each task", inputs, ())

    limit = context.sample_size(N_SENTENCES, N_SENTENCES_QUICK)
    sentences, inputs, deviations = treebank_sentences(context, limit)

    def compute_on_sentences(model: HeadModel, task: Task) -> xr.Dataset:
        return context.run_analysis(sentences, analysis, model=model)

    by_task = compute_by_task(context, compute_on_sentences)
    deviations.append(
        "GLUE has no parts of speech and no parser was given: nouns, verbs and the like are those "
        "of a treebank's sentences, read by the model of each task."
    )
    return WordFeatures(
        by_task.results,
        "on sentences of a treebank",
        {"parts of speech": inputs["text"]},
        deviations,
    )


def _mean_from_cls(features: xr.Dataset) -> dict[str, float]:
    """Return the mean over heads of the weight from [CLS], by feature; NaN where none has it."""
    means = {}
    for name in map(str, features["feature"].values):
        means[name] = float(features["from_cls"].sel(feature=name).mean())
    return means


def _from_cls_table(text: str, results: Mapping[str, xr.Dataset]) -> ReportTable:
    """Make a table of the weights from [CLS] in the last layer, by task and feature."""
    feature_names: list[str] = []
    rows = []
    for task, features in results.items():
        means = _mean_from_cls(features)
        feature_names = list(means)
        rows.append([task, *means.values()])
    titles = [FEATURE_TITLES.get(name, name) for name in feature_names]
    return ReportTable(
        f"From [CLS] in the last layer, mean over heads, {text}",
        ["task", *titles],
        rows,
    )


def linguistic(context: ReproductionContext) -> EntryResult:
    """§4.4: attention to nouns, verbs and the like, on annotated text."""
    limit = context.sample_size(N_SENTENCES, N_SENTENCES_QUICK)
    corpus, inputs, deviations = treebank_sentences(context, limit)
    features = context.run_analysis(corpus, context.analysis("features"))
    rows = []
    for name in map(str, features["feature"].values):
        attention = head_values(features["attention"].sel(feature=name))
        if not np.isfinite(attention).any():
            continue
        head = best_head(attention)
        rows.append([name, float(attention[head]), head_name(*head)])
    table = ReportTable(
        "The head with most attention to each feature", ["feature", "attention", "head"], rows
    )
    deviations.append(
        "On the pre-trained model and a treebank: GLUE's inputs have no parts of speech."
    )
    return EntryResult(
        tables=[table],
        figures=registered_figures("features", features, "features"),
        evidence=claims.feature_evidence(features),
        deviations=deviations,
        inputs=inputs,
    )


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
    candidates: dict[str, list[tuple[str, float]]] = {}
    for pair in PAIRS:
        scores = head_values(pair_scores["attention"].sel(pair=pair))
        if not np.isfinite(scores).any():
            continue
        candidates[pair] = []
        best_first = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=None, kind="stable")
        for index in best_first[:N_CANDIDATES].tolist():
            head = divmod(index, scores.shape[1])
            on_neighbour = max(float(share[head]) for share in neighbour_shares)
            candidates[pair].append((head_name(*head), on_neighbour))
            rows.append([pair, float(scores[head]), head_name(*head), on_neighbour])
    columns = [
        "pair",
        "score",
        "head",
        "its mean attention to the previous or next token, the larger",
    ]
    return EntryResult(
        tables=[ReportTable("The heads with the highest scores", columns, rows)],
        figures=registered_figures("token_pairs", pair_scores, "pairs", "excess"),
        evidence=claims.diagonal_evidence(candidates, corpus.survey().count),
        deviations=deviations,
        inputs=inputs,
    )


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
