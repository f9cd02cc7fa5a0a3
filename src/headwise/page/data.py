"""The data of a page, as JSON that its script reads: every measure of every head, labels, nearest
heads and maps.

The format is described in docs/page.md; the explorer and notebooks may use it as well.
"""

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

from headwise.atlas import Atlas
from headwise.atlas.behaviours import MIN_SHARE, OTHER, SINK, attention_shares, is_decoder
from headwise.atlas.describe import CARD_COLUMNS, LABEL_CATEGORIES, SHORT_LABELS
from headwise.atlas.role_words import roles_text
from headwise.page.compared import CHANGE, WORDS, models_of, words_of
from headwise.page.evidence import (
    WHERE_ATTENTION_GOES,
    LabelEvidence,
    label_evidence,
    most_interesting,
)
from headwise.page.measures import Measure, group_order, head_measures
from headwise.page.sample import Sample

FORMAT = 1
NEAREST = 8  # heads named as nearest to a head
NO_VALUE = 65535  # in a packed plane: NaN
HIDDEN = 255  # in a packed map: a key that the query may not attend to
SMALLEST_P = 1e-300
# A page that is too large does not open. What is left out to stay below these sizes is noted.
ARRAY_BYTES = 5_000_000  # of packed planes
MAP_BYTES = 2_400_000  # of packed maps
EXAMPLE_BYTES = 500_000  # of texts of the group `examples`
MOST_EXAMPLES = 3  # of each head
# The roles of the group `examples` whose rows show what a label says.
LABEL_ROLES = {
    "induction": ("induction",),
    "duplicate": ("duplicate",),
    "previous token": ("previous", "local:prev"),
    "next token": ("local:next",),
    "nsubj": ("nsubj",),
    "obj": ("dobj",),
    "amod": ("amod",),
    "advmod": ("advmod",),
}


@dataclass(slots=True)
class Packing:
    """Planes of numbers as one run of uint16, each with its range; equal planes are stored once."""

    limit: int = ARRAY_BYTES
    parts: list[bytes] = field(default_factory=list)
    offsets: dict[tuple[bytes, float, float], int] = field(default_factory=dict)
    size: int = 0

    def add(
        self, values: np.ndarray | None, logarithmic: bool = False
    ) -> float | list[float] | None:
        """Add a plane and return how the script finds it.

        A number where all heads have the same, `[offset, lowest, highest]` where they differ, None
        where there is no value or no room. With `logarithmic`, p-values are stored as -log10, so
        that small ones stay distinct.
        """
        if values is None or not np.isfinite(values).any():
            return None
        plane = values
        if logarithmic:
            plane = -np.log10(np.clip(values, SMALLEST_P, 1))
        low = float(np.nanmin(plane))
        high = float(np.nanmax(plane))
        has_value = np.isfinite(plane)
        if low == high and has_value.all():
            return short(low)
        scaled = (plane - low) / ((high - low) or 1)
        codes = np.where(has_value, np.round(scaled * (NO_VALUE - 1)), NO_VALUE)
        content = codes.astype("<u2").tobytes()
        key = (content, low, high)
        if key not in self.offsets:
            if self.size + len(content) > self.limit:
                return None
            self.offsets[key] = self.size // 2  # in numbers of two bytes
            self.parts.append(content)
            self.size += len(content)
        return [self.offsets[key], short(low, 7), short(high, 7)]


def short(value: float, digits: int = 5) -> float:
    """Return a number rounded to some digits, as short as JSON can write it."""
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    rounded = float(f"{value:.{digits}g}")
    if rounded.is_integer() and abs(rounded) < 2**53:
        return int(rounded)
    return rounded


