"""The inputs, and figures 1 to 23."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import numpy as np
import xarray as xr

from headwise.analyses.attribution.map_figures import map_pairs
from headwise.analyses.contract import make_analysis
from headwise.analyses.offsets.figures import PRINTED, centre_lines, histogram_grid
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.estimates import Estimates
from headwise.experiments.reproduction.pascual2021 import claims
from headwise.experiments.reproduction.rules import Evidence
from headwise.experiments.reproduction.schema import (
    Entry,
    EntryResult,
    NotRunError,
    ReportFigure,
    ReportRow,
    ReportTable,
)
from headwise.experiments.reproduction.shared import (
    head_values,
    layer_table,
    layers_at_depth,
    layers_text,
    registered_figures,
    sample_by_length,
    size_deviation,
)
from headwise.models import HeadModel
from headwise.plots import data, style
from headwise.text import Corpus, Example, open_corpus

N_INPUTS = 1800
N_INPUTS_QUICK = 10
N_OFFSETS_QUICK = 60  # inputs of each language in Figure 4
MIN_TOKENS = 6
MAX_TOKENS = 64
N_PATTERN_INPUTS = 100  # inputs whose maps are classified; the paper looked at some
LANGUAGES = {"en": "English", "de": "German", "ar": "Arabic"}
SHOWN_LAYERS = (2, 5, 10)  # of Figures 2 and 3
SOURCES = ("attention", "input")
SAMPLE_DIMS = ("layer", "head", "token", "source_token")


# --- §5: inputs -----------------------------------------------------------------------------------


def _inputs(context: ReproductionContext) -> tuple[Corpus, list[int], list[str]]:
    """Return the inputs, their lengths, and the deviations; drawn once for all entries."""
    return context.compute_once("inputs", partial(_draw_inputs, context))


def _draw_inputs(context: ReproductionContext) -> tuple[Corpus, list[int], list[str]]:
    # Attention is identifiable up to as many tokens as a head has dimensions.
    longest = min(MAX_TOKENS, context.model.d_head)
    name = context.data.first("glue-MNLI-dev", "xnli-en")
    deviations = []
    examples: list[Example]
    if context.data.find(name) is None:
        examples = list(context.built_in_corpus())
        deviations.append(
            "Neither MNLI nor XNLI was given: sentences of the built-in corpus (UD English EWT) "
            "stand in."
        )
    elif name == "xnli-en":
        examples = list(context.corpus(name))
        deviations.append("XNLI's English dev part in place of MNLI-m's: the same kind of pairs.")
    else:
        examples = list(context.task("MNLI", train=False).dev)
    count = context.sample_size(N_INPUTS, N_INPUTS_QUICK)
    corpus, lengths = sample_by_length(
        examples, name, count, (MIN_TOKENS, longest), context.model, context.seed
    )
    if not lengths:
        raise NotRunError(f"no input has {MIN_TOKENS} to {longest} tokens")
    if longest != MAX_TOKENS:
        deviations.append(
            f"At most {longest} tokens in place of 64: this model's heads have {longest} "
            "dimensions."
        )
    deviations += size_deviation(context, len(lengths), N_INPUTS)
    return corpus, lengths, deviations


def setup(context: ReproductionContext) -> EntryResult:
    """§5: the inputs."""
    _, lengths, deviations = _inputs(context)
    rows = [
        ReportRow("examples", len(lengths), note=f"{sum(lengths):,} tokens (printed: 63,456)"),
        ReportRow("longest", max(lengths)),
        ReportRow("median", float(np.median(lengths))),
    ]
    return EntryResult(rows, deviations=deviations)


def _attribution(
    context: ReproductionContext,
) -> tuple[xr.Dataset, dict[str, str], list[str]]:
    """Return attention and contributions on the same inputs."""
    corpus, lengths, deviations = _inputs(context)
    deviations = list(deviations)
    parameters = {
        "weighting": "tokens",
        "length": "all",
        "readings": (),
        "patterns": min(len(lengths), N_PATTERN_INPUTS),
    }
    attribution = context.run_analysis(corpus, make_analysis("attribution", parameters))
    error = attribution.attrs.get("total_variation")
    if error:
        deviations.append(
            f"Contributions by random tangents, median error of a row {100 * error:.1f} %."
        )
    inputs = {
        "text": f"{corpus.name}, {len(lengths):,} inputs of {min(lengths)} to {max(lengths)} tokens"
    }
    return attribution, inputs, deviations


# --- Figures 1 and 6: correlations ----------------------------------------------------------------


def _correlations(attribution: xr.Dataset, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return Pearson's and Spearman's correlations of attention with a source, `[layer, head]`."""
    of_source = attribution.sel(source=source)
    pearson = head_values(of_source["pearson"]).astype(float)
    spearman = head_values(of_source["spearman"]).astype(float)
    return pearson, spearman


def _correlation_table(pearson: np.ndarray, spearman: np.ndarray) -> ReportTable:
    columns = {
        "Pearson, median head": np.nanmedian(pearson, 1),
        "Pearson, lowest head": np.nanmin(pearson, 1),
        "Spearman, median head": np.nanmedian(spearman, 1),
        "Spearman, lowest head": np.nanmin(spearman, 1),
    }
    return layer_table("Means over tokens, by layer", columns)


