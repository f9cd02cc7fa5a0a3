"""Pascual et al. 2021, "Telling BERT's Full Story": figures 1 to 23."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import numpy as np
import xarray as xr
from scipy import stats as scipy_stats

from headwise.analyses.attribution.map_figures import map_pairs
from headwise.analyses.contract import make_analysis
from headwise.analyses.offsets.figures import PRINTED, centre_lines, histogram_grid
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.schema import (
    Entry,
    NotRunError,
    Outcome,
    Picture,
    Reproduction,
    Row,
    Table,
    Verdict,
)
from headwise.experiments.reproduction.shared import (
    between,
    by_head,
    depth,
    layer_table,
    pictures,
    sizes_differ,
    untried,
    words,
)
from headwise.models import HeadModel
from headwise.plots import data, style
from headwise.text import Corpus, open_corpus

INPUTS, QUICK, SHORTEST, LONGEST = 1800, 10, 6, 64
LANGUAGES = {"en": "English", "de": "German", "ar": "Arabic"}
PATTERNED = 100  # inputs whose maps are sorted into patterns; the paper looked at some


def _inputs(bench: Bench) -> tuple[Corpus, list[int], list[str]]:
    """The inputs, their lengths, and what differs from the paper's; drawn once for all entries."""
    return bench.remember("inputs", lambda: _drawn_inputs(bench))


def _drawn_inputs(bench: Bench) -> tuple[Corpus, list[int], list[str]]:
    longest = min(LONGEST, bench.model.d_head)
    name = bench.data.first("glue-MNLI-dev", "xnli-en")
    differs = []
    if bench.data.find(name) is None:
        examples = list(bench.built_in())
        differs.append(
            "Neither MNLI nor XNLI was given: sentences of the built-in corpus (UD English EWT) stand in."
        )
    elif name == "xnli-en":
        examples = list(bench.corpus(name))
        differs.append("XNLI's English dev part in place of MNLI-m's: the same kind of pairs.")
    else:
        examples = list(bench.task("MNLI", train=False).dev)
    count = bench.count(INPUTS, QUICK)
    corpus, lengths = between(examples, name, count, (SHORTEST, longest), bench.model, bench.seed)
    if not lengths:
        raise NotRunError(f"no input has {SHORTEST} to {longest} tokens")
    if longest != LONGEST:
        differs.append(
            f"At most {longest} tokens in place of 64: this model's heads have {longest} dimensions."
        )
    return corpus, lengths, [*differs, *sizes_differ(bench, len(lengths), INPUTS)]


def _found(bench: Bench) -> tuple[xr.Dataset, dict[str, str], list[str]]:
    """Attention and contributions on the same inputs."""
    corpus, lengths, differs = _inputs(bench)
    parameters = {
        "weighting": "tokens",
        "length": "all",
        "readings": (),
        "patterns": min(len(lengths), PATTERNED),
    }
    found = bench.watch(corpus, make_analysis("attribution", parameters))
    error = found.attrs.get("total_variation")
    told = (
        [f"Contributions by random tangents, median error of a row {100 * error:.1f} %."]
        if error
        else []
    )
    seen = {
        "text": f"{corpus.name}, {len(lengths):,} inputs of {min(lengths)} to {max(lengths)} tokens"
    }
    return found, seen, [*differs, *told]


def setup(bench: Bench) -> Outcome:
    """§5: the inputs."""
    _, lengths, differs = _inputs(bench)
    rows = [
        Row("examples", len(lengths), note=f"{sum(lengths):,} tokens (printed: 63,456)"),
        Row("longest", max(lengths)),
        Row("median", float(np.median(lengths))),
    ]
    return Outcome(rows, differs=differs)


def _correlations(found: xr.Dataset, source: str) -> tuple[np.ndarray, np.ndarray]:
    one = found.sel(source=source)
    return by_head(one["pearson"]).astype(float), by_head(one["spearman"]).astype(float)