def packed(content: bytes) -> str:
    """Return bytes as text: gzip, then base64; the same bytes give the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


def page_data(atlas: Atlas, samples: Sequence[Sample] = ()) -> dict[str, Any]:
    """Return everything that the page shows, as JSON can hold it (format: docs/page.md).

    Parameters
    ----------
    atlas : Atlas
        The results.
    samples : sequence of Sample, optional
        Inputs with their maps.
    """
    notes: list[str] = []
    measures, arrays = _measures(head_measures(atlas), notes)
    maps = _maps(atlas, samples, notes)
    model = atlas.provenance.get("model", {})
    distances = {}
    if "distance" in atlas:
        distances = _distances(atlas)
    compared = {}
    if CHANGE in atlas:
        compared = _compared_models(atlas, measures["measures"])
    described_heads = _heads(atlas, notes)
    colour = {}
    if not compared and not has_labels(described_heads["heads"]):
        colour = _first_measure(measures["measures"])
    model_data = {
        "name": str(model.get("name", "?")),
        "layers": atlas.layers,
        "heads": atlas.heads,
        **model_structure(atlas),
    }
    if "surface" in atlas and is_decoder(atlas["surface"]):
        model_data["decoder"] = 1
    return {
        "format": FORMAT,
        **compared,
        **colour,
        "model": model_data,
        "groups": _groups(atlas),
        "kinds": LABEL_CATEGORIES,
        **described_heads,
        **measures,
        **distances,
        **maps,
        "arrays": arrays,
        "left_out": notes,
    }


def _compared_models(atlas: Atlas, measures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the models of a comparison and the measure that colours its grid first."""
    models = models_of(atlas)
    data: dict[str, Any] = {"models": models}
    first_measure = f"change.cosine_to.{models[1]}"
    if any(measure["name"] == first_measure for measure in measures):
        data["colour"] = first_measure
    return data


