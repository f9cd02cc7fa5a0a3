"""Steps that entries of several papers share: drawing inputs, layers at a depth, best heads,
tables, figures, verdicts on fine-tuned models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import xarray as xr

from headwise.atlas.behaviours import special_token_note
from headwise.core.errors import HeadwiseError, ParameterError, unknown
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.rules import Evidence
from headwise.experiments.reproduction.schema import (
    NotRunError,
    ReportFigure,
    ReportTable,
)
from headwise.models import HeadModel
from headwise.plots import figures_for
from headwise.text import Corpus, Example
from headwise.text.example import ROOT

N_SPECIAL_TOKEN_SENTENCES = 48  # on which the keys of special tokens are compared
BERT_LAYERS = 12  # of BERT-base; the papers count them from 1
FEW_ROWS = "fine-tuned on a few rows only (quick run)"
Result = TypeVar("Result")


# --- inputs ---------------------------------------------------------------------------------------


def sample_by_length(
    examples: Sequence[Example],
    name: str,
    count: int,
    lengths: tuple[int, int],
    model: HeadModel,
    seed: int,
) -> tuple[Corpus, list[int]]:
    """Draw examples whose number of tokens lies between two bounds.

    Parameters
    ----------
    examples : sequence of Example
        The examples to draw from.
    name : str
        The name of the resulting corpus.
    count : int
        The most examples to draw.
    lengths : tuple of int
        The smallest and the largest number of tokens.
    model : HeadModel
        The model whose tokenizer counts.
    seed : int
        The seed of the order in which examples are tried.

    Returns
    -------
    corpus : Corpus
        The drawn examples, in their original order.
    list of int
        The number of tokens of each.
    """
    shortest, longest = lengths
    n_tokens: dict[int, int] = {}
    for index in np.random.RandomState(seed).permutation(len(examples)).tolist():
        row = model.encoder.encode(examples[index], index)
        if row is not None and shortest <= len(row) <= longest:
            n_tokens[index] = len(row)
        if len(n_tokens) == count:
            break
    chosen = sorted(n_tokens)
    corpus = Corpus.from_examples([examples[index] for index in chosen], name)
    return corpus, [n_tokens[index] for index in chosen]


def size_deviation(
    context: ReproductionContext, count: int, paper_count: int, what: str = "inputs"
) -> list[str]:
    """Return a sentence where the number of inputs is not the paper's, else an empty list."""
    if count == paper_count:
        return []
    reduced = context.options.quick or context.options.scale != 1
    reason = "to save time" if reduced else "no more were given"
    return [f"{count:,} {what} in place of {paper_count:,}: {reason}."]


def size_text(corpus: Corpus) -> str:
    """Return how many sentences a corpus has, and in how many examples if these are not the same.

    Every tree has one root: an example with two is two sentences, as two segments or as one text.
    Where there are no trees, only examples are counted.
    """
    n_examples = 0
    n_sentences = 0
    for example in corpus:
        n_examples += 1
        n_sentences += (example.heads or ()).count(ROOT)
    if not n_sentences:
        return f"{n_examples:,} examples"
    if n_sentences == n_examples:
        return f"{n_sentences:,} sentences"
    return f"{n_examples:,} examples of {n_sentences:,} sentences"


def treebank_sentences(
    context: ReproductionContext, limit: int | None
) -> tuple[Corpus, dict[str, str], list[str]]:
    """Return English sentences with trees, a description of them, and the deviations."""
    substitution = (
        "No treebank was given: the built-in corpus (sentences of UD English EWT, a third of the "
        "examples two at a time) stands in."
    )
    corpus, deviations = context.corpus_or_built_in("ewt-dev", limit, substitution)
    inputs = {"text": f"{corpus.name}, {size_text(corpus)}"}
    return corpus, inputs, deviations


def special_token_deviations(context: ReproductionContext) -> list[str]:
    """Return a sentence where heads of some layers cannot tell the model's special tokens apart.

    What a paper says of [CLS] against [SEP] cannot be tried in such layers.
    """
    corpus, _, _ = treebank_sentences(context, N_SPECIAL_TOKEN_SENTENCES)
    surface = context.run_analysis(corpus, context.analysis("surface"))
    note = special_token_note(surface)
    return [f"{context.model.name}: {note}"] if note else []


def compute_by_task(
    tasks: Iterable[str], compute: Callable[[str], tuple[Result, Sequence[str]]]
) -> tuple[dict[str, Result], list[str]]:
    """Compute something for each task that is available.

    Parameters
    ----------
    tasks : iterable of str
        The names of the tasks.
    compute : callable
        Takes a task and returns its result and the deviations.

    Returns
    -------
    dict
        The results by task.
    list of str
        All deviations; a task that cannot be run is one of them.

    Raises
    ------
    NotRunError
        If no task can be run.
    """
    results: dict[str, Result] = {}
    deviations: list[str] = []
    for task in tasks:
        try:
            result, task_deviations = compute(task)
        except HeadwiseError as error:
            deviations.append(f"{task}: not run, {str(error).rstrip('.')}.")
        else:
            results[task] = result
            deviations += task_deviations
    if not results:
        raise NotRunError("; ".join(text.rstrip(".") for text in deviations))
    return results, deviations


