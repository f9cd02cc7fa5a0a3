"""Figures of hidden token attribution: how far attention tells what heads gather, and what they do gather (Pascual et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from headwise.errors import ParameterError
from headwise.plots import data, style
from headwise.plots.maps import _token_listing
from headwise.plots.offsets import _by_layer
from headwise.plots.registry import figure
from headwise.plots.scatter import Series, legend_handles, scatter_by_layer

READINGS = {
    "attention": ("attention", style.BLUE, "o"),
    "previous_layer": ("contribution of the previous layer", style.GREEN, "^"),
    "input": ("contribution of the input", style.VERMILION, "s"),
    "rollout": ("attention rollout", style.PINK, "D"),
    "norm": ("norm-weighted attention", style.ORANGE, "v"),
}
PATTERN_COLOURS = (style.BLUE, style.VERMILION, style.PINK, style.GREEN, style.PALE)


@figure(
    "attribution",
    name="correlation",
    title="How far attention tells what a head gathers, by layer",
    caption="One point per head: the correlation of its attention with what tokens really contribute to its output, from the layer below and from the input, and "
    "with two other readings of mixing. Bars across are medians over the heads of a layer. High for the layer below and falling for the input: attention says "
    "what a head does locally, not what reaches it from the words.",
    paper="Pascual et al. 2021, Fig 1 and 6",
    needs=("pearson", "spearman"),
)
def correlation(dataset: xr.Dataset, *, sources: Sequence[str] = ("previous_layer", "input", "rollout", "norm")) -> Figure:
    """Pearson's and Spearman's correlation of attention with each reading, `[source, layer, head]`, one column of panels each, with medians (Pascual et al. 2021, Fig 1 and 6)."""
    shown = [source for source in sources if source in data.labels(dataset, "source") and data.has(dataset.sel(source=source), "pearson")]
    if not shown:
        raise ParameterError(
            f"`sources` must name one of {', '.join(data.labels(dataset, 'source'))} that has a correlation; it is {', '.join(sources)}."
        )
    fig = style.new_figure(style.PAGE, 1.0 + 1.35 * len(shown))
    axes = fig.subplots(len(shown), 2, sharey=True, sharex=True, squeeze=False)
    titles = []
    for row, source in zip(axes, shown, strict=True):
        words, colour, marker = READINGS.get(source, (source, style.BLACK, "o"))
        for ax, name in zip(row, ("pearson", "spearman"), strict=True):
            one = dataset.sel(source=source)
            values = data.values(one, name, ("layer", "head"))
            ends = data.interval(one, name, ("layer", "head"))
            scatter_by_layer(ax, [Series(words, values, ends, colour, marker)], mean_line=False)
            _medians(ax, values)
            ax.axhline(0, color=style.GREY, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
            ax.set_ylim(max(-1.0, min(-0.1, np.nanmin(values) - 0.05)), 1.02)
            last = source == shown[-1]
            style.layer_axis(ax, data.numbers(dataset, "layer"), "layer (0 = first)" if last else "")
            titles.append(f"{name.capitalize()}, {words}")
        row[0].set_ylabel("correlation")
    style.panel_labels(list(axes.ravel()), titles)
    bars = data.interval_text(data.has(dataset, "pearson_low"))
    median = Line2D([], [], color=style.BLACK, linewidth=1.6, label="median of the heads of a layer")
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "pearson"),
        _rule_text(dataset),
        _error_text(dataset),
        bars,
    ]
    style.annotate_figure(fig, "Correlation of attention with what tokens contribute", notes, [median])
    return style.finish(fig)


@figure(
    "attribution",
    name="centre",
    title="Where heads look and what they gather: centres of mass by layer",
    caption="Each point is one head: the mean relative position of its attention, and of what contributes to its output, on the same examples. "
    "Lines are means over the heads of a layer.",
    paper="Pascual et al. 2021, Fig 4 and 5",
    needs=("centre",),
)
def contribution_centre(datasets: xr.Dataset | Mapping[str, xr.Dataset]) -> Figure:
    """Centres of mass of attention and of contributions by layer (Pascual et al. 2021, Fig 4, 5).

    Several datasets (a mapping of label to dataset: models, each on its own language) stand side by side on one scale.
    """
    named = {"": datasets} if isinstance(datasets, xr.Dataset) else dict(datasets)
    wanted = ("attention", "previous_layer", "input")
    chosen = {which: one.sel(source=[s for s in data.labels(one, "source") if s in wanted]) for which, one in named.items()}
    lines = "One point per head; lines: mean over the heads of a layer; dashed: no direction"
    label = "centre of mass (tokens)\n← before      after →"
    given = chosen[""] if list(chosen) == [""] else chosen
    return _by_layer(given, "centre", "Centre of mass: attention and contributions", label, lines)


@figure(
    "attribution",
    name="special",
    title="What heads that look at separators gather",
    caption="For each layer: the share of attention on, and of contributions from, tokens of each type, means over the heads. Where attention goes to "
    "separators but the input's contribution does not come from them, the separators only carry what they gathered from elsewhere.",
    paper="after Pascual et al. 2021, §9.1",
    needs=("share",),
)
def special_tokens(dataset: xr.Dataset) -> Figure:
    """Shares by token type, `share[source, layer, head, receiver, token_type]` for all receiving tokens, means over the heads of a layer."""
    dims = ("source", "layer", "head", "receiver", "token_type")
    values = data.values(dataset, "share", dims)[:, :, :, data.labels(dataset, "receiver").index("all")]
    types = data.labels(dataset, "token_type")
    sources = [
        (i, s)
        for i, s in enumerate(data.labels(dataset, "source"))
        if s in ("attention", "previous_layer", "input") and np.isfinite(values[i]).any()
    ]
    fig = style.new_figure(style.PAGE, 2.6)
    axes = fig.subplots(1, len(sources), sharey=True, squeeze=False)[0]
    series: list[Series] = []
    for ax, (index, _) in zip(axes, sources, strict=True):
        series = [
            Series(kind, values[index][..., t], None, style.TYPE_COLOURS.get(kind, style.GREY), style.cycle(style.MARKERS, t))
            for t, kind in enumerate(types)
            if np.isfinite(values[index][..., t]).any()
        ]
        scatter_by_layer(ax, series)
        ax.set_ylim(0, 1)
        style.layer_axis(ax, data.numbers(dataset, "layer"))
    axes[0].set_ylabel("share of 1")
    style.panel_labels(list(axes), [READINGS[s][0] for _, s in sources])
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "share"),
        _error_text(dataset),
        "No interval drawn; intervals are in the tables",
    ]
    style.annotate_figure(fig, "What is looked at, and what is gathered, by type of token", notes, legend_handles(series), 4)
    return style.finish(fig)


@figure(
    "attribution",
    name="patterns",
    title="Which patterns persist: attention maps and contribution maps",
    caption="Share of the heads of each layer whose map shows each of the five patterns, in attention and in what the input contributes.",
    paper="Pascual et al. 2021, §9.1 and Fig 7",
    needs=("pattern_share",),
)
def persisting_patterns(dataset: xr.Dataset) -> Figure:
    """Stacked shares of the five patterns by layer, `pattern_share[source, layer, pattern]`, of attention and of the input's contribution."""
    values = data.values(dataset, "pattern_share", ("source", "layer", "pattern"))
    names = data.labels(dataset, "pattern")
    sources = [(i, s) for i, s in enumerate(data.labels(dataset, "source")) if np.isfinite(values[i]).any()]
    fig = style.new_figure(style.PAGE, 2.7)
    axes = fig.subplots(1, len(sources), sharey=True, squeeze=False)[0]
    for ax, (index, _) in zip(axes, sources, strict=True):
        base = np.zeros(values.shape[1])
        for p, _name in enumerate(names):
            part = np.nan_to_num(values[index][:, p])
            ax.bar(np.arange(len(part)), part, 0.86, base, color=style.cycle(PATTERN_COLOURS, p), linewidth=0)
            base = base + part
        style.layer_axis(ax, data.numbers(dataset, "layer"))
        ax.set_ylim(0, 1)
    handles = [Patch(color=style.cycle(PATTERN_COLOURS, p), label=name) for p, name in enumerate(names)]
    axes[0].set_ylabel("share of heads")
    style.panel_labels(list(axes), [READINGS.get(s, (s,))[0] for _, s in sources])
    notes = [
        data.source_text(dataset),
        data.count_text(dataset, "pattern_share"),
        "Classified by the network of `patterns`; the interval over examples is in the tables",
    ]
    style.annotate_figure(fig, "Patterns of attention maps and of contribution maps", notes, handles, 5)
    return style.finish(fig)