def local(context: ReproductionContext) -> EntryResult:
    """Figure 1: attention and what the previous layer contributes."""
    attribution, inputs, deviations = _attribution(context)
    pearson, spearman = _correlations(attribution, "previous_layer")
    n_heads = int(np.isfinite(pearson).sum())
    of_heads = f"of {n_heads} heads"
    rows = [
        ReportRow(
            "pearson-low",
            int((pearson <= 0.7).sum()),
            note=f"{of_heads}; lowest {np.nanmin(pearson):.2f}",
        ),
        ReportRow("pearson-share", 100 * float((pearson > 0.85).sum() / n_heads), note=of_heads),
        ReportRow(
            "spearman-low",
            int((spearman < 0.9).sum()),
            note=f"{of_heads}; lowest {np.nanmin(spearman):.2f}",
        ),
        ReportRow("spearman-share", 100 * float((spearman > 0.95).sum() / n_heads), note=of_heads),
    ]
    previous_layer = attribution.sel(source=["previous_layer"])
    figures = registered_figures("attribution", previous_layer, "correlation")
    figures += registered_figures("attribution", attribution, "head")
    table = _correlation_table(pearson, spearman)
    evidence = claims.local_evidence(
        Estimates.of(attribution, "pearson", source="previous_layer"),
        Estimates.of(attribution, "spearman", source="previous_layer"),
        int(attribution.attrs["examples"]),
    )
    return EntryResult(rows, [table], figures, evidence, deviations, inputs)


def far(context: ReproductionContext) -> EntryResult:
    """Figure 6: attention and what the input contributes."""
    attribution, inputs, deviations = _attribution(context)
    pearson, spearman = _correlations(attribution, "input")
    n_layers = len(pearson)
    late = layers_at_depth(5, 12, n_layers)
    last = layers_at_depth(9, 12, n_layers)
    median_pearson = np.nanmedian(pearson, 1)
    median_spearman = np.nanmedian(spearman, 1)
    rows = [
        ReportRow(
            "pearson-after4", float(median_pearson[list(late)].max()), note=layers_text(late)
        ),
        ReportRow("pearson-last4", float(median_pearson[list(last)].max()), note=layers_text(last)),
        ReportRow("spearman-last", float(median_spearman[-1])),
    ]
    of_input = attribution.sel(source=["input"])
    figures = registered_figures("attribution", of_input, "correlation")
    table = _correlation_table(pearson, spearman)
    evidence = claims.far_evidence(
        Estimates.of(attribution, "pearson", source="input"),
        Estimates.of(attribution, "spearman", source="input"),
        int(attribution.attrs["examples"]),
    )
    return EntryResult(rows, [table], figures, evidence, deviations, inputs)


# --- Figures 2, 3, 8 to 11: relative positions ----------------------------------------------------


def _histogram_figure(attribution: xr.Dataset, source: str, layers: list[int]) -> ReportFigure:
    if not layers:
        raise NotRunError("the model has no layers at that depth")
    caption = (
        f"Offsets up to {PRINTED} tokens; each head scaled to its own peak, whose height is "
        "printed."
    )
    title = f"Relative positions, layers {', '.join(map(str, layers))}"
    with style.context():
        drawing = histogram_grid(attribution, source=source, window=PRINTED, layers=layers)
    return ReportFigure(source, title, caption, drawing)


def chosen(context: ReproductionContext, source: str) -> EntryResult:
    """Figures 2 and 3: histograms of the paper's layers 2, 5 and 10."""
    attribution, inputs, deviations = _attribution(context)
    n_layers = attribution.sizes["layer"]
    layers = sorted({layers_at_depth(number, number, n_layers)[0] for number in SHOWN_LAYERS})
    figure = _histogram_figure(attribution, source, layers)
    evidence: dict[str, Evidence] = {}
    if source == "attention":
        of_attention = attribution.sel(source=source)
        evidence = claims.position_evidence(
            of_attention["centre"], of_attention["histogram"], int(attribution.attrs["examples"])
        )
    return EntryResult(figures=[figure], evidence=evidence, deviations=deviations, inputs=inputs)


def half(context: ReproductionContext, source: str, which: int) -> EntryResult:
    """Figures 8 to 11: histograms of the first (0) or second (1) half of the layers."""
    attribution, inputs, deviations = _attribution(context)
    n_layers = attribution.sizes["layer"]
    middle = n_layers // 2
    layers = list(range(middle)) if which == 0 else list(range(middle, n_layers))
    figure = _histogram_figure(attribution, source, layers)
    return EntryResult(figures=[figure], deviations=deviations, inputs=inputs)


# --- Figures 4 and 5: centres of mass -------------------------------------------------------------


