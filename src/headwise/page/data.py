"""What a page knows of an atlas, as JSON that its script reads: every measure of every head, words,
nearest heads and maps. The format is described in docs/page.md; the explorer and notebooks may use
it as well."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headwise.atlas import Atlas
from headwise.atlas.behaviours import OTHER
from headwise.atlas.describe import CARD_COLUMNS, LABEL_GROUPS, SHORT_LABELS
from headwise.page.compared import WORDS, models_of, words_of
from headwise.page.measures import Measure, group_order, head_measures
from headwise.page.sample import Sample

FORMAT = 1
NEAREST = 8  # heads named as nearest to a head
NO_VALUE = 65535  # in a packed plane: NaN
HIDDEN = 255  # in a packed map: a key that the row may not see
LEAST_P = 1e-300
ARRAY_BYTES = 5_000_000  # of packed planes; what is left out for it is said
MAP_BYTES = 2_400_000  # of packed maps
EXAMPLE_BYTES = 500_000  # of texts of the group `examples`


@dataclass(slots=True)
class Packing:
    """Planes of numbers as one run of uint16, each with the range it is spread over; the same plane
    is kept once."""

    limit: int = ARRAY_BYTES
    parts: list[bytes] = field(default_factory=list)
    places: dict[tuple[bytes, float, float], int] = field(default_factory=dict)
    size: int = 0

    def add(
        self, values: np.ndarray | None, logarithmic: bool = False
    ) -> float | list[float] | None:
        """A number where all heads have it, `[place, lowest, highest]` where they differ, None
        where there is nothing or no room. p-values are kept as −log10, so that small ones stay
        apart."""
        if values is None or not np.isfinite(values).any():
            return None
        plane = -np.log10(np.clip(values, LEAST_P, 1)) if logarithmic else values
        low, high = float(np.nanmin(plane)), float(np.nanmax(plane))
        known = np.isfinite(plane)
        if low == high and known.all():
            return short(low)
        codes = np.where(
            known, np.round((plane - low) / ((high - low) or 1) * (NO_VALUE - 1)), NO_VALUE
        )
        content = codes.astype("<u2").tobytes()
        key = content, low, high
        if key not in self.places:
            if self.size + len(content) > self.limit:
                return None
            self.places[key] = self.size // 2
            self.parts.append(content)
            self.size += len(content)
        return [self.places[key], short(low, 7), short(high, 7)]


def short(value: float, digits: int = 5) -> float:
    """A number to some figures, as short as JSON can have it."""
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def packed(content: bytes) -> str:
    """Bytes as text: gzip, then base64; the same bytes give the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


def page_data(atlas: Atlas, samples: Sequence[Sample] = ()) -> dict[str, Any]:
    """Everything the page asks, as JSON can hold it (see docs/page.md for the format).

    Parameters
    ----------
    atlas : Atlas
        What is known of the heads.
    samples : sequence of Sample, optional
        Inputs with their maps.
    """
    notes: list[str] = []
    measured, arrays = _measures(head_measures(atlas), notes)
    maps = _maps(atlas, samples, notes)
    model = atlas.provenance.get("model", {})
    compared: dict[str, Any] = {"models": models} if (models := models_of(atlas)) else {}
    if compared and any(
        m["name"] == (first := f"change.cosine_to.{models[1]}") for m in measured["measures"]
    ):
        compared["colour"] = first
    return {
        "format": FORMAT,
        **compared,
        "model": {
            "name": str(model.get("name", "?")),
            "layers": atlas.layers,
            "heads": atlas.heads,
            **places(atlas),
        },
        "groups": {
            name: {
                key: str(atlas[name].attrs[key])
                for key in ("title", "paper", "section")
                if key in atlas[name].attrs
            }
            for name in sorted(atlas, key=group_order)
        },
        "kinds": LABEL_GROUPS,
        **_heads(atlas, notes),
        **measured,
        **_distances(atlas),
        **maps,
        "arrays": arrays,
        "left_out": notes,
    }