# --- layers and heads -----------------------------------------------------------------------------


def layers_at_depth(first: int, last: int, n_layers: int) -> range:
    """Return the layers (from 0) of a model at the depth of the paper's `first` to `last` (from 1,
    of 12).

    >>> layers_at_depth(6, 10, 12), layers_at_depth(6, 10, 6), layers_at_depth(5, 12, 24)
    (range(5, 10), range(2, 5), range(8, 24))
    """
    start = int((first - 1) * n_layers / BERT_LAYERS)
    stop = round(last * n_layers / BERT_LAYERS)
    return range(start, max(start + 1, stop))


def layers_text(layers: range) -> str:
    """Return the layers as text.

    >>> layers_text(range(5, 10))
    'layers 5 to 9'
    """
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}"


def head_values(array: xr.DataArray) -> np.ndarray:
    """Return one value for each head, `[layer, head]`."""
    return np.asarray(array.transpose("layer", "head").values)


def attention_maps(model: HeadModel, example: Example) -> tuple[np.ndarray, list[str]]:
    """Return the maps of one input, `[layer, head, query, key]`, and its tokens."""
    attention = model.attention(example)
    maps = attention.transpose("layer", "head", "query", "key").values
    tokens = [str(token) for token in attention["query"].values]
    return maps, tokens


def best_head(values: np.ndarray) -> tuple[int, int]:
    """Return the head with the largest of `values[layer, head]`; of equals the first."""
    layer, head = divmod(int(np.nanargmax(values)), values.shape[1])
    return layer, head


def layer_table(title: str, columns: Mapping[str, np.ndarray], note: str = "") -> ReportTable:
    """Make a table with a row for each layer and a column for each array `[layer]`."""
    values_by_layer = zip(*(values.tolist() for values in columns.values()), strict=True)
    rows = []
    for layer, values in enumerate(values_by_layer):
        rows.append([f"L{layer}", *values])
    return ReportTable(title, ["layer", *columns], rows, note)


# --- figures and verdicts -------------------------------------------------------------------------


def registered_figures(group: str, dataset: xr.Dataset, *names: str) -> list[ReportFigure]:
    """Draw the registered figures of an analysis by name; those that do not apply are left out."""
    specs = {spec.name: spec for spec in figures_for(group)}
    figures = []
    for name in names:
        if name not in specs:
            raise ParameterError(unknown(f"figure of {group}", name, specs))
        for drawn in specs[name].draw(dataset):
            figures.append(
                ReportFigure(f"{group}-{drawn.name}", drawn.title, drawn.caption, drawn.figure)
            )
    return figures


def figures_of_task(task: str, figures: Iterable[ReportFigure]) -> list[ReportFigure]:
    """Add a task to the names and titles of figures, so that several tasks can be shown."""
    renamed = []
    for figure in figures:
        name = f"{task.lower()}-{figure.name}"
        renamed.append(replace(figure, name=name, title=f"{figure.title}: {task}"))
    return renamed


def evidence_on_learned(
    context: ReproductionContext,
    keys: Iterable[str],
    results: Mapping[str, Result],
    not_learned: Mapping[str, str],
    gather: Callable[[Mapping[str, Result]], Mapping[str, Evidence]],
) -> dict[str, Evidence]:
    """Return the evidence on claims about fine-tuned models, from those that learned something.

    Parameters
    ----------
    context : ReproductionContext
        The context of the entry. Models that a quick run has hardly trained decide nothing.
    keys : iterable of str
        The claims.
    results : mapping
        What was measured on the model of each task.
    not_learned : mapping of str to str
        Tasks whose model learned nothing, with the reason.
    gather : callable
        Takes the results of the other tasks and returns the evidence.
    """
    learned = {}
    for task, result in results.items():
        if task not in not_learned:
            learned[task] = result
    if not learned:
        reasons = "; ".join(f"{task}: {reason}" for task, reason in not_learned.items())
        return {key: Evidence(undecided=reasons or "no task was run") for key in keys}
    evidence = dict(gather(learned))
    is_provided = [context.provided_model(task) is not None for task in learned]
    if not context.options.quick or all(is_provided):
        return evidence
    withdrawn = {}
    for key, item in evidence.items():
        withdrawn[key] = replace(item, undecided=item.undecided or FEW_ROWS)
    return withdrawn