@figure(
    "attribution",
    name="maps",
    title="Attention over contribution, all heads of one input",
    caption="For every head two maps: above what it attends to, below what of the input is in its output. Row: the receiving token; column: the source.",
    paper="Pascual et al. 2021, Fig 12 to 23",
    needs=("sample_input",),
)
def sample_pairs(dataset: xr.Dataset) -> Figure:
    """The pairs of maps of the input that the analysis kept."""
    maps = ("layer", "head", "token", "source_token")
    return map_pairs(
        data.values(dataset, "sample_attention", maps),
        data.values(dataset, "sample_input", maps),
        _texts(dataset),
        notes=_sample_notes(dataset),
    )


@figure(
    "attribution",
    name="five",
    title="Five heads, one of each pattern: attention over contribution",
    caption="The head whose attention map is most clearly of each pattern (as far as each occurs), and below it what of the input is in its output.",
    paper="Pascual et al. 2021, Fig 7",
    needs=("sample_input",),
)
def five_patterns(dataset: xr.Dataset) -> Figure:
    """Five heads of the kept input, one for each map pattern, attention above and the input's contribution below (Pascual et al. 2021, Fig 7)."""
    import torch

    from headwise.patterns import PATTERNS, classify_maps

    dims = ("layer", "head", "token", "source_token")
    attention, deep = data.values(dataset, "sample_attention", dims), data.values(dataset, "sample_input", dims)
    causal = bool((np.triu(np.ones(attention.shape[-2:]), 1) * attention).sum() == 0)
    sure = classify_maps(torch.from_numpy(np.clip(attention, 0, None)), causal).numpy()
    chosen: list[tuple[int, int]] = []
    for kind in range(len(PATTERNS)):
        order = np.argsort(-sure[..., kind], axis=None, kind="stable")
        places = [(int(i // sure.shape[1]), int(i % sure.shape[1])) for i in order]
        chosen.append(next((place for place in places if place not in chosen), places[0]))
    fig = style.new_figure(style.PAGE, 3.9)
    axes = fig.subplots(2, len(chosen), squeeze=False)
    shade = PowerNorm(0.5, 0, 1)
    image = None
    for column, (place, pattern) in enumerate(zip(chosen, PATTERNS, strict=True)):
        probability = sure[place][list(PATTERNS).index(pattern)]
        for ax, maps in zip(axes[:, column], (attention, deep), strict=True):
            image = ax.imshow(maps[place], cmap=style.SEQUENTIAL, norm=shade, aspect="equal", interpolation="nearest")
            ax.set_xticks([])
            ax.set_yticks([])
        axes[0, column].set_title(f"{pattern}\n{style.head_name(*place)}, p = {probability:.2f}", loc="center", fontsize=style.SMALL)
    axes[0, 0].set_ylabel("attention")
    axes[1, 0].set_ylabel("contribution of the input")
    if image is not None:
        fig.colorbar(image, ax=list(axes.ravel()), fraction=0.02, pad=0.01, label="share of 1 (square-root scale)")
    how = "Rows: receiving token; columns: source; layers and heads counted from 0; p: the classifier's probability of the pattern"
    listing = _token_listing(_texts(dataset), style.PAGE - 0.1, lines=2)
    style.annotate_figure(fig, "Five heads, one of each pattern", [*_sample_notes(dataset), how], below=listing)
    return style.finish(fig)


@figure(
    "attribution",
    name="word",
    title="How much of each input word is in one word, layer by layer",
    caption="One token of one input: what share of its hidden state after each layer comes from each token of the input.",
    paper="after Brunner et al. 2020, in Pascual et al. 2021, §4",
    needs=("sample_layer",),
)
def sample_word(dataset: xr.Dataset) -> Figure:
    """One word of the kept input: the one nearest to its middle that is a word."""
    texts = _texts(dataset)
    layers = data.values(dataset, "sample_layer", ("layer", "token", "source_token"))
    middle = len(texts) // 2
    words = [i for i, text in enumerate(texts) if text.isalpha() and len(text) > 2] or [middle]
    return word_mix(layers, texts, min(words, key=lambda i: (abs(i - middle), i)), notes=_sample_notes(dataset))


def word_mix(layers: ArrayLike, tokens: Sequence[str], token: int, *, notes: Sequence[str] = ()) -> Figure:
    """How much of each input token is in one token's hidden state, layer by layer.

    Parameters
    ----------
    layers
        `[layer, receiving, source]`, as `contributions(..., layer_output=True).layers` gives for one example.
    tokens
        The tokens of the input.
    token
        The position of the token that is looked at.
    """
    mixed = np.asarray(layers, dtype=float)
    if mixed.ndim != 3 or mixed.shape[1:] != (len(tokens), len(tokens)):
        raise ParameterError(f"`layers` must be [layer, receiving, source] for {len(tokens)} tokens; its shape is {mixed.shape}.")
    if not 0 <= token < len(tokens):
        raise ParameterError(f"`token` must be a position from 0 to {len(tokens) - 1}; it is {token}.")
    with style.context():
        part = mixed[:, token]
        count = len(part)
        fig = style.new_figure(style.PAGE, min(1.9 + 0.2 * count, style.PAGE_HEIGHT))
        ax = fig.subplots()
        image = ax.imshow(
            part, cmap=style.SEQUENTIAL, norm=PowerNorm(0.5, 0, max(float(part.max()), 1e-9)), aspect="auto", interpolation="nearest"
        )
        ax.set_xticks(range(len(tokens)), list(tokens), rotation=60, ha="right", rotation_mode="anchor")
        ax.get_xticklabels()[token].set_fontweight("bold")
        step = 1 if count <= 24 else 2
        ax.set_yticks(range(0, count, step), [str(i) for i in range(0, count, step)])
        ax.set_ylabel("after layer (0 = first)")
        if count * len(tokens) <= 420:
            for (layer, source), share in np.ndenumerate(part):
                if share >= 0.095:
                    ax.text(
                        source,
                        layer,
                        f"{share:.2f}"[1:] if share < 1 else "1",
                        ha="center",
                        va="center",
                        fontsize=style.SMALL,
                        color="white" if share < 0.6 * part.max() else "black",
                    )
        bar = fig.colorbar(image, ax=ax, fraction=0.025, pad=0.01)
        bar.set_label("share of the hidden state\n(square-root scale)")
        how = f"Token {token}, “{tokens[token]}” (bold): shares of its hidden state that come from each input token; rows sum to 1; from .10 on they are printed"
        style.annotate_figure(fig, f"What “{tokens[token]}” is made of, layer by layer", [*notes, how])
        return style.finish(fig)


def map_pairs(
    attention: ArrayLike,
    contribution: ArrayLike,
    tokens: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    title: str = "Attention (above) and contribution of the input (below), every head",
    notes: Sequence[str] = (),
) -> Figure:
    """Attention over contribution for every head of one input on a page (Pascual et al. 2021, Fig 12-23).

    Parameters
    ----------
    attention, contribution
        `[layer, head, receiving, source]` of the same input.
    tokens
        Its tokens, printed below.
    layers
        Draw only these layers, larger; by default all of them on one page.

    Both maps of a head share one scale from 0 to 1, spread as the square root.
    """
    above, below = np.asarray(attention, dtype=float), np.asarray(contribution, dtype=float)
    if above.shape != below.shape or above.ndim != 4 or above.shape[-1] != len(tokens):
        raise ParameterError(
            f"`attention` and `contribution` must both be [layer, head, receiving, source] for {len(tokens)} tokens; they are {above.shape} and {below.shape}."
        )
    numbers = list(range(above.shape[0])) if layers is None else [int(n) for n in layers]
    if any(not 0 <= n < above.shape[0] for n in numbers) or not numbers:
        raise ParameterError(f"`layers` must name layers from 0 to {above.shape[0] - 1}; it is {list(numbers)}.")
    above, below = above[numbers], below[numbers]
    count, heads, n, _ = above.shape
    gap = max(1, round(n * 0.1))
    pitch_row, pitch_column = 2 * n + 3 * gap, n + gap
    mosaic = np.full((count * pitch_row, heads * pitch_column), np.nan)
    for layer in range(count):
        for head in range(heads):
            top, left = layer * pitch_row, head * pitch_column
            mosaic[top : top + n, left : left + n] = above[layer, head]
            mosaic[top + n + gap : top + 2 * n + gap, left : left + n] = below[layer, head]
    mosaic = mosaic[: -2 * gap, :-gap]
    with style.context():
        cell = min((style.PAGE - 0.95) / heads, 1.2, (style.PAGE_HEIGHT - 1.35) / (count * pitch_row / pitch_column))
        width = min(max(heads * cell + 0.95, style.COLUMN), style.PAGE)
        listing = _token_listing(tokens, width - 0.1, lines=3)
        fig = style.new_figure(width, count * cell * pitch_row / pitch_column + 0.95 + 0.115 * (listing.count("\n") + 1))
        ax = fig.subplots()
        image = ax.imshow(
            np.ma.masked_invalid(mosaic), cmap=style.SEQUENTIAL, norm=PowerNorm(0.5, 0, 1), aspect="equal", interpolation="auto"
        )
        ax.set_xticks((n - 1) / 2 + np.arange(heads) * pitch_column, [str(h) for h in range(heads)])
        ax.set_yticks(n + gap / 2 + np.arange(count) * pitch_row, [str(name) for name in numbers])
        ax.tick_params(length=0)
        ax.xaxis.set_ticks_position("top")
        ax.xaxis.set_label_position("top")
        ax.set_xlabel("head")
        ax.set_ylabel("layer (0 at the top): attention above, contribution below")
        ax.spines[:].set_visible(False)
        bar = fig.colorbar(image, ax=ax, fraction=0.03, pad=0.01, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
        bar.ax.set_yticklabels(["0", ".01", ".05", ".1", ".25", ".5", "1"])
        bar.set_label("share of 1 (square-root scale)")
        how = "Within a map: rows receive, columns give, first token top left"
        style.annotate_figure(fig, title, [*notes, how], below=listing)
        return style.finish(fig)


def _medians(ax: Axes, values: np.ndarray) -> None:
    for layer, row in enumerate(values):
        if np.isfinite(row).any():
            ax.plot([layer - 0.4, layer + 0.4], [np.nanmedian(row)] * 2, color=style.BLACK, linewidth=1.6, zorder=5, solid_capstyle="butt")


def _rule_text(dataset: xr.Dataset) -> str:
    rule = str(dataset.attrs.get("length_rule", ""))
    return rule[:1].upper() + rule[1:]


def _error_text(dataset: xr.Dataset) -> str:
    if dataset.attrs.get("method") == "sketch" and "total_variation" in dataset.attrs:
        return (
            f"Input contributions by sketch, median error of a row {100 * float(dataset.attrs['total_variation']):.1f} % (total variation)"
        )
    return ""


def _texts(dataset: xr.Dataset) -> list[str]:
    return data.labels(dataset, "token")


def _sample_notes(dataset: xr.Dataset) -> list[str]:
    return [data.source_text(dataset), f"One input of {dataset.sizes['token']} tokens", "No interval: one input"]
