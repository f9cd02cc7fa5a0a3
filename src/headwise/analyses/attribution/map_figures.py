"""Figures of one input: attention over contribution for every head, five heads of five patterns,
one word by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
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

_ROWS = (
    ("attention", "attention"),
    ("previous_layer", "contribution of the previous layer"),
    ("input", "contribution of the input"),
)


@figure(
    "attribution",
    name="maps",
    title="Attention over contribution, all heads of one input",
    caption="For every head two maps: above what it attends to, below what of the input is in its output. Row: the "
    "receiving token; column: the source.",
    paper="Pascual et al. 2021, Fig 12 to 23",
    needs=("sample_input",),
)
def sample_pairs(dataset: xr.Dataset) -> Figure:
    """The pairs of maps of the input that the analysis kept."""
    both = _maps(dataset, "attention"), _maps(dataset, "input")
    return map_pairs(*both, data.texts(dataset, "token_text"), notes=_sample_notes(dataset))


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
    causal = bool((np.triu(np.ones(attention.shape[-2:]), 1) * attention).sum() == 0)
    sure = classify_maps(torch.from_numpy(np.clip(attention, 0, None)), causal).numpy()
    chosen: list[tuple[int, int]] = []
    titles = []
    for kind, pattern in enumerate(PATTERNS):
        places = ranked_heads(sure[..., kind])
        place = next((place for place in places if place not in chosen), places[0])
        chosen.append(place)
        titles.append(f"{pattern}\n{head_name(*place)}, p = {sure[place][kind]:.2f}")
    how = "Rows: receiving token; columns: source; layers and heads counted from 0; p: how sure the classifier is"
    return _side_by_side(dataset, chosen, titles, "Five heads, one of each pattern", how)


@figure(
    "attribution",
    name="head",
    title="One head: where it looks, what it gathers from the layer below, what of the input is in it",
    caption="Attention, contribution of the previous layer and contribution of the input of the head whose attention "
    "says least of what of the input it gathers. The first two are alike where attention tells what a head does "
    "locally; the third shows what really reaches it.",
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
        places = existing_heads(heads, *shape)
    else:
        places = ranked_heads(
            -data.values(dataset.sel(source="input"), "pearson", ("layer", "head"))
        )[:1]
    titles = [head_name(*place) for place in places]
    how = "Rows: receiving token; columns: source; layers and heads counted from 0"
    return _side_by_side(dataset, places, titles, "Where a head looks and what it gathers", how)


def _side_by_side(
    dataset: xr.Dataset,
    places: Sequence[tuple[int, int]],
    titles: Sequence[str],
    title: str,
    how: str,
) -> Figure:
    """Maps of some heads, a column each, a row for attention and each contribution; of one head in
    a row."""
    kept = {
        words: _maps(dataset, name)
        for name, words in _ROWS
        if f"sample_{name}" in dataset.variables
    }
    single = len(places) == 1
    fig = style.new_figure(style.PAGE, 2.95 if single else 0.7 + 1.42 * len(kept))
    axes = (
        fig.subplots(1, len(kept), squeeze=False).T
        if single
        else fig.subplots(len(kept), len(places))
    )
    shade = PowerNorm(0.5, 0, 1)
    for row, (words, maps) in zip(axes, kept.items(), strict=True):
        for ax, place in zip(row, places, strict=True):
            ax.imshow(
                maps[place],
                cmap=style.SEQUENTIAL,
                norm=shade,
                aspect="equal",
                interpolation="nearest",
            )
            ax.set(xticks=[], yticks=[])
        if single:
            row[0].set_title(f"{titles[0]}, {words}", loc="center", fontsize=style.SMALL)
        else:
            row[0].set_ylabel(words.replace(" of the ", "\nof the "))
    if not single:
        for ax, text in zip(axes[0], titles, strict=True):
            ax.set_title(text, loc="center", fontsize=style.SMALL)
    scale = ScalarMappable(shade, style.SEQUENTIAL)
    fig.colorbar(
        scale,
        ax=list(axes.ravel()),
        fraction=0.02,
        pad=0.01,
        label="share of 1 (square-root scale)",
    )
    listing = token_listing(data.texts(dataset, "token_text"), style.PAGE - 0.1, lines=2)
    return style.complete(fig, title, [*_sample_notes(dataset), how], below=listing)


@figure(
    "attribution",
    name="word",
    title="How much of each input word is in one word, layer by layer",
    caption="One token of one input: what share of its hidden state after each layer comes from each input token.",
    paper="after Brunner et al. 2020, in Pascual et al. 2021, §4",
    needs=("sample_layer",),
)
def sample_word(dataset: xr.Dataset) -> Figure:
    """One word of the kept input: the one nearest to its middle that is a word."""
    texts = data.texts(dataset, "token_text")
    layers = data.values(dataset, "sample_layer", ("layer", "token", "source_token"))
    middle = len(texts) // 2
    words = [i for i, text in enumerate(texts) if text.isalpha() and len(text) > 2] or [middle]
    return word_mix(
        layers, texts, min(words, key=lambda i: (abs(i - middle), i)), notes=_sample_notes(dataset)
    )


def word_mix(
    layers: ArrayLike, tokens: Sequence[str], token: int, *, notes: Sequence[str] = ()
) -> Figure:
    """How much of each input token is in one token's hidden state, layer by layer.

    Parameters
    ----------
    layers : array
        `[layer, receiving, source]`, as `contributions(..., layer_output=True).layers` gives for
        one example.
    tokens : sequence of str
        The tokens of the input.
    token : int
        The position of the token that is looked at.
    notes : sequence of str, optional
        What to say above the figure.
    """
    mixed = np.asarray(layers, dtype=float)
    if mixed.ndim != 3 or mixed.shape[1:] != (len(tokens), len(tokens)):
        raise ParameterError(
            f"`layers` must be [layer, receiving, source] for {len(tokens)} tokens; its shape is {mixed.shape}."
        )
    if not 0 <= token < len(tokens):
        raise ParameterError(
            f"`token` must be a position from 0 to {len(tokens) - 1}; it is {token}."
        )
    with style.context():
        part = mixed[:, token]
        count = len(part)
        fig, ax = style.one_panel(style.PAGE, min(1.9 + 0.2 * count, style.PAGE_HEIGHT))
        shade = PowerNorm(0.5, 0, max(float(part.max()), 1e-9))
        image = ax.imshow(
            part, cmap=style.SEQUENTIAL, norm=shade, aspect="auto", interpolation="nearest"
        )
        ax.set_xticks(
            range(len(tokens)), list(tokens), rotation=60, ha="right", rotation_mode="anchor"
        )
        ax.get_xticklabels()[token].set_fontweight("bold")
        step = 1 if count <= 24 else 2
        ax.set_yticks(range(0, count, step), [str(i) for i in range(0, count, step)])
        ax.set_ylabel("after layer (0 = first)")
        if count * len(tokens) <= 420:
            for (layer, source), share in np.ndenumerate(part):
                if share >= 0.095:
                    text, ink = (
                        f"{share:.2f}"[1:] if share < 1 else "1",
                        "white" if shade(share) < 0.6 else "black",
                    )
                    ax.text(
                        source,
                        layer,
                        text,
                        ha="center",
                        va="center",
                        fontsize=style.SMALL,
                        color=ink,
                    )
        bar = fig.colorbar(image, ax=ax, fraction=0.025, pad=0.01)
        bar.set_label("share of the hidden state\n(square-root scale)")
        how = (
            f"Token {token}, “{tokens[token]}” (bold): shares of its hidden state that come from each input token; "
            "rows sum to 1; from .10 on they are printed"
        )
        return style.complete(
            fig, f"What “{tokens[token]}” is made of, layer by layer", [*notes, how]
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
    """Attention over contribution for every head of one input on a page (Pascual et al. 2021, Fig
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
        What to say above it.

    Both maps of a head share one scale from 0 to 1, spread as the square root.
    """
    above, below = np.asarray(attention, dtype=float), np.asarray(contribution, dtype=float)
    if above.shape != below.shape or above.ndim != 4 or above.shape[2:] != (len(tokens),) * 2:
        raise ParameterError(
            f"`attention` and `contribution` must both be [layer, head, receiving, source] for {len(tokens)} tokens; "
            f"they are {above.shape} and {below.shape}."
        )
    numbers = list(range(above.shape[0])) if layers is None else [int(n) for n in layers]
    if any(not 0 <= n < above.shape[0] for n in numbers) or not numbers:
        raise ParameterError(
            f"`layers` must name layers from 0 to {above.shape[0] - 1}; it is {list(numbers)}."
        )
    n = len(tokens)
    gap = max(1, round(n * 0.1))
    pairs = np.full((len(numbers), above.shape[1], 2 * n + gap, n), np.nan)
    pairs[:, :, :n], pairs[:, :, n + gap :] = above[numbers], below[numbers]
    with style.context():
        label = "share of 1 (square-root scale)"
        fig, listing = mosaic(
            pairs, (numbers, range(above.shape[1])), (2 * gap, gap), label, {"Tokens": tokens}
        )
        fig.axes[0].set_ylabel("layer (0 at the top): attention above, contribution below")
        how = "Within a map: rows receive, columns give, first token top left"
        return style.complete(fig, title, [*notes, how], below=listing)


def _maps(dataset: xr.Dataset, name: str) -> np.ndarray:
    """The maps `[layer, head, token, source_token]` of the input that was kept: attention or a
    contribution."""
    return data.values(dataset, f"sample_{name}", ("layer", "head", "token", "source_token"))


def _sample_notes(dataset: xr.Dataset) -> list[str]:
    return [
        data.source_text(dataset),
        f"One input of {dataset.sizes['token']} tokens",
        "No interval: one input",
    ]