def data_text(data: Mapping[str, Any]) -> str:
    """The data as JSON that may stand inside a `<script>`: nothing in it can end the element or
    open a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _measures(found: Sequence[Measure], notes: list[str]) -> tuple[dict[str, Any], str]:
    """The measures with their planes packed: what leads first, what it is held against, intervals,
    then the rest."""
    packing = Packing()
    held: list[dict[str, Any]] = [{} for _ in found]
    rounds = [("values", True), ("p", True), ("against", True), ("low", True), ("high", True)]
    rounds += [("values", False), ("against", False), ("low", False), ("high", False)]
    for part, leading in rounds:
        for measure, own in zip(found, held, strict=True):
            if measure.leading is leading and (part == "values" or "values" in own):
                place = packing.add(
                    getattr(measure, part),
                    part == "p" or (part == "values" and measure.kind == "p"),
                )
                if place is not None:
                    own[part] = place
    whole = sum("values" in own for own in held)
    if whole < len(found):
        notes.append(
            f"{whole} of {len(found)} measures are on this page, to keep it small; the CSV files have all."
        )
    cut = sum(
        m.low is not None
        and bool(np.isfinite(m.low).any())
        and "values" in own
        and "low" not in own
        for m, own in zip(found, held, strict=True)
    )
    if cut:
        notes.append(
            f"The intervals of {cut} measures are left to the CSV files, to keep the page small."
        )
    texts: dict[str, int] = {}
    entries = [
        _entry(measure, texts) | own
        for measure, own in zip(found, held, strict=True)
        if "values" in own
    ]
    return {"measures": entries, "texts": list(texts)}, packed(b"".join(packing.parts))


def _entry(measure: Measure, texts: dict[str, int]) -> dict[str, Any]:
    """What is said of a measure; empty things are left out, long texts are kept once and named by
    their place."""
    entry: dict[str, Any] = {
        "name": measure.name,
        "group": measure.group,
        "variable": measure.variable,
    }
    entry |= {"label": measure.label, "kind": measure.kind}
    for key in ("unit", "model", "over", "against_name"):
        if getattr(measure, key):
            entry[key] = getattr(measure, key)
    for key in ("item", "asked", "n"):
        if getattr(measure, key):
            entry[key] = list(getattr(measure, key))
    for key in ("definition", "paper"):
        if getattr(measure, key):
            entry[key] = texts.setdefault(getattr(measure, key), len(texts))
    return entry | ({"leading": 1} if measure.leading else {})


def described(atlas: Atlas) -> pd.DataFrame:
    """What each head does (`Atlas.describe`), in a comparison in every model; `below`: what stands
    below its word."""
    if WORDS in atlas:
        return words_of(atlas[WORDS])
    heads = atlas.describe()
    looks = heads["looks"]
    return heads.assign(below=looks.where((looks != OTHER) & (looks != heads["does"]), ""))


def _heads(atlas: Atlas, notes: list[str]) -> dict[str, Any]:
    """Every head in words, layer by layer."""
    heads: list[dict[str, Any]] = [
        {
            "name": row["name"],
            "word": SHORT_LABELS.get(row["does"], row["does"]),
            "kind": row["kind"],
            **({"below": SHORT_LABELS.get(row["below"], row["below"])} if row["below"] else {}),
            **({"best": 1} if row["best"] else {}),
            **{name: row[name] for name in CARD_COLUMNS if row[name]},
            **({"models": row["models"]} if "models" in row else {}),
        }
        for row in described(atlas).to_dict("records")
    ]
    for head, rows in zip(heads, _examples(atlas, len(heads), notes), strict=False):
        head["examples"] = rows
    return {"heads": heads}


def _examples(atlas: Atlas, count: int, notes: list[str]) -> list[list[list[Any]]]:
    """Rows of the corpus on which each head is most itself: `[text, weight]`, the sharpest
    first."""
    data = atlas["examples"] if "examples" in atlas else xr.Dataset()
    if not {"sharp_text", "sharp_weight"} <= set(data):
        return []
    texts, weights = (
        data[name].transpose("layer", "head", "rank").values.reshape(count, -1)
        for name in ("sharp_text", "sharp_weight")
    )
    rows: list[list[list[Any]]] = []
    for own, sizes in zip(texts, weights, strict=True):
        known = [
            (text, weight)
            for text, weight in zip(own, sizes, strict=True)
            if text and not np.isnan(weight)
        ]
        rows.append([[str(text), short(float(weight), 3)] for text, weight in known])
    kept = 3
    while kept and sum(len(row[0]) for own in rows for row in own[:kept]) > EXAMPLE_BYTES:
        kept -= 1
    if kept < 3 and any(rows):
        notes.append(
            f"Of the examples of each head the first {kept} are on the page; tables/examples-rows.csv has all."
        )
    return [own[:kept] for own in rows] if kept else []


def _distances(atlas: Atlas) -> dict[str, Any]:
    """Where heads lie on the map of their distances, and which are nearest to each."""
    data = atlas["distance"] if "distance" in atlas else xr.Dataset()
    count = atlas.layers * atlas.heads
    if (
        "js" not in data
        or data.sizes.get("head_a") != count
        or not np.isfinite(data["js"].values).all()
    ):
        return {}
    js = data["js"].transpose("head_a", "head_b").values.copy()
    np.fill_diagonal(js, np.inf)
    order = np.argsort(js, axis=1, kind="stable")[:, : min(NEAREST, count - 1)]
    found: dict[str, Any] = {
        "nearest": [
            [[int(other), short(float(js[head, other]), 4)] for other in row]
            for head, row in enumerate(order)
        ]
    }
    points = next(
        (
            data[name]
            for name in ("mds_smacof", "mds")
            if name in data and data.sizes.get("axis", 0) >= 2
        ),
        None,
    )
    if points is not None:
        values = points.transpose("head_a", "axis").values[:, :2]
        found["positions"] = [[short(float(x), 4), short(float(y), 4)] for x, y in values]
    return found


def _maps(atlas: Atlas, samples: Sequence[Sample], notes: list[str]) -> dict[str, Any]:
    """The maps of the example sentences, as roots of weights in uint8: small weights stay apart."""
    known = [one for one in samples if one.attention.shape[:2] == (atlas.layers, atlas.heads)]
    count, place = atlas.layers * atlas.heads, 0
    parts: list[bytes] = []
    sentences: list[dict[str, Any]] = []
    for sample in known:
        area = sample.attention.shape[2] * sample.attention.shape[3]
        room = (MAP_BYTES - place) // max(area, 1)
        if room < count and sentences:
            notes.append(
                f"The maps of {len(sentences)} of {len(known)} sentences are on the page, to keep it small."
            )
            break
        kept = (
            np.arange(count)
            if room >= count
            else np.unique(np.linspace(0, count - 1, max(room, 1)).round().astype(int))
        )
        maps = sample.attention.reshape(count, area)[kept]
        seen = np.isfinite(maps)
        codes = np.where(
            seen, np.round(np.sqrt(np.clip(np.where(seen, maps, 0), 0, 1)) * (HIDDEN - 1)), HIDDEN
        )
        parts.append(codes.astype(np.uint8).tobytes())
        about: dict[str, Any] = {"tokens": sample.tokens, "place": place}
        for name in ("keys", "words", "special"):
            if getattr(sample, name) is not None:
                about[name] = [
                    int(x) if not isinstance(x, str) else x for x in getattr(sample, name)
                ]
        if sample.model is not None:
            about["model"] = sample.model
        if len(kept) < count:
            about["heads"] = kept.tolist()
            notes.append(
                f"The maps of {len(kept)} of {count} heads are on the page, evenly spread, to keep it small."
            )
        sentences.append(about)
        place += len(parts[-1])
    return {"sentences": sentences, "maps": packed(b"".join(parts))} if sentences else {}


def places(atlas: Atlas) -> dict[str, Any]:
    """The key/value groups of heads with their sizes, and what layers may see where some see less
    than all."""
    found = {
        name: data[name].values
        for data in atlas.values()
        for name in ("kv_group", "layer_kind")
        if name in data
    }
    told: dict[str, Any] = {}
    if "kv_group" in found:
        told["kv_groups"] = [
            [f"kv {group}", len(list(own))] for group, own in groupby(found["kv_group"])
        ]
    if "layer_kind" in found:
        told["layer_kinds"] = [str(kind) for kind in found["layer_kind"]]
    return told