def _layers_table(found: xr.Dataset, source: str) -> Table:
    pearson, spearman = _correlations(found, source)
    rows = [
        [f"L{i}", *(float(f(p[i])) for p in (pearson, spearman) for f in (np.nanmedian, np.nanmin))]
        for i in range(len(pearson))
    ]
    columns = ["layer", "Pearson, median head", "lowest", "Spearman, median head", "lowest"]
    return Table("Means over tokens, by layer", columns, rows)


def local(bench: Bench) -> Outcome:
    """Figure 1: attention and what the previous layer contributes."""
    found, seen, differs = _found(bench)
    pearson, spearman = _correlations(found, "previous_layer")
    known = int(np.isfinite(pearson).sum())
    low, high = int((pearson <= 0.7).sum()), int((spearman < 0.9).sum())
    of = f"of {known} heads"
    rows = [
        Row("pearson-low", low, note=f"{of}; lowest {np.nanmin(pearson):.2f}"),
        Row("pearson-share", 100 * float((pearson > 0.85).sum() / known), note=of),
        Row("spearman-low", high, note=f"{of}; lowest {np.nanmin(spearman):.2f}"),
        Row("spearman-share", 100 * float((spearman > 0.95).sum() / known), note=of),
    ]
    claims = {
        "local-pearson": Verdict(f"{known - low} of {known} heads", (known - low) / known >= 0.95),
        "local-spearman": Verdict(
            f"{known - high} of {known} heads", (known - high) / known >= 0.95
        ),
    }
    drawn = pictures("attribution", found.sel(source=["previous_layer"]), "correlation")
    drawn += pictures("attribution", found, "head")
    return Outcome(rows, [_layers_table(found, "previous_layer")], drawn, claims, differs, seen)


def far(bench: Bench) -> Outcome:
    """Figure 6: attention and what the input contributes."""
    found, seen, differs = _found(bench)
    pearson, spearman = _correlations(found, "input")
    layers = len(pearson)
    late, last = depth(5, 12, layers), depth(9, 12, layers)
    middle, ranks = np.nanmedian(pearson, 1), np.nanmedian(spearman, 1)
    most = float(middle[list(last)].max())
    rows = [
        Row("pearson-after4", float(middle[list(late)].max()), note=words(late)),
        Row("pearson-last4", most, note=words(last)),
        Row("spearman-last", float(ranks[-1])),
    ]
    third = depth(3, 3, layers)[0]
    told = f"{ranks[third]:.2f} in layer {third}, {ranks[-1]:.2f} in the last"
    falls = (
        float(scipy_stats.spearmanr(np.arange(layers), middle).statistic) if layers > 2 else np.nan
    )
    under = float((pearson[list(late)] < 0.5).mean())
    claims = {
        "decreases": Verdict(f"Spearman {falls:.2f}", falls < -0.7)
        if layers > 2
        else untried("two layers"),
        "after-four": Verdict(f"{100 * under:.0f} % of the heads in {words(late)}", under > 0.5),
        "last-four": Verdict(f"largest {most:.2f} in {words(last)}", bool(most < 0.25)),
        "spearman-three": Verdict(told, bool(ranks[third] < 0.7 and ranks[-1] < 0.25)),
    }
    drawn = pictures("attribution", found.sel(source=["input"]), "correlation")
    return Outcome(rows, [_layers_table(found, "input")], drawn, claims, differs, seen)


def _histograms(found: xr.Dataset, source: str, layers: list[int], name: str) -> list[Picture]:
    if not layers:
        raise NotRunError("the model has no layers at that depth")
    caption = f"Offsets up to {PRINTED} tokens; each head scaled to its own peak, whose height is printed."
    with style.context():
        drawn = histogram_grid(found, source=source, window=PRINTED, layers=layers)
    return [
        Picture(name, f"Relative positions, layers {', '.join(map(str, layers))}", caption, drawn)
    ]


