"""Figures of change between models: similarity of maps, change by role or feature and by thirds of
the layers, roles gained and lost, probing on one colour scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from headwise.analyses.probing.figures import score_label
from headwise.experiments.comparison.result import THIRDS
from headwise.plots import data, style
from headwise.plots.heatmap import heatmap_panels
from headwise.plots.registry import figure


def _against(dataset: xr.Dataset) -> str:
    return f"Against {dataset.attrs.get('reference_model', 'the first model')}"


@figure(
    "change",
    name="cosine",
    title="How far the attention maps of two models are alike",
    caption="Each cell is one head: the cosine similarity of its flattened attention maps in two models on the same "
    "inputs (real tokens only). Dark heads changed most.",
    paper="Kovaleva et al. 2019, Fig 5",
    needs=("cosine_to",),
)
def cosine(dataset: xr.Dataset) -> Figure:
    """`cosine_to[model, layer, head]` as heat maps on one colour scale (Kovaleva et al. 2019, Fig
    5)."""
    notes = [_against(dataset), f"{dataset.attrs.get('examples', '?')} inputs"]
    planes = data.panels(dataset, "cosine_to", "model")
    title, label = "Similarity of attention maps", "cosine similarity"
    return heatmap_panels(
        planes, title=title, label=label, limits=(None, 1.0), annotate="none", notes=notes
    )


def _third_panels(
    dataset: xr.Dataset, labels: Sequence[str], height: float, label: str
) -> tuple[Figure, list[Axes]]:
    """A panel for each model with places for bars of every label, as many inches high and one more
    for all."""
    models = data.labels(dataset, "model")
    fig = style.new_figure(style.PAGE, 1.0 + height * len(models))
    axes = list(fig.subplots(len(models), 1, sharex=True, sharey=True, squeeze=False).ravel())
    for ax in axes:
        ax.axhline(0, color="black", linewidth=0.5)
        ax.set_ylabel(label)
    slanted: dict[str, Any] = (
        {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(labels) > 6 else {}
    )
    axes[-1].set_xticks(range(len(labels)), [name.replace("_", " ") for name in labels], **slanted)
    style.panel_labels(axes, models)
    return fig, axes


def _places(count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each third with the places, width and colour of its bars."""
    for third, colour in enumerate(style.layer_colours(3)):
        yield third, {"x": np.arange(count) + 0.26 * (third - 1), "width": 0.24, "color": colour}


@dataclass(frozen=True, slots=True)
class Changed:
    """A quantity with one value a head and label that is compared: where it lies in the result, and
    in which words it is drawn."""

    group: str
    variable: str
    dim: str
    what: str  # what changed, after "change of"
    label: str  # at the axis
    reading: str  # what a change above zero means
    paper: str

    def thirds(self, dataset: xr.Dataset) -> Figure:
        dims, name = ("model", "third", self.dim), f"{self.variable}_third_change"
        middle, low, high = (
            data.values(dataset, f"{name}{end}", dims) for end in ("", "_low", "_high")
        )
        labels = data.labels(dataset, self.dim)
        shown = [i for i in range(len(labels)) if np.isfinite(middle[..., i]).any()]
        fig, axes = _third_panels(dataset, [labels[i] for i in shown], 1.7, self.label)
        for row, ax in enumerate(axes):
            for third, bars in _places(len(shown)):
                here = (row, third, shown)
                errors = np.abs(np.stack([middle[here] - low[here], high[here] - middle[here]]))
                whiskers = {"ecolor": "black", "elinewidth": 0.5, "capsize": 1}
                ax.bar(
                    **bars, height=middle[here], yerr=errors, error_kw=whiskers, label=THIRDS[third]
                )
        handles, _ = axes[0].get_legend_handles_labels()
        notes = [
            "Whiskers: 95 % interval over inputs, paired",
            "Thirds of the layers, mean over their heads",
        ]
        title = f"Change of {self.what}"
        return style.complete(fig, title, [_against(dataset), *notes], legend=handles, columns=3)

    def heads(self, dataset: xr.Dataset) -> Figure:
        """One model's change, a panel for each label."""
        found = data.panels(dataset.isel(model=0), f"{self.variable}_change", self.dim)
        panels = {label.replace("_", " "): panel for label, panel in found.items()}
        title, notes = f"Change of {self.what}: {dataset['model'].values[0]}", [_against(dataset)]
        return heatmap_panels(
            panels, title=title, label=self.label, centre=0.0, annotate="none", notes=notes
        )


CHANGED = (
    Changed(
        "change_roles", "bias", "role", "sieve bias", "change of bias", "heads lean more to the role than in the first "
        "model",
        "Pande et al. 2021, Fig 6",
    ),
    Changed(
        "change_features", "attention", "feature", "attention to features", "change of attention",
        "tokens of the feature get more attention than in the first model", "Kovaleva et al. 2019, Fig 6",
    ),
    Changed(
        "change_surface", "mass", "token_type", "attention to token types", "change of share",
        "more of the attention goes to tokens of the type than in the first model", "Clark et al. 2019, Fig 2",
    ),
)  # fmt: skip