def has_labels(heads: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether any head has a label: an atlas of one analysis may have none to give."""
    return any(head["kind"] != OTHER for head in heads)


def _first_measure(measures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the measure that colours the grid where no head has a label."""
    names = [measure["name"] for measure in measures]
    # Of a cache, readers look first for the heads that the pattern makes short.
    for name in ("cache.head_is_short", *names):
        if name in names:
            return {"colour": name}
    return {}


def _groups(atlas: Atlas) -> dict[str, dict[str, str]]:
    """Return title, paper and section of each group, in reading order."""
    groups = {}
    for name in sorted(atlas, key=group_order):
        attributes = atlas[name].attrs
        known = [key for key in ("title", "paper", "section") if key in attributes]
        groups[name] = {key: str(attributes[key]) for key in known}
    return groups


def data_text(data: Mapping[str, Any]) -> str:
    """Return the data as JSON for a `<script>`: nothing in it can end the element or open a
    comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _measures(measures: Sequence[Measure], notes: list[str]) -> tuple[dict[str, Any], str]:
    """Return the measures and their packed planes."""
    packing = Packing()
    planes: list[dict[str, Any]] = [{} for _ in measures]
    # The most important first: what comes last is left out where there is no room.
    rounds = [("values", True), ("p", True), ("against", True), ("low", True), ("high", True)]
    rounds += [("values", False), ("against", False), ("low", False), ("high", False)]
    for part, leading in rounds:
        for measure, measure_planes in zip(measures, planes, strict=True):
            if measure.leading is not leading:
                continue
            if part != "values" and "values" not in measure_planes:
                continue
            is_p_value = part == "p" or (part == "values" and measure.kind == "p")
            packed_plane = packing.add(getattr(measure, part), is_p_value)
            if packed_plane is not None:
                measure_planes[part] = packed_plane

    entries = []
    texts: dict[str, int] = {}
    n_without_interval = 0
    for measure, measure_planes in zip(measures, planes, strict=True):
        if "values" not in measure_planes:
            continue
        entries.append(_entry(measure, texts) | measure_planes)
        has_interval = measure.low is not None and bool(np.isfinite(measure.low).any())
        if has_interval and "low" not in measure_planes:
            n_without_interval += 1
    if len(entries) < len(measures):
        notes.append(
            f"{len(entries)} of {len(measures)} measures are on this page, to keep it small; the "
            "CSV files have all."
        )
    if n_without_interval:
        notes.append(
            f"The intervals of {n_without_interval} measures are in the CSV files only, to keep "
            "the page small."
        )
    return {"measures": entries, "texts": list(texts)}, packed(b"".join(packing.parts))


def _entry(measure: Measure, texts: dict[str, int]) -> dict[str, Any]:
    """Return the facts of a measure.

    Empty values are left out; long texts are stored once, in `texts`, and named by their number."""
    entry: dict[str, Any] = {
        "name": measure.name,
        "group": measure.group,
        "variable": measure.variable,
        "label": measure.label,
        "kind": measure.kind,
    }
    for key in ("unit", "model", "over", "against_name"):
        if getattr(measure, key):
            entry[key] = getattr(measure, key)
    for key in ("item", "asked", "n"):
        if getattr(measure, key):
            entry[key] = list(getattr(measure, key))
    for key in ("definition", "paper"):
        if getattr(measure, key):
            entry[key] = texts.setdefault(getattr(measure, key), len(texts))
    if measure.leading:
        entry["leading"] = 1
    return entry


def described(atlas: Atlas) -> pd.DataFrame:
    """Return what each head does (`Atlas.describe`), in a comparison in every model.

    The column `below` is what the grid shows below the label."""
    if WORDS in atlas:
        return words_of(atlas[WORDS])
    heads = atlas.describe()
    looks = heads["looks"]
    differs = (looks != OTHER) & (looks != heads["does"])
    return heads.assign(below=looks.where(differs, ""))


def _heads(atlas: Atlas, notes: list[str]) -> dict[str, Any]:
    """Return the label and the description of every head, layer by layer, and the head to show
    first."""
    table = described(atlas)
    evidence = label_evidence(atlas, table)
    sinks = _sink_heads(atlas)
    heads = []
    for row, head_evidence in zip(table.to_dict("records"), evidence, strict=True):
        head = {
            "name": row["name"],
            "word": SHORT_LABELS.get(row["does"], row["does"]),
            "kind": row["kind"],
        }
        if row["below"]:
            head["below"] = SHORT_LABELS.get(row["below"], row["below"])
        if row["best"]:
            head["best"] = 1
        for column in CARD_COLUMNS:
            if row[column]:
                head[column] = row[column]
        if row["roles"]:
            head["roles"] = roles_text(row["roles"])
        if "models" in row:
            head["models"] = row["models"]
        if head_evidence is not None:
            head["evidence"] = _evidence_entry(head_evidence)
        if row["kind"] not in WHERE_ATTENTION_GOES:
            head["tested"] = 1
        if (row["layer"], row["head"]) in sinks:
            head["sink"] = 1
        heads.append(head)
    _add_examples(atlas, table, heads, notes)
    return {"heads": heads, **_first_screen(atlas, table, evidence)}


def _evidence_entry(evidence: LabelEvidence) -> list[Any]:
    """Return evidence as the script reads it: measure, value, bar, what the bar is."""
    return [
        evidence.measure,
        short(evidence.value, 4),
        short(evidence.bar, 4),
        evidence.bar_name,
    ]


def _first_screen(
    atlas: Atlas, heads: pd.DataFrame, evidence: Sequence[LabelEvidence | None]
) -> dict[str, Any]:
    """Return the head that the page shows first, and a filter that keeps it, as an example."""
    if not len(heads):
        return {}
    row = most_interesting(heads, list(evidence))
    if CHANGE in atlas and "cosine" in atlas[CHANGE]:
        # In a comparison, the head whose maps changed most.
        row = int(atlas[CHANGE]["cosine"].transpose("layer", "head").fillna(1).values.argmin())
    row = row or 0
    conditions = []
    row_evidence = evidence[row]
    if row_evidence is not None and row_evidence.short_name:
        least = math.floor(10 * row_evidence.value - 1) / 10
        conditions.append(f"{row_evidence.short_name} > {max(least, 0):g}")
    if "surface" in atlas and "entropy" in atlas["surface"]:
        conditions.append("entropy < 1")
    conditions.append("layer = 0")
    return {"start": str(heads["name"].iloc[row]), "filter": " or ".join(conditions[:2])}


def _sink_heads(atlas: Atlas) -> set[tuple[int, int]]:
    """Return the heads of a decoder that put more than half of their attention on the first
    token."""
    if "surface" not in atlas or not is_decoder(atlas["surface"]):
        return set()
    shares = attention_shares(atlas["surface"])
    if SINK not in shares:
        return set()
    is_sink = shares[SINK].transpose("layer", "head").values > MIN_SHARE
    return {(int(layer), int(head)) for layer, head in np.argwhere(is_sink)}


def _add_examples(
    atlas: Atlas, table: pd.DataFrame, heads: Sequence[dict[str, Any]], notes: list[str]
) -> None:
    """Add to each head its strongest examples, `[text, weight]`.

    `label_examples` show what its label says (of an `obj` head, objects), where the atlas has such
    rows; `examples` are the rows with the largest weights, whatever they show."""
    if "examples" not in atlas or not {"sharp_text", "sharp_weight"} <= set(atlas["examples"]):
        return
    # As arrays, since taking one head of a Dataset costs milliseconds.
    arrays = {}
    for name, variable in atlas["examples"].data_vars.items():
        if {"layer", "head"} <= set(variable.dims):
            arrays[str(name)] = variable.transpose("layer", "head", ...).values
    kinds: dict[str, list[list[list[Any]]]] = {"label_examples": [], "examples": []}
    for row in table.itertuples():
        at_head = {name: array[int(row.layer), int(row.head)] for name, array in arrays.items()}
        label_rows = _label_rows(at_head, str(row.does))
        shown = {text for text, _ in label_rows}
        sharp_rows = _text_rows(at_head["sharp_text"], at_head["sharp_weight"])
        kinds["label_examples"].append(label_rows)
        kinds["examples"].append([pair for pair in sharp_rows if pair[0] not in shown])

    def size(count: int) -> int:
        lengths = 0
        for rows_by_head in kinds.values():
            for rows in rows_by_head:
                lengths += sum(len(text) for text, _ in rows[:count])
        return lengths

    count = MOST_EXAMPLES
    while count and size(count) > EXAMPLE_BYTES:
        count -= 1
    if count < MOST_EXAMPLES and size(MOST_EXAMPLES):
        notes.append(
            f"Of the examples of each head the first {count} are on the page; "
            "tables/examples-rows.csv has all."
        )
    for kind, rows_by_head in kinds.items():
        for head, rows in zip(heads, rows_by_head, strict=True):
            if rows[:count]:
                head[kind] = rows[:count]


def _label_rows(at_head: Mapping[str, Any], label: str) -> list[list[Any]]:
    """Return the rows of one head that show what its label says; none where there are no such."""
    for choice, relation in enumerate(at_head.get("relation", ())):
        if str(relation) == label:
            texts = at_head["relation_text"][choice]
            return _text_rows(texts, at_head["relation_weight"][choice])
    if "role" in at_head and str(at_head["role"]) in LABEL_ROLES.get(label, ()):
        return _text_rows(at_head["role_text"], at_head["role_weight"])
    return []


def _text_rows(texts: np.ndarray, weights: np.ndarray) -> list[list[Any]]:
    rows = []
    for text, weight in zip(texts, weights, strict=True):
        if text and not np.isnan(weight):
            rows.append([str(text), short(float(weight), 3)])
    return rows


def _distances(atlas: Atlas) -> dict[str, Any]:
    """Return the heads nearest to each head, and the positions of heads on the map."""
    data = atlas["distance"]
    n_heads = atlas.layers * atlas.heads
    if "js" not in data or data.sizes.get("head_a") != n_heads:
        return {}
    divergence = data["js"].transpose("head_a", "head_b").values.copy()
    if not np.isfinite(divergence).all():
        return {}
    np.fill_diagonal(divergence, np.inf)  # no head is its own neighbour
    order = np.argsort(divergence, axis=1, kind="stable")[:, : min(NEAREST, n_heads - 1)]
    nearest = []
    for head, neighbours in enumerate(order):
        nearest.append(
            [[int(near), short(float(divergence[head, near]), 4)] for near in neighbours]
        )
    distances: dict[str, Any] = {"nearest": nearest}
    for name in ("mds_smacof", "mds"):
        if name in data and data.sizes.get("axis", 0) >= 2:
            points = data[name].transpose("head_a", "axis").values[:, :2]
            distances["positions"] = [[short(float(x), 4), short(float(y), 4)] for x, y in points]
            break
    return distances


def _maps(atlas: Atlas, samples: Sequence[Sample], notes: list[str]) -> dict[str, Any]:
    """Return the attention maps of the example sentences, packed as uint8.

    Square roots of weights are stored, so that small weights stay distinct."""
    n_heads = atlas.layers * atlas.heads
    usable = []
    for sample in samples:
        if sample.attention.shape[:2] == (atlas.layers, atlas.heads):
            usable.append(sample)
    offset = 0
    parts: list[bytes] = []
    sentences: list[dict[str, Any]] = []
    for sample in usable:
        map_size = sample.attention.shape[2] * sample.attention.shape[3]
        n_maps = (MAP_BYTES - offset) // max(map_size, 1)
        if n_maps < n_heads and sentences:
            notes.append(
                f"The maps of {len(sentences)} of {len(usable)} sentences are on the page, to keep "
                "it small."
            )
            break
        kept_heads = np.arange(n_heads)
        if n_maps < n_heads:
            evenly_spread = np.linspace(0, n_heads - 1, max(n_maps, 1))
            kept_heads = np.unique(evenly_spread.round().astype(int))
            notes.append(
                f"The maps of {len(kept_heads)} of {n_heads} heads are on the page, evenly spread, "
                "to keep it small."
            )
        maps = sample.attention.reshape(n_heads, map_size)[kept_heads]
        parts.append(_map_codes(maps))
        sentence = _sentence(sample, offset)
        if len(kept_heads) < n_heads:
            sentence["heads"] = kept_heads.tolist()
        sentences.append(sentence)
        offset += len(parts[-1])
    if not sentences:
        return {}
    return {"sentences": sentences, "maps": packed(b"".join(parts))}


def _map_codes(maps: np.ndarray) -> bytes:
    """Return attention weights as bytes, NaN (keys that a query may not see) as `HIDDEN`."""
    visible = np.isfinite(maps)
    weights = np.clip(np.where(visible, maps, 0), 0, 1)
    codes = np.where(visible, np.round(np.sqrt(weights) * (HIDDEN - 1)), HIDDEN)
    return codes.astype(np.uint8).tobytes()


def _sentence(sample: Sample, offset: int) -> dict[str, Any]:
    """Return the tokens of a sample and where its maps begin; what is not known is left out."""
    sentence: dict[str, Any] = {"tokens": sample.tokens, "place": offset}
    if sample.keys is not None:
        sentence["keys"] = sample.keys
    if sample.words is not None:
        sentence["words"] = [int(word) for word in sample.words]
    if sample.special is not None:
        sentence["special"] = [int(is_special) for is_special in sample.special]
    if sample.model is not None:
        sentence["model"] = sample.model
    return sentence


def model_structure(atlas: Atlas) -> dict[str, Any]:
    """Return the key/value groups of heads with their sizes, and what each layer may attend to.

    Only where heads share keys, and where some layers attend to less than all."""
    coordinates = {}
    for dataset in atlas.values():
        for name in ("kv_group", "layer_kind"):
            if name in dataset:
                coordinates[name] = dataset[name].values
    structure: dict[str, Any] = {}
    if "kv_group" in coordinates:
        groups = groupby(coordinates["kv_group"])
        structure["kv_groups"] = [[f"kv {group}", len(list(heads))] for group, heads in groups]
    if "layer_kind" in coordinates:
        structure["layer_kinds"] = [str(kind) for kind in coordinates["layer_kind"]]
    return structure