def chosen(bench: Bench, source: str) -> Outcome:
    """Figures 2 and 3: histograms of the paper's layers 2, 5 and 10."""
    found, seen, differs = _found(bench)
    layers = found.sizes["layer"]
    places = sorted({depth(number, number, layers)[0] for number in (2, 5, 10)})
    drawn = _histograms(found, source, places, source)
    claims: dict[str, Verdict] = {}
    if source == "attention":
        centre = found["centre"].sel(source=source).values
        first, last = depth(1, 3, layers), depth(9, 12, layers)
        early, ahead = (
            float(np.nanmean(centre[list(first)])),
            float((centre[list(last)] > 0).mean()),
        )
        second = depth(2, 2, layers)[0]
        mass = found["histogram"].sel(source=source).isel(layer=second)
        later = mass.sel(offset=mass["offset"] > 0).sum("offset") / mass.sum("offset")
        claims = {
            "past-first": Verdict(f"{early:+.1f} tokens in {words(first)}", early < 0),
            "future-later": Verdict(
                f"{100 * ahead:.0f} % of the heads in {words(last)}", ahead > 0.5
            ),
            "negligible": Verdict(
                f"least {float(later.min()):.3f} in layer {second}", bool(later.min() < 0.05)
            ),
        }
    return Outcome(pictures=drawn, claims=claims, differs=differs, seen=seen)


