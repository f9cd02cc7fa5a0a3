"""A small made-up atlas as a page, for the tests in a browser and for measuring: planted answers,
no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from headwise.atlas import Atlas
from headwise.page import PageFigure, PageTable, Section, write_page
from headwise.page.data import page_data
from headwise.page.sample import Sample
from headwise.page.sections import head_grid
from synthetic import TOKENS, attention, surface

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="120pt" height="40pt">'
    '<rect width="80" height="20" fill="red"/></svg>'
)
SPECIAL = [token.startswith("[") for token in TOKENS]
BEST = (3, 2)  # the best head at `obj`
NEAREST = ("L1H1", "L2H5", "L0H4")  # the three most like it


def dependency(
    layers: int, heads: int, relations: tuple[str, ...] = ("all", "nsubj", "obj")
) -> xr.Dataset:
    """Two directions; head `BEST` finds `obj`."""
    rng = np.random.default_rng(1)
    dims = ("direction", "layer", "head", "relation")
    accuracy = rng.uniform(0.05, 0.45, (2, layers, heads, len(relations)))
    accuracy[1, BEST[0], BEST[1], -1] = 0.87
    return xr.Dataset(
        {
            "accuracy": (dims, accuracy, {"units": "share of pairs"}),
            "accuracy_n": (dims, np.full(accuracy.shape, 441)),
            "accuracy_low": (dims, accuracy - 0.03),
            "accuracy_high": (dims, accuracy + 0.03),
            "p_adjusted": (dims, np.where(accuracy > 0.8, 1e-12, 1.0)),
            "bar": (("direction", "relation"), np.full((2, len(relations)), 0.39)),
            "baseline_possible": (("direction", "relation"), np.full((2, len(relations)), 0.39)),
            "best_layer": ("relation", np.full(len(relations), BEST[0])),
            "best_head": ("relation", np.full(len(relations), BEST[1])),
            "best_margin": ("relation", np.full(len(relations), 0.48)),
            "best_p_adjusted": ("relation", np.where(np.arange(len(relations)) == 2, 1e-12, 1.0)),
        },
        {"direction": ["dependent_to_head", "head_to_dependent"], "relation": list(relations)},
        {"title": "Heads that follow syntax", "paper": "Clark et al. 2019", "section": "Table 1"},
    )


def distance(layers: int, heads: int) -> xr.Dataset:
    """Heads at random places; `NEAREST` are planted beside `BEST`."""
    points = np.random.default_rng(2).uniform(0, 1, (layers * heads, 2))
    at = BEST[0] * heads + BEST[1]
    for k, name in enumerate(NEAREST, 1):
        layer, head = name[1:].split("H")
        points[int(layer) * heads + int(head)] = points[at] + 0.001 * k
    js = np.linalg.norm(points[:, None] - points[None], axis=-1)
    return xr.Dataset({"js": (("head_a", "head_b"), js), "mds": (("head_a", "axis"), points)})


def small_atlas(
    name: str = "tiny", relation: str = "obj", layers: int = 6, heads: int = 8
) -> Atlas:
    groups = {
        "surface": surface(layers, heads),
        "dependency": dependency(layers, heads, ("all", "nsubj", relation)),
    }
    groups["distance"] = distance(layers, heads)
    for title, group in {"Where heads look": "surface", "Distances": "distance"}.items():
        groups[group].attrs |= {"title": title, "paper": "Clark et al. 2019"}
    return Atlas(groups, {"model": {"name": name}, "corpus": {"name": "made up", "examples": 200}})


SINK_HEAD, INDUCTION_HEAD = (2, 1), (4, 3)


def decoder_atlas(layers: int = 6, heads: int = 8) -> Atlas:
    """A decoder with a head that rests on the first token and one that finds repeats (and rests
    there, too)."""
    data = surface(layers, heads, causal=True)
    for place in (SINK_HEAD, INDUCTION_HEAD):
        for token_type, share in (("first", 0.97), ("cls", 0.97), ("other", 0.02), ("punct", 0.01)):
            data["mass"].loc[{"layer": place[0], "head": place[1], "token_type": token_type}] = (
                share
            )
        for name in ("max_weight", "max_weight_rest"):
            data[name].loc[{"layer": place[0], "head": place[1]}] = 0.99
        # Nearly nothing is left without the first token: few examples have a value.
        data["max_weight_rest_n"].loc[{"layer": place[0], "head": place[1]}] = 3
    dims = ("layer", "head")
    score, p_adjusted = np.full((layers, heads), 0.02), np.ones((layers, heads))
    score[INDUCTION_HEAD], p_adjusted[INDUCTION_HEAD] = 0.85, 1e-9
    induction = xr.Dataset(
        {
            "prefix_matching": (dims, score),
            "prefix_matching_p_adjusted": (dims, p_adjusted),
            "duplicate": (dims, np.full((layers, heads), 0.02)),
            "duplicate_p_adjusted": (dims, np.ones((layers, heads))),
            "previous": (dims, np.full((layers, heads), 0.02)),
            "previous_p_adjusted": (dims, np.ones((layers, heads))),
            "uniform": ((), 0.02),
        },
        {"layer": np.arange(layers), "head": np.arange(heads)},
        {"title": "Induction heads", "paper": "Olsson et al. 2022"},
    )
    return Atlas({"surface": data, "induction": induction}, {"model": {"name": "tiny decoder"}})


def decoder_samples(layers: int = 6, heads: int = 8) -> list[Sample]:
    """A sentence seen by a decoder: `INDUCTION_HEAD` gives the first token 0.96 of each row and the
    previous token three quarters of the rest."""
    tokens = ["Once", "upon", "a", "time", "a", "cat"]
    maps = np.zeros((layers, heads, len(tokens), len(tokens)))
    for query in range(len(tokens)):
        maps[..., query, : query + 1] = 1 / (query + 1)
        maps[..., query, query + 1 :] = np.nan
    planted = maps[INDUCTION_HEAD]
    for query in range(1, len(tokens)):
        planted[query, : query + 1] = 0
        planted[query, 0] = 0.96
        planted[query, query] += 0.01
        planted[query, max(query - 1, 1)] += 0.03
    return [Sample(tokens, maps, None, list(range(len(tokens))), [False] * len(tokens))]


def compared() -> Atlas:
    """Two models that differ in one head: L1H2 of the second attends to the first token, which is
    significant."""
    heads, dims = ("layer", "head"), ("model", "layer", "head", "token_type")
    mean = np.random.default_rng(3).uniform(0.1, 0.3, (2, 3, 4, 2))
    mean[1] = mean[0]
    mean[1, 1, 2, 0] = 0.8
    cosine = np.ones((1, 3, 4))
    cosine[0, 1, 2] = 0.5
    change, p = (mean[1] - mean[0])[None], np.ones((1, 3, 4, 2))
    p[0, 1, 2, 0] = 1e-9
    words = np.full((2, 3, 4), "broad", dtype="<U20")
    words[1, 1, 2] = "to cls"
    kinds = np.where(words == "broad", "broad", "cls")
    names, types = {"model": ["new"], "model_all": ["old", "new"]}, {"token_type": ["cls", "other"]}
    groups = {
        "change": xr.Dataset(
            {"cosine": (heads, cosine[0]), "cosine_to": (("model", *heads), cosine)},
            {"model": ["new"]},
            {"reference_model": "old", "title": "How far the maps of two models are alike"},
        ),
        "change_surface": xr.Dataset(
            {
                "mass_mean": (("model_all", *dims[1:]), mean),
                "mass_change": (dims, change),
                "mass_change_low": (dims, change - 0.02),
                "mass_change_high": (dims, change + 0.02),
                "mass_change_p_adjusted": (dims, p),
            },
            {**names, **types},
            {"title": "Change of surface", "reference_model": "old"},
        ),
        "change_words": xr.Dataset(
            {
                "does": (("model_all", *heads), words),
                "kind": (("model_all", *heads), kinds),
                "attention": (("model_all", *heads), np.full((2, 3, 4), "cls 0.20")),
            },
            {"model_all": ["old", "new"]},
        ),
    }
    return Atlas(groups, {"model": {"name": "old"}})


def samples(layers: int = 6, heads: int = 8, more: tuple[str, ...] = ()) -> list[Sample]:
    """A sentence whose second token has two pieces, and one of other tokens."""
    tokens = [*TOKENS[:4], "##gy", *TOKENS[4:10], *more]
    words = [-1, 0, 1, 2, 2, *range(3, len(tokens) - 2)]
    special = [True] + [False] * (len(tokens) - 1)
    maps = attention(layers, heads, len(tokens))
    return [
        Sample(tokens, maps, None, words, special),
        Sample(TOKENS, attention(layers, heads, len(TOKENS), seed=1), None, None, SPECIAL),
    ]


def write_site(
    folder: Path,
    atlas: Atlas,
    given: list[Sample],
    title: str = "What the heads of tiny do",
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """The page of an atlas without its figures: one made-up figure stands for them."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "tables" / "surface.csv").write_text("head,value\nL0H0,1\n")
    figure = PageFigure(
        "A figure",
        "How to read it.",
        SVG,
        ["figures/one.svg", "tables/surface.csv"],
        "Clark et al.",
    )
    table = PageTable("Rows", ["a"], [["1"]], "tables/surface.csv")
    sections = [
        Section(n, n, "Clark et al. 2019, Fig 2", figures=[figure], tables=[table])
        for n in ("one", "two")
    ]
    grid, _ = head_grid(atlas)
    page = folder / "index.html"
    write_page(
        page,
        title=title,
        grid=grid,
        data=page_data(atlas, given),
        sections=sections,
        notes=["One note."],
        provenance=provenance or {"seed": 0},
        citations=["Clark et al. (2019). https://aclanthology.org/W19-4828/."],
    )
    return page
