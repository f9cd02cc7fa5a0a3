"""What the label of each head rests on: a measured value and the bar that it passes.

The page ranks heads by it, and shows first the head that is furthest above its bar."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from headwise.atlas import behaviours
from headwise.atlas.describe import ANTECEDENTS
from headwise.core.labels import labels_of

# Categories of labels that only say where attention goes, or nothing: a head that a test found to
# do something ranks before these, whatever its margin.
WHERE_ATTENTION_GOES = frozenset({"position", "sink", "cls", "sep", "delimiters", "broad", "other"})
UNIFORM = "uniform attention"
THRESHOLD = "threshold of the label"


@dataclass(frozen=True, slots=True)
class LabelEvidence:
    """The value that gave a head its label.

    Parameters
    ----------
    measure : str
        What was measured, for readers.
    short_name : str
        Its name in a filter; empty where it is no single measure.
    value, bar : float
        The value of the head, and what it is held against.
    bar_name : str
        What the bar is.
    """

    measure: str
    short_name: str
    value: float
    bar: float
    bar_name: str

    @property
    def margin(self) -> float:
        """How far the head is above its bar."""
        return self.value - self.bar


@dataclass(frozen=True, slots=True)
class _ScoreRule:
    """The variable behind a label, and its reference: a variable of the group, or a threshold."""

    group: str
    variable: str
    measure: str
    reference: str = ""
    threshold: float = 0.0


_SCORES = {
    behaviours.INDUCTION: _ScoreRule(
        "induction", "prefix_matching", "attention to the token after the repeat", "uniform"
    ),
    behaviours.DUPLICATE: _ScoreRule(
        "induction", "duplicate", "attention to the earlier occurrence", "uniform"
    ),
    behaviours.RETRIEVAL: _ScoreRule(
        "retrieval", "score", "needles retrieved", threshold=behaviours.MIN_RETRIEVAL
    ),
    behaviours.COPYING: _ScoreRule(
        "logits", "copying", "logits to the attended token", threshold=behaviours.MIN_COPYING
    ),
    behaviours.FUNCTION_VECTOR: _ScoreRule(
        "function_vectors", "gain", "gain of the right answer", threshold=behaviours.MIN_GAIN
    ),
    behaviours.COPY_SUPPRESSION: _ScoreRule(
        "copy_suppression",
        "suppression",
        "logits off a predicted token",
        threshold=behaviours.MIN_SUPPRESSION,
    ),
}


def label_evidence(
    datasets: Mapping[str, xr.Dataset], heads: pd.DataFrame
) -> list[LabelEvidence | None]:
    """Return the evidence for the label of each head; None where no single value stands behind it.

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        The atlas.
    heads : DataFrame
        What each head does, as `atlas.describe()` returns it.
    """
    by_label: dict[str, _ByHead] = {}
    if "surface" in datasets:
        by_label |= _attention_evidence(datasets["surface"])
    if "dependency" in datasets:
        by_label |= _relation_evidence(datasets["dependency"])
    if "coreference" in datasets:
        by_label[ANTECEDENTS] = _antecedent_evidence(datasets["coreference"])
    for label, rule in _SCORES.items():
        if rule.group in datasets:
            by_label[label] = _score_evidence(datasets[rule.group], rule)
    rows: list[LabelEvidence | None] = []
    for row in heads.itertuples():
        evidence = by_label.get(str(row.does), {}).get((int(row.layer), int(row.head)))
        if evidence is not None and not math.isfinite(evidence.margin):
            evidence = None
        rows.append(evidence)
    return rows


def most_interesting(heads: pd.DataFrame, evidence: list[LabelEvidence | None]) -> int | None:
    """Return the row of the head to show first: the largest margin of what a test found, else of
    where attention goes; None where no head has a label."""
    best: tuple[bool, float] | None = None
    best_row = None
    for row, (kind, head_evidence) in enumerate(zip(heads["kind"], evidence, strict=True)):
        if head_evidence is None:
            continue
        strength = (kind not in WHERE_ATTENTION_GOES, head_evidence.margin)
        if best is None or strength > best:
            best = strength
            best_row = row
    return best_row


_ByHead = dict[tuple[int, int], LabelEvidence]


def _score_evidence(dataset: xr.Dataset, rule: _ScoreRule) -> _ByHead:
    if rule.variable not in dataset:
        return {}
    values = dataset[rule.variable]
    bars = xr.full_like(values, rule.threshold)
    bar_name = THRESHOLD
    if rule.reference in dataset:
        bars = dataset[rule.reference]
        bar_name = UNIFORM
    return _by_head(rule.measure, values, bars, bar_name, rule.variable)


def _relation_evidence(dependency: xr.Dataset) -> dict[str, _ByHead]:
    """Return the accuracy of each head on each relation, in its better direction, by relation."""
    if not {"accuracy", "p_adjusted"} <= set(dependency):
        return {}
    if not {"bar", "baseline_possible"} & set(dependency):
        return {}
    margins = behaviours.significant_margins(dependency)
    accuracy = dependency["accuracy"].transpose(*margins.dims).values
    bars = behaviours.best_baseline(dependency).transpose("direction", "relation").values
    best_direction = margins.values.argmax(0)
    by_relation: dict[str, _ByHead] = {}
    for number, relation in enumerate(labels_of(dependency, "relation")):
        evidence: _ByHead = {}
        for layer, head in np.ndindex(*best_direction.shape[:2]):
            direction = int(best_direction[layer, head, number])
            evidence[layer, head] = LabelEvidence(
                f"accuracy on {relation}",
                relation,
                float(accuracy[direction, layer, head, number]),
                float(bars[direction, number]),
                "best baseline",
            )
        by_relation[relation] = evidence
    return by_relation


def _antecedent_evidence(coreference: xr.Dataset) -> _ByHead:
    if not {"accuracy", "baseline_accuracy"} <= set(coreference):
        return {}
    all_mentions = coreference.sel(mention_type="all")
    accuracy = all_mentions["accuracy"]
    best_rule = all_mentions["baseline_accuracy"].max()
    return _by_head("accuracy on antecedents", accuracy, best_rule, "best rule")


def _attention_evidence(surface: xr.Dataset) -> dict[str, _ByHead]:
    """Return the share of attention behind each label that says where attention goes."""
    if not {"position", "mass", "mass_uniform"} <= set(surface):
        return {}
    shares = behaviours.attention_shares(surface)
    uniform = behaviours.attention_shares(surface, "_uniform")
    near = [label for label in shares if label in behaviours.POSITIONS.values()]
    parts = {label: [label] for label in shares}
    parts[behaviours.NEIGHBOURS] = near
    parts[behaviours.DELIMITERS] = [label for label in shares if label not in near]
    by_label: dict[str, _ByHead] = {}
    for label, names in parts.items():
        value = xr.concat([shares[name] for name in names], "part").sum("part")
        bar = xr.concat([uniform[name] for name in names], "part").sum("part")
        by_label[label] = _by_head("share of attention", value, bar)
    if {"entropy", "entropy_uniform"} <= set(surface):
        relative = surface["entropy"] / surface["entropy_uniform"]
        bar = xr.full_like(relative, behaviours.MIN_BROAD_ENTROPY)
        by_label[behaviours.BROAD_LABEL] = _by_head(
            "entropy, as a share of uniform attention's", relative, bar, THRESHOLD
        )
    return by_label


def _by_head(
    measure: str,
    value: xr.DataArray,
    bar: xr.DataArray,
    bar_name: str = UNIFORM,
    short_name: str = "",
) -> _ByHead:
    """Return the evidence for one label, of every head that it may belong to."""
    values = value.transpose("layer", "head").values
    bars = bar.broadcast_like(value).transpose("layer", "head").values
    evidence: _ByHead = {}
    for layer, head in np.ndindex(*values.shape):
        evidence[layer, head] = LabelEvidence(
            measure, short_name, float(values[layer, head]), float(bars[layer, head]), bar_name
        )
    return evidence