def half(bench: Bench, source: str, which: int) -> Outcome:
    """Figures 8 to 11: histograms of the first (0) or second (1) half of the layers."""
    found, seen, differs = _found(bench)
    count = found.sizes["layer"]
    layers = [list(range(count // 2)), list(range(count // 2, count))][which]
    return Outcome(pictures=_histograms(found, source, layers, source), differs=differs, seen=seen)


def languages(bench: Bench) -> Outcome:
    """Figure 4: centres of mass of attention in three languages."""
    found: dict[str, xr.Dataset] = {}
    differs: list[str] = []
    own = []
    count = bench.count(INPUTS, 60)
    with ExitStack() as stack:
        for key, name in LANGUAGES.items():
            data_set = f"xnli-{key}"
            if bench.data.find(data_set) is None:
                differs.append(f"{name}: {bench.data.missing(data_set)}.")
                continue
            given = bench.options.finetuned.get(key)
            model = bench.model
            if given is not None:
                model = stack.enter_context(HeadModel.open(given, device=bench.options.device))
            if given is not None or key == "en":
                own.append(key)
            examples = list(open_corpus(bench.data.spec(data_set), tokenizer=model.tokenizer))
            corpus, lengths = between(
                examples, data_set, count, (SHORTEST, LONGEST), model, bench.seed
            )
            found[f"{name} ({model.name})"] = bench.watch(
                corpus, make_analysis("offsets"), model=model
            )
            differs += sizes_differ(bench, len(lengths), INPUTS, f"inputs ({name})")
    if not found:
        raise NotRunError(bench.data.missing("xnli-en"))
    lacking = [name for key, name in LANGUAGES.items() if key not in own]
    if lacking:
        differs.append(
            f"The paper has a model for each language; {' and '.join(lacking)} text was read by {bench.model.name}, "
            "which shows what that model does with it and reproduces nothing. Give models with --finetuned de=FOLDER "
            "and --finetuned ar=FOLDER."
        )
    centres = {
        name: one["centre"].sel(source="attention").mean("head").values
        for name, one in found.items()
    }
    table = layer_table("Mean centre of mass of attention (tokens)", centres)
    third = max(1, bench.model.layers // 3)
    moves = {
        name: (float(v[:third].mean()), float(v[-third:].mean())) for name, v in centres.items()
    }
    told = "; ".join(
        f"{name}: {first:+.1f}, then {last:+.1f}" for name, (first, last) in moves.items()
    )
    holds = all(first < last for first, last in moves.values()) if not lacking else None
    why = "" if not lacking else f"no model of its own for {' and '.join(lacking)}"
    with style.context():
        drawn = Picture(
            "languages",
            "Mean centre of mass by layer",
            "A line for each language.",
            centre_lines(found),
        )
    return Outcome(
        tables=[table],
        pictures=[drawn],
        claims={"languages": Verdict(told, holds, why)},
        differs=differs,
    )


def centres(bench: Bench) -> Outcome:
    """Figure 5: centres of mass of attention and of contributions."""
    found, seen, differs = _found(bench)
    centre = {
        source: found["centre"].sel(source=source).mean("head").values
        for source in ("attention", "input")
    }
    late = depth(5, 12, found.sizes["layer"])
    local, deep = (float(np.abs(values[list(late)]).mean()) for values in centre.values())
    told = f"attention {local:.1f}, input {deep:.1f} tokens in {words(late)}"
    columns = {"attention": centre["attention"], "input contribution": centre["input"]}
    table = layer_table("Mean centre of mass (tokens)", columns)
    drawn = pictures("attribution", found, "centre")
    return Outcome((), [table], drawn, {"uniform": Verdict(told, deep < local / 2)}, differs, seen)


def patterns(bench: Bench) -> Outcome:
    """Figure 7: one head of each pattern, and which patterns persist."""
    found, seen, differs = _found(bench)
    share = found["pattern_share"].sel(source=["attention", "input"])
    mean = share.mean("layer").to_series().unstack("pattern")
    late = list(depth(5, 12, found.sizes["layer"]))
    deep = float(share.sel(source="input", pattern="block").isel(layer=late).max())
    kept = {name: own["input"] / max(own["attention"], 1e-9) for name, own in mean.items()}
    fading = [kept[name] for name in ("vertical", "diagonal", "vertical+diagonal")]
    told = ", ".join(
        f"{name} {own['attention']:.2f} → {own['input']:.2f}" for name, own in mean.items()
    )
    claims = {
        "block-stays": Verdict(told, bool(max(fading) < 1 and kept["block"] > max(fading))),
        "no-deep-block": Verdict(f"largest share of a layer {deep:.3f}", deep <= 0.02),
    }
    columns = {
        f"{source}: {name}": share.sel(source=source, pattern=name).values
        for source in ("attention", "input")
        for name in mean.columns
    }
    table = layer_table("Share of maps of each pattern", columns)
    own = "Patterns by headwise's classifier of maps, whose mistakes are not taken out (§9.1 looks at maps)."
    drawn = pictures("attribution", found, "five", "patterns")
    return Outcome((), [table], drawn, claims, [*differs, own], seen)


def maps(bench: Bench, layer: int) -> Outcome:
    """Figures 12 to 23: attention over contribution for every head of a layer."""
    found, seen, differs = _found(bench)
    if layer >= found.sizes["layer"]:
        raise NotRunError(f"the model has {found.sizes['layer']} layers")
    if "sample_input" not in found:
        raise NotRunError("no input is short enough to be drawn whole")
    dims = ("layer", "head", "token", "source_token")
    above, below = (data.values(found, f"sample_{name}", dims) for name in ("attention", "input"))
    with style.context():
        drawn = map_pairs(above, below, data.texts(found, "token_text"), layers=[layer])
    caption = "Above attention, below what of the input is in the head's output."
    return Outcome(
        pictures=[Picture("maps", f"Layer {layer}, all heads", caption, drawn)],
        differs=differs,
        seen=seen,
    )


REPRODUCTION = Reproduction(
    "pascual2021",
    (
        "BERT-base uncased, not fine-tuned; German and Arabic BERT for Figure 4.",
        "1800 examples of MNLI-m's dev part of 6 to 64 tokens (as many as a head has dimensions, where attention is "
        "identifiable); XNLI for Figure 4.",
        "Contributions by Hidden Token Attribution, from the layer below and from the input; means over all tokens.",
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
        *(
            Entry(
                f"fig{12 + layer}",
                f"attention over input contribution, layer {layer}",
                partial(maps, layer=layer),
            )
            for layer in range(12)
        ),
    ),
)
