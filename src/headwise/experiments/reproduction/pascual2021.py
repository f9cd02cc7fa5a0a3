"""Pascual et al. 2021, "Telling BERT's Full Story": figures 1 to 23."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import numpy as np
import xarray as xr
from scipy import stats as scipy_stats

from headwise.analyses.attribution.map_figures import map_pairs
from headwise.analyses.contract import make_analysis
from headwise.analyses.offsets.figures import PRINTED, centre_lines, histogram_grid
from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.schema import (
    Entry,
    EntryResult,
    NotRunError,
    ReportFigure,
    ReportRow,
    ReportTable,
    Reproduction,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    head_values,
    layer_table,
    layers_at_depth,
    layers_text,
    not_tried,
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
NEARLY_ALL_HEADS = 0.95
SOURCES = ("attention", "input")
FADING_PATTERNS = ("vertical", "diagonal", "vertical+diagonal")
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
    verdicts = local_verdicts(pearson, spearman)
    return EntryResult(rows, [table], figures, verdicts, deviations, inputs)


def local_verdicts(pearson: np.ndarray, spearman: np.ndarray) -> dict[str, Verdict]:
    """Judge whether nearly all heads correlate with the contributions of the previous layer."""
    n_heads = int(np.isfinite(pearson).sum())
    n_pearson = n_heads - int((pearson <= 0.7).sum())
    n_spearman = n_heads - int((spearman < 0.9).sum())
    return {
        "local-pearson": Verdict(
            f"{n_pearson} of {n_heads} heads", n_pearson / n_heads >= NEARLY_ALL_HEADS
        ),
        "local-spearman": Verdict(
            f"{n_spearman} of {n_heads} heads", n_spearman / n_heads >= NEARLY_ALL_HEADS
        ),
    }


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
    verdicts = far_verdicts(pearson, spearman)
    return EntryResult(rows, [table], figures, verdicts, deviations, inputs)


def far_verdicts(pearson: np.ndarray, spearman: np.ndarray) -> dict[str, Verdict]:
    """Judge the claims on the contributions of the input from correlations `[layer, head]`."""
    n_layers = len(pearson)
    late = layers_at_depth(5, 12, n_layers)
    last = layers_at_depth(9, 12, n_layers)
    third = layers_at_depth(3, 3, n_layers)[0]
    median_pearson = np.nanmedian(pearson, 1)
    median_spearman = np.nanmedian(spearman, 1)
    share_below_half = float((pearson[list(late)] < 0.5).mean())
    highest_last = float(median_pearson[list(last)].max())
    verdicts = {
        "decreases": not_tried("two layers"),
        "after-four": Verdict(
            f"{100 * share_below_half:.0f} % of the heads in {layers_text(late)}",
            share_below_half > 0.5,
        ),
        "last-four": Verdict(
            f"largest {highest_last:.2f} in {layers_text(last)}", highest_last < 0.25
        ),
        "spearman-three": Verdict(
            f"{median_spearman[third]:.2f} in layer {third}, {median_spearman[-1]:.2f} in the last",
            bool(median_spearman[third] < 0.7 and median_spearman[-1] < 0.25),
        ),
    }
    if n_layers > 2:
        trend = float(scipy_stats.spearmanr(np.arange(n_layers), median_pearson).statistic)
        verdicts["decreases"] = Verdict(f"Spearman {trend:.2f}", trend < -0.7)
    return verdicts


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
    verdicts: dict[str, Verdict] = {}
    if source == "attention":
        of_attention = attribution.sel(source=source)
        verdicts = position_verdicts(of_attention["centre"], of_attention["histogram"])
    return EntryResult(figures=[figure], verdicts=verdicts, deviations=deviations, inputs=inputs)


def position_verdicts(centre: xr.DataArray, histogram: xr.DataArray) -> dict[str, Verdict]:
    """Judge the claims on past and future.

    Parameters
    ----------
    centre : xr.DataArray
        The centre of mass `[layer, head]`, in tokens.
    histogram : xr.DataArray
        The mean weight `[layer, head, offset]`.
    """
    n_layers = centre.sizes["layer"]
    first = layers_at_depth(1, 3, n_layers)
    last = layers_at_depth(9, 12, n_layers)
    second = layers_at_depth(2, 2, n_layers)[0]
    centre_values = head_values(centre)
    mean_first = float(np.nanmean(centre_values[list(first)]))
    share_ahead = float((centre_values[list(last)] > 0).mean())
    weight = histogram.isel(layer=second)
    ahead = weight.sel(offset=weight["offset"] > 0)
    least_ahead = float((ahead.sum("offset") / weight.sum("offset")).min())
    return {
        "past-first": Verdict(f"{mean_first:+.1f} tokens in {layers_text(first)}", mean_first < 0),
        "future-later": Verdict(
            f"{100 * share_ahead:.0f} % of the heads in {layers_text(last)}", share_ahead > 0.5
        ),
        "negligible": Verdict(f"least {least_ahead:.3f} in layer {second}", least_ahead < 0.05),
    }


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
        verdicts={"languages": language_verdict(centres_by_name, without_model)},
        deviations=deviations,
    )


def language_verdict(
    centres_by_name: Mapping[str, np.ndarray], without_model: list[str]
) -> Verdict:
    """Judge whether the centre of mass `[layer]` moves ahead from the first to the last third in
    every language that has a model."""
    parts = []
    moves_ahead = []
    for name, centre in centres_by_name.items():
        n_third = max(1, len(centre) // 3)
        first = float(centre[:n_third].mean())
        last = float(centre[-n_third:].mean())
        parts.append(f"{name}: {first:+.1f}, then {last:+.1f}")
        moves_ahead.append(first < last)
    ours = "; ".join(parts)
    if without_model:
        return Verdict(ours, None, f"no model of its own for {' and '.join(without_model)}")
    return Verdict(ours, all(moves_ahead))


def centres(context: ReproductionContext) -> EntryResult:
    """Figure 5: centres of mass of attention and of contributions."""
    attribution, inputs, deviations = _attribution(context)
    mean_centre = attribution["centre"].mean("head")
    of_attention = mean_centre.sel(source="attention").values
    of_input = mean_centre.sel(source="input").values
    columns = {"attention": of_attention, "input contribution": of_input}
    table = layer_table("Mean centre of mass (tokens)", columns)
    figures = registered_figures("attribution", attribution, "centre")
    verdicts = {"uniform": uniform_verdict(of_attention, of_input)}
    return EntryResult((), [table], figures, verdicts, deviations, inputs)


def uniform_verdict(of_attention: np.ndarray, of_input: np.ndarray) -> Verdict:
    """Judge whether input contributions lie less than half as far off centre as attention, from
    the mean centre `[layer]`."""
    late = layers_at_depth(5, 12, len(of_attention))
    attention_offset = float(np.abs(of_attention[list(late)]).mean())
    input_offset = float(np.abs(of_input[list(late)]).mean())
    ours = (
        f"attention {attention_offset:.1f}, input {input_offset:.1f} tokens in {layers_text(late)}"
    )
    return Verdict(ours, input_offset < attention_offset / 2)


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
    verdicts = pattern_verdicts(pattern_share)
    return EntryResult((), [table], figures, verdicts, deviations, inputs)


def pattern_verdicts(pattern_share: xr.DataArray) -> dict[str, Verdict]:
    """Judge the claims on patterns from the share of maps `[source, layer, pattern]`."""
    mean = pattern_share.mean("layer")
    parts = []
    kept_share = {}  # of a pattern's share in attention, what is left in contributions
    for name in map(str, pattern_share["pattern"].values):
        in_attention = float(mean.sel(source="attention", pattern=name))
        in_input = float(mean.sel(source="input", pattern=name))
        parts.append(f"{name} {in_attention:.2f} → {in_input:.2f}")
        kept_share[name] = in_input / max(in_attention, 1e-9)
    most_kept = max(kept_share[name] for name in FADING_PATTERNS)
    late = list(layers_at_depth(5, 12, pattern_share.sizes["layer"]))
    late_block = pattern_share.sel(source="input", pattern="block").isel(layer=late)
    highest_block = float(late_block.max())
    return {
        "block-stays": Verdict(", ".join(parts), most_kept < 1 and kept_share["block"] > most_kept),
        "no-deep-block": Verdict(
            f"largest share of a layer {highest_block:.3f}", highest_block <= 0.02
        ),
    }


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


def _map_entries() -> list[Entry]:
    """Figures 12 to 23, one for each layer of BERT-base."""
    entries = []
    for layer in range(12):
        title = f"attention over input contribution, layer {layer}"
        entries.append(Entry(f"fig{12 + layer}", title, partial(maps, layer=layer)))
    return entries


REPRODUCTION = Reproduction(
    "pascual2021",
    (
        "BERT-base uncased, not fine-tuned; German and Arabic BERT for Figure 4.",
        "1800 examples of MNLI-m's dev part of 6 to 64 tokens (as many as a head has dimensions, "
        "where attention is identifiable); XNLI for Figure 4.",
        "Contributions by Hidden Token Attribution, from the layer below and from the input; means "
        "over all tokens.",
    ),
    (
        Entry("text5", "the inputs", setup),
        Entry("fig1", "attention against contributions of the previous layer", local),
        Entry(
            "fig2",
            "attention by relative position, layers 2, 5 and 10",
            partial(chosen, source="attention"),
        ),
        Entry(
            "fig3",
            "input contribution by relative position, layers 2, 5 and 10",
            partial(chosen, source="input"),
        ),
        Entry("fig4", "centres of mass of attention in three languages", languages),
        Entry("fig5", "centres of mass of attention and input contribution", centres),
        Entry("fig6", "attention against contributions of the input", far),
        Entry("fig7", "five patterns, in attention and in input contribution", patterns),
        Entry(
            "fig8",
            "attention by relative position, first half",
            partial(half, source="attention", which=0),
        ),
        Entry(
            "fig9",
            "attention by relative position, second half",
            partial(half, source="attention", which=1),
        ),
        Entry(
            "fig10",
            "input contribution by relative position, first half",
            partial(half, source="input", which=0),
        ),
        Entry(
            "fig11",
            "input contribution by relative position, second half",
            partial(half, source="input", which=1),
        ),
        *_map_entries(),
    ),
)