def _register(changed: Changed) -> None:
    """Two figures of each quantity: means over thirds of the layers with intervals, and every
    head."""
    figure(
        changed.group,
        name="thirds",
        title=f"Change of {changed.what}, for initial, middle and final layers",
        caption=f"Bars above zero: {changed.reading}.",
        paper=changed.paper,
        needs=(f"{changed.variable}_third_change",),
    )(changed.thirds)
    figure(
        changed.group,
        name="heads",
        title=f"Change of {changed.what}, head by head",
        caption=f"Each cell is one head, all on one colour scale; above zero, {changed.reading}.",
        paper=changed.paper,
        needs=(f"{changed.variable}_change",),
        each="model",
    )(changed.heads)


for _changed in CHANGED:
    _register(_changed)


@figure(
    "change_roles",
    name="gained-lost",
    title="Roles gained and lost",
    caption="For each role: how many heads gain it (up) and lose it (down) against the first model, in the initial, "
    "middle and final third of the layers. Full colour: the head's bias surely changed that way; pale: it crosses the "
    "border of the role without a sure change.",
    paper="beside Pande et al. 2021, Fig 6",
    needs=("gained_count",),
)
def gained_and_lost(dataset: xr.Dataset) -> Figure:
    """`gained_count` and `lost_count[model, third, role]` as bars around zero, those that are sure
    in full colour."""
    roles, dims = data.labels(dataset, "role"), ("model", "third", "role")
    parts = {
        name: data.values(dataset, f"{name}_count", dims)
        for name in ("gained", "lost", "gained_sure", "lost_sure")
    }
    before = data.values(dataset, "role_count", ("model_all", "role"))
    shown = [
        i
        for i in range(len(roles))
        if before[:, i].any() or any(part[..., i].any() for part in parts.values())
    ]
    fig, axes = _third_panels(
        dataset, [roles[i] for i in shown], 1.75, "heads\n← lost      gained →"
    )
    for row, ax in enumerate(axes):
        for third, bars in _places(len(shown)):
            for name, sign in (("gained", 1), ("lost", -1)):
                every, sure = (
                    sign * parts[key][row, third, shown] for key in (name, f"{name}_sure")
                )
                ax.bar(**bars, height=every, alpha=0.35)
                ax.bar(**bars, height=sure)
        for x, i in enumerate(shown):
            moved: dict[str, Any] = {
                "ha": "center",
                "va": "top",
                "fontsize": style.SMALL,
                "color": style.GREY,
            }
            text = f"{before[0, i]:.0f} → {before[row + 1, i]:.0f}"
            ax.annotate(text, (x, 1), xycoords=("data", "axes fraction"), **moved)
    colours = zip(style.layer_colours(3), data.labels(dataset, "third"), strict=True)
    handles = [Patch(color=colour, label=name) for colour, name in colours]
    handles.append(Patch(color=style.GREY, alpha=0.35, label="no sure change of bias"))
    notes = [
        f"{_against(dataset)}, whose τ decides in all models",
        "Numbers above: all heads with the role, before → after",
        "No interval: counts of heads",
    ]
    return style.complete(fig, "Roles gained and lost", notes, handles, 4)


@figure(
    "change_probing",
    name="states",
    title="Probing accuracy of heads in every model, on one colour scale",
    caption="Each cell is one head; one panel for each model, heads sorted within their layer, on one colour scale.",
    paper="Jo & Myaeng 2020, Fig 4",
    needs=("accuracy",),
    each="task",
)
def probing(dataset: xr.Dataset) -> Figure:
    """`accuracy[model_all, task, layer, head]` of one task on one colour scale, heads sorted (Jo &
    Myaeng 2020, Fig 4)."""
    task = str(dataset["task"].values[0])
    notes = [data.count_text(dataset, "accuracy", each="test examples")]
    if data.has(dataset, "majority"):
        notes.append(
            f"The most frequent label alone: {100 * float(dataset['majority'].values[0]):.1f} %"
        )
    planes = data.panels(100 * dataset[["accuracy"]].isel(task=0), "accuracy", "model_all")
    title, label = f"{task}: probing accuracy in every model", score_label(dataset)
    return heatmap_panels(planes, title=title, label=label, sort=True, annotate="none", notes=notes)


@figure(
    "change_probing",
    name="heads",
    title="Change of probing accuracy, head by head",
    caption="Each cell is one head: its test score minus that of the same head in the first model, one panel for each "
    "other model, all on one colour scale.",
    paper="Jo & Myaeng 2020, Fig 4",
    needs=("accuracy_change",),
    each="task",
)
def probing_heads(dataset: xr.Dataset) -> Figure:
    """`accuracy_change[model, task, layer, head]` of one task around zero."""
    task = str(dataset["task"].values[0])
    planes = data.panels(
        100 * dataset[["accuracy_change"]].isel(task=0), "accuracy_change", "model"
    )
    scores = score_label(dataset)
    label = "points" if scores.endswith("(%)") else f"change of {scores}"
    title, notes = f"{task}: change of probing accuracy", [_against(dataset)]
    return heatmap_panels(
        planes, title=title, label=label, centre=0.0, annotate="none", notes=notes
    )