def languages(context: ReproductionContext) -> EntryResult:
    """Figure 4: centres of mass of attention in three languages."""
    offsets: dict[str, xr.Dataset] = {}
    deviations: list[str] = []
    without_model = []
    n_inputs = []
    count = context.sample_size(N_INPUTS, N_OFFSETS_QUICK)
    with ExitStack() as stack:
        for key, language in LANGUAGES.items():
            data_set = f"xnli-{key}"
            provided = context.options.finetuned.get(key)
            if context.data.find(data_set) is None:
                deviations.append(f"{language}: {context.data.missing(data_set)}.")
                without_model.append(language)
                continue
            if provided is None and key != "en":
                without_model.append(language)
            model = context.model
            if provided is not None:
                model = stack.enter_context(HeadModel.open(provided, device=context.options.device))
            examples = list(open_corpus(context.data.spec(data_set), tokenizer=model.tokenizer))
            corpus, lengths = sample_by_length(
                examples, data_set, count, (MIN_TOKENS, MAX_TOKENS), model, context.seed
            )
            name = f"{language} ({model.name})"
            offsets[name] = context.run_analysis(corpus, make_analysis("offsets"), model=model)
            n_inputs.append(len(lengths))
            deviations += size_deviation(context, len(lengths), N_INPUTS, f"inputs ({language})")
    if not offsets:
        raise NotRunError(context.data.missing("xnli-en"))
    if without_model:
        deviations.append(
            f"The paper has a model for each language; {' and '.join(without_model)} text was read "
            f"by {context.model.name}, which shows what that model does with it and reproduces "
            'nothing. Give the models as finetuned={"de": FOLDER, "ar": FOLDER}.'
        )
    centres_by_name = {}
    for name, result in offsets.items():
        centre = result["centre"].sel(source="attention").mean("head")
        centres_by_name[name] = centre.values
    table = layer_table("Mean centre of mass of attention (tokens)", centres_by_name)
    with style.context():
        figure = ReportFigure(
            "languages",
            "Mean centre of mass by layer",
            "A line for each language.",
            centre_lines(offsets),
        )
    return EntryResult(
        tables=[table],
        figures=[figure],
        evidence=claims.language_evidence(centres_by_name, without_model, min(n_inputs)),
        deviations=deviations,
    )


def centres(context: ReproductionContext) -> EntryResult:
    """Figure 5: centres of mass of attention and of contributions."""
    attribution, inputs, deviations = _attribution(context)
    mean_centre = attribution["centre"].mean("head")
    of_attention = mean_centre.sel(source="attention").values
    of_input = mean_centre.sel(source="input").values
    columns = {"attention": of_attention, "input contribution": of_input}
    table = layer_table("Mean centre of mass (tokens)", columns)
    figures = registered_figures("attribution", attribution, "centre")
    n_inputs = int(attribution.attrs["examples"])
    evidence = claims.uniform_evidence(of_attention, of_input, n_inputs)
    return EntryResult((), [table], figures, evidence, deviations, inputs)


# --- Figure 7: patterns ---------------------------------------------------------------------------


def patterns(context: ReproductionContext) -> EntryResult:
    """Figure 7: one head of each pattern, and which patterns persist."""
    attribution, inputs, deviations = _attribution(context)
    pattern_share = attribution["pattern_share"].sel(source=list(SOURCES))
    columns = {}
    for source in SOURCES:
        for name in map(str, pattern_share["pattern"].values):
            share = pattern_share.sel(source=source, pattern=name)
            columns[f"{source}: {name}"] = share.values
    table = layer_table("Share of maps of each pattern", columns)
    deviations.append(
        "Patterns by headwise's classifier of maps, whose mistakes are not taken out (§9.1 looks "
        "at maps)."
    )
    figures = registered_figures("attribution", attribution, "five", "patterns")
    evidence = claims.pattern_evidence(attribution)
    return EntryResult((), [table], figures, evidence, deviations, inputs)


# --- Figures 12 to 23: maps -----------------------------------------------------------------------


def maps(context: ReproductionContext, layer: int) -> EntryResult:
    """Figures 12 to 23: attention over contribution for every head of a layer."""
    attribution, inputs, deviations = _attribution(context)
    if layer >= attribution.sizes["layer"]:
        raise NotRunError(f"the model has {attribution.sizes['layer']} layers")
    if "sample_input" not in attribution:
        raise NotRunError("no input is short enough to be drawn whole")
    attention_maps = data.values(attribution, "sample_attention", SAMPLE_DIMS)
    input_maps = data.values(attribution, "sample_input", SAMPLE_DIMS)
    tokens = data.texts(attribution, "token_text")
    with style.context():
        drawing = map_pairs(attention_maps, input_maps, tokens, layers=[layer])
    caption = "Above attention, below what of the input is in the head's output."
    figure = ReportFigure("maps", f"Layer {layer}, all heads", caption, drawing)
    return EntryResult(figures=[figure], deviations=deviations, inputs=inputs)


def map_entries() -> list[Entry]:
    """Figures 12 to 23, one for each layer of BERT-base."""
    entries = []
    for layer in range(12):
        title = f"attention over input contribution, layer {layer}"
        entries.append(Entry(f"fig{12 + layer}", title, partial(maps, layer=layer)))
    return entries
