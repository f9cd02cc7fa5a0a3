"""Figures of one input: attention and contribution of every head, five heads of five patterns, one
word by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from headwise.analyses.patterns import PATTERNS, classify_maps
from headwise.analyses.summaries import ranked_heads
from headwise.core.errors import ParameterError
from headwise.core.labels import existing_heads, head_name
from headwise.plots import data, style
from headwise.plots.maps import mosaic, token_listing
from headwise.plots.registry import figure

MAX_PRINTED_CELLS = 420  # cells of a figure in which numbers are still readable
MIN_PRINTED_SHARE = 0.095
# The maps of a head that are drawn, and their labels.
_MAPS = (
    ("attention", "attention"),
    ("previous_layer", "contribution of the previous layer"),
    ("input", "contribution of the input"),
)


@figure(
    "attribution",
    name="maps",
    title="Attention and contribution, all heads of one input",
    caption="For every head two maps: above what it attends to, below what of the input is in its output. Row: the "
    "receiving token; column: the source.",
    paper="Pascual et al. 2021, Fig 12 to 23",
    needs=("sample_input",),
)
def sample_pairs(dataset: xr.Dataset) -> Figure:
    """The pairs of maps of the input that the analysis kept."""
    return map_pairs(
        _maps(dataset, "attention"),
        _maps(dataset, "input"),
        data.texts(dataset, "token_text"),
        notes=_sample_notes(dataset),
    )


@figure(
    "attribution",
    name="five",
    title="Five heads, one of each pattern: attention over contributions",
    caption="The head whose attention map is most clearly of each pattern (as far as each occurs), below it what of "
    "the layer below, and what of the input, is in its output.",
    paper="Pascual et al. 2021, Fig 7",
    needs=("sample_input",),
)
def five_patterns(dataset: xr.Dataset) -> Figure:
    """Five heads of the kept input, one for each map pattern: attention above, contributions
    below."""
    attention = _maps(dataset, "attention")
    above_diagonal = np.triu(np.ones(attention.shape[-2:]), 1) * attention
    causal = bool(above_diagonal.sum() == 0)
    maps = torch.from_numpy(np.clip(attention, 0, None))
    probabilities = classify_maps(maps, causal).numpy()
    chosen: list[tuple[int, int]] = []
    titles = []
    for number, pattern in enumerate(PATTERNS):
        ranked = ranked_heads(probabilities[..., number])
        head = next((head for head in ranked if head not in chosen), ranked[0])
        chosen.append(head)
        probability = probabilities[head][number]
        titles.append(f"{pattern}\n{head_name(*head)}, p = {probability:.2f}")
    note = (
        "Rows: receiving token; columns: source; layers and heads counted from 0; p: probability "
        "by the classifier"
    )
    return _side_by_side(dataset, chosen, titles, "Five heads, one of each pattern", note)


@figure(
    "attribution",
    name="head",
    title="One head: where it attends, what it gathers from the layer below, what of the input is in it",
    caption="Attention, contribution of the previous layer and contribution of the input of the head whose attention "
    "predicts least what it gathers from the input. The first two are alike where attention shows what a head does "
    "locally; the third shows what reaches it.",
    paper="Pascual et al. 2021, Fig 1, 6 and 7, of one head",
    needs=("sample_input", "sample_previous_layer"),
)
def head_maps(dataset: xr.Dataset, *, heads: Sequence[str] = ()) -> Figure:
    """Attention, previous-layer and input maps of one head (or a few) of the kept input.

    Parameters
    ----------
    heads : sequence of str, optional
        Their names (`L3H5`); by default the head whose attention correlates least with the
        contribution of the input.
    """
    shape = _maps(dataset, "attention").shape[:2]
    if heads:
        chosen = existing_heads(heads, *shape)
    else:
        pearson = data.values(dataset.sel(source="input"), "pearson", ("layer", "head"))
        chosen = ranked_heads(-pearson)[:1]
    titles = [head_name(*head) for head in chosen]
    note = "Rows: receiving token; columns: source; layers and heads counted from 0"
    return _side_by_side(dataset, chosen, titles, "Where a head attends and what it gathers", note)


def _side_by_side(
    dataset: xr.Dataset,
    heads: Sequence[tuple[int, int]],
    titles: Sequence[str],
    title: str,
    note: str,
) -> Figure:
    """Draw maps of some heads: a column for each head, a row for attention and each contribution;
    the maps of a single head in one row."""
    maps_by_label = {}
    for name, label in _MAPS:
        if f"sample_{name}" in dataset.variables:
            maps_by_label[label] = _maps(dataset, name)
    single = len(heads) == 1
    n_rows = len(maps_by_label)
    if single:
        fig = style.new_figure(style.PAGE, 2.95)
        axes = fig.subplots(1, n_rows, squeeze=False).T
    else:
        fig = style.new_figure(style.PAGE, 0.7 + 1.42 * n_rows)
        axes = fig.subplots(n_rows, len(heads))
    shade = PowerNorm(0.5, 0, 1)
    for row, (label, maps) in zip(axes, maps_by_label.items(), strict=True):
        for ax, head in zip(row, heads, strict=True):
            ax.imshow(
                maps[head],
                cmap=style.SEQUENTIAL,
                norm=shade,
                aspect="equal",
                interpolation="nearest",
            )
            ax.set(xticks=[], yticks=[])
        if single:
            row[0].set_title(f"{titles[0]}, {label}", loc="center", fontsize=style.SMALL)
        else:
            row[0].set_ylabel(label.replace(" of the ", "\nof the "))
    if not single:
        for ax, head_title in zip(axes[0], titles, strict=True):
            ax.set_title(head_title, loc="center", fontsize=style.SMALL)
    fig.colorbar(
        ScalarMappable(shade, style.SEQUENTIAL),
        ax=list(axes.ravel()),
        fraction=0.02,
        pad=0.01,
        label="share of 1 (square-root scale)",
    )
    listing = token_listing(data.texts(dataset, "token_text"), style.PAGE - 0.1, lines=2)
    return style.complete(fig, title, [*_sample_notes(dataset), note], below=listing)


@figure(
    "attribution",
    name="word",
    title="How much of each input word is in one word, layer by layer",
    caption="One token of one input: what share of its hidden state after each layer comes from each input token.",
    paper="after Brunner et al. 2020, in Pascual et al. 2021, §4",
    needs=("sample_layer",),
)
def sample_word(dataset: xr.Dataset) -> Figure:
    """One word of the kept input: the word nearest to its middle."""
    texts = data.texts(dataset, "token_text")
    layers = data.values(dataset, "sample_layer", ("layer", "token", "source_token"))
    middle = len(texts) // 2
    words = [i for i, text in enumerate(texts) if text.isalpha() and len(text) > 2]
    token = min(words or [middle], key=lambda i: (abs(i - middle), i))
    return word_mix(layers, texts, token, notes=_sample_notes(dataset))


def word_mix(
    layers: ArrayLike, tokens: Sequence[str], token: int, *, notes: Sequence[str] = ()
) -> Figure:
    """Draw how much of each input token is in one token's hidden state, layer by layer.

    Parameters
    ----------
    layers : array
        `[layer, receiving, source]`, as `contributions(..., layer_output=True).layers` gives for
        one example.
    tokens : sequence of str
        The tokens of the input.
    token : int
        The position of the token.
    notes : sequence of str, optional
        Notes above the figure.
    """
    shares = np.asarray(layers, dtype=float)
    n_tokens = len(tokens)
    if shares.ndim != 3 or shares.shape[1:] != (n_tokens, n_tokens):
        raise ParameterError(
            f"`layers` must be [layer, receiving, source] for {n_tokens} tokens; its shape is "
            f"{shares.shape}."
        )
    if not 0 <= token < n_tokens:
        raise ParameterError(f"`token` must be a position from 0 to {n_tokens - 1}; it is {token}.")
    token_shares = shares[:, token]  # layer, source
    n_layers = len(token_shares)
    with style.context():
        fig, ax = style.one_panel(style.PAGE, min(1.9 + 0.2 * n_layers, style.PAGE_HEIGHT))
        shade = PowerNorm(0.5, 0, max(float(token_shares.max()), 1e-9))
        image = ax.imshow(
            token_shares, cmap=style.SEQUENTIAL, norm=shade, aspect="auto", interpolation="nearest"
        )
        ax.set_xticks(
            range(n_tokens), list(tokens), rotation=60, ha="right", rotation_mode="anchor"
        )
        ax.get_xticklabels()[token].set_fontweight("bold")
        ticks = range(0, n_layers, 1 if n_layers <= 24 else 2)
        ax.set_yticks(ticks, [str(layer) for layer in ticks])
        ax.set_ylabel("after layer (0 = first)")
        if token_shares.size <= MAX_PRINTED_CELLS:
            _print_shares(ax, token_shares, shade)
        bar = fig.colorbar(image, ax=ax, fraction=0.025, pad=0.01)
        bar.set_label("share of the hidden state\n(square-root scale)")
        note = (
            f"Token {token}, “{tokens[token]}” (bold): shares of its hidden state that come from "
            "each input token; rows sum to 1; from .10 on they are printed"
        )
        title = f"What “{tokens[token]}” is made of, layer by layer"
        return style.complete(fig, title, [*notes, note])


def _print_shares(ax: Axes, token_shares: np.ndarray, shade: PowerNorm) -> None:
    """Print the larger shares into their cells, without the leading zero."""
    for (layer, source), share in np.ndenumerate(token_shares):
        if share < MIN_PRINTED_SHARE:
            continue
        ax.text(
            source,
            layer,
            f"{share:.2f}"[1:] if share < 1 else "1",
            ha="center",
            va="center",
            fontsize=style.SMALL,
            color="white" if shade(share) < 0.6 else "black",
        )


def map_pairs(
    attention: ArrayLike,
    contribution: ArrayLike,
    tokens: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    title: str = "Attention (above) and contribution of the input (below), every head",
    notes: Sequence[str] = (),
) -> Figure:
    """Draw attention above contribution for every head of one input on a page (Pascual et al. 2021, Fig
    12-23).

    Parameters
    ----------
    attention, contribution : array
        `[layer, head, receiving, source]` of the same input.
    tokens : sequence of str
        Its tokens, printed below.
    layers : sequence of int, optional
        Draw only these layers, larger; by default all of them on one page.
    title : str, optional
        Of the figure.
    notes : sequence of str, optional
        Notes above it.

    Both maps of a head share one scale from 0 to 1, spread as the square root.
    """
    above = np.asarray(attention, dtype=float)
    below = np.asarray(contribution, dtype=float)
    n = len(tokens)
    if above.shape != below.shape or above.ndim != 4 or above.shape[2:] != (n, n):
        raise ParameterError(
            "`attention` and `contribution` must both be [layer, head, receiving, source] for "
            f"{n} tokens; they are {above.shape} and {below.shape}."
        )
    n_layers, n_heads = above.shape[:2]
    numbers = list(range(n_layers)) if layers is None else [int(layer) for layer in layers]
    if not numbers or any(not 0 <= layer < n_layers for layer in numbers):
        raise ParameterError(
            f"`layers` must name layers from 0 to {n_layers - 1}; it is {list(numbers)}."
        )
    gap = max(1, round(n * 0.1))
    pairs = np.full((len(numbers), n_heads, 2 * n + gap, n), np.nan)
    pairs[:, :, :n] = above[numbers]
    pairs[:, :, n + gap :] = below[numbers]
    with style.context():
        fig, listing = mosaic(
            pairs,
            (numbers, range(n_heads)),
            (2 * gap, gap),
            "share of 1 (square-root scale)",
            {"Tokens": tokens},
        )
        fig.axes[0].set_ylabel("layer (0 at the top): attention above, contribution below")
        note = "Within a map: rows receive, columns are sources, first token top left"
        return style.complete(fig, title, [*notes, note], below=listing)


def _maps(dataset: xr.Dataset, name: str) -> np.ndarray:
    """Return the maps `[layer, head, token, source_token]` of the sample."""
    return data.values(dataset, f"sample_{name}", ("layer", "head", "token", "source_token"))


def _sample_notes(dataset: xr.Dataset) -> list[str]:
    return [
        data.source_text(dataset),
        f"One input of {dataset.sizes['token']} tokens",
        "No interval: one input",
    ]
