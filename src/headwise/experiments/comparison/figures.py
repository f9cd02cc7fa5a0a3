"""Figures of change between models: similarity of maps, change by role or feature and by thirds of
the layers, roles gained and lost, probing on one colour scale."""

from __future__ import annotations

from collections.abc import Sequence
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

BAR_WIDTH = 0.24
BAR_DISTANCE = 0.26
PALE = 0.35


def _against(dataset: xr.Dataset) -> str:
    """Return the note that names the model others are compared with."""
    return f"Against {dataset.attrs.get('reference_model', 'the first model')}"


@figure(
    "change",
    name="cosine",
    title="How far the attention maps of two models are alike",
    caption="Each cell is one head: the cosine similarity of its flattened attention maps in two "
    "models on the same inputs (without padding). Dark heads changed most.",
    paper="Kovaleva et al. 2019, Fig 5",
    needs=("cosine_to",),
)
def cosine(dataset: xr.Dataset) -> Figure:
    """`cosine_to[model, layer, head]` as heat maps on one colour scale (Kovaleva et al. 2019, Fig
    5)."""
    return heatmap_panels(
        data.panels(dataset, "cosine_to", "model"),
        title="Similarity of attention maps",
        label="cosine similarity",
        limits=(None, 1.0),
        annotate="none",
        notes=[_against(dataset), f"{dataset.attrs.get('examples', '?')} inputs"],
    )


def _third_panels(
    dataset: xr.Dataset, labels: Sequence[str], height: float, label: str
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each model, `height` inches high, with room for the bars of
    every label."""
    models = data.labels(dataset, "model")
    fig = style.new_figure(style.PAGE, 1.0 + height * len(models))
    axes = list(fig.subplots(len(models), 1, sharex=True, sharey=True, squeeze=False).ravel())
    for ax in axes:
        ax.axhline(0, color="black", linewidth=0.5)
        ax.set_ylabel(label)
    slanted: dict[str, Any] = {}
    if len(labels) > 6:
        slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    tick_labels = [name.replace("_", " ") for name in labels]
    axes[-1].set_xticks(range(len(labels)), tick_labels, **slanted)
    style.panel_labels(axes, models)
    return fig, axes


def _bar_positions(n_labels: int, third: int) -> np.ndarray:
    """Return where the bars of a third stand: the three thirds of a label side by side."""
    return np.arange(n_labels) + BAR_DISTANCE * (third - 1)


@dataclass(frozen=True, slots=True)
class ChangeFigures:
    """The figures of one quantity with a value for each head and label.

    Attributes
    ----------
    group, variable, dim : str
        Where the quantity lies in the result.
    quantity : str
        What changed, after "change of".
    label : str
        The label of the axis.
    meaning : str
        What a change above zero means.
    paper : str
        The paper with such a figure.
    """

    group: str
    variable: str
    dim: str
    quantity: str
    label: str
    meaning: str
    paper: str

    def thirds(self, dataset: xr.Dataset) -> Figure:
        """Draw means over thirds of the layers, with intervals."""
        dims = ("model", "third", self.dim)
        name = f"{self.variable}_third_change"
        middle = data.values(dataset, name, dims)
        below = middle - data.values(dataset, f"{name}_low", dims)
        above = data.values(dataset, f"{name}_high", dims) - middle
        labels = data.labels(dataset, self.dim)
        shown = [i for i in range(len(labels)) if np.isfinite(middle[..., i]).any()]
        fig, axes = _third_panels(dataset, [labels[i] for i in shown], 1.7, self.label)
        for row, ax in enumerate(axes):
            for third, colour in enumerate(style.layer_colours(3)):
                bars = (row, third, shown)
                ax.bar(
                    x=_bar_positions(len(shown), third),
                    height=middle[bars],
                    width=BAR_WIDTH,
                    color=colour,
                    yerr=np.abs(np.stack([below[bars], above[bars]])),
                    error_kw={"ecolor": "black", "elinewidth": 0.5, "capsize": 1},
                    label=THIRDS[third],
                )
        handles, _ = axes[0].get_legend_handles_labels()
        notes = [
            _against(dataset),
            "Whiskers: 95 % interval over inputs or documents, paired",
            "Thirds of the layers, mean over their heads",
        ]
        title = f"Change of {self.quantity}"
        return style.complete(fig, title, notes, legend=handles, columns=3)

    def heads(self, dataset: xr.Dataset) -> Figure:
        """Draw one model's change of every head, a panel for each label."""
        first = dataset.isel(model=0)
        panels = {}
        for label, panel in data.panels(first, f"{self.variable}_change", self.dim).items():
            panels[label.replace("_", " ")] = panel
        return heatmap_panels(
            panels,
            title=f"Change of {self.quantity}: {dataset['model'].values[0]}",
            label=self.label,
            centre=0.0,
            annotate="none",
            notes=[_against(dataset)],
        )

    def register(self) -> None:
        """Register both figures."""
        figure(
            self.group,
            name="thirds",
            title=f"Change of {self.quantity}, for initial, middle and final layers",
            caption=f"Bars above zero: {self.meaning}.",
            paper=self.paper,
            needs=(f"{self.variable}_third_change",),
        )(self.thirds)
        figure(
            self.group,
            name="heads",
            title=f"Change of {self.quantity}, head by head",
            caption=f"Each cell is one head, all on one colour scale; above zero, {self.meaning}.",
            paper=self.paper,
            needs=(f"{self.variable}_change",),
            each="model",
        )(self.heads)


ChangeFigures(
    group="change_roles",
    variable="bias",
    dim="role",
    quantity="sieve bias",
    label="change of bias",
    meaning="heads have more bias to the role than in the first model",
    paper="Pande et al. 2021, Fig 6",
).register()
ChangeFigures(
    group="change_features",
    variable="attention",
    dim="feature",
    quantity="attention to features",
    label="change of attention",
    meaning="tokens of the feature get more attention than in the first model",
    paper="Kovaleva et al. 2019, Fig 6",
).register()
ChangeFigures(
    group="change_surface",
    variable="mass",
    dim="token_type",
    quantity="attention to token types",
    label="change of share",
    meaning="more of the attention goes to tokens of the type than in the first model",
    paper="Clark et al. 2019, Fig 2",
).register()


@figure(
    "change_roles",
    name="gained-lost",
    title="Roles gained and lost",
    caption="For each role: how many heads gain it (up) and lose it (down) against the first "
    "model, in the initial, middle and final third of the layers. Full colour: the head's bias "
    "changed significantly that way; pale: it crosses the border of the role without a significant "
    "change.",
    paper="beside Pande et al. 2021, Fig 6",
    needs=("gained_count",),
)
def gained_and_lost(dataset: xr.Dataset) -> Figure:
    """`gained_count` and `lost_count[model, third, role]` as bars around zero, significant changes
    in full colour."""
    roles = data.labels(dataset, "role")
    counts = {}
    for name in ("gained", "lost", "gained_sure", "lost_sure"):
        counts[name] = data.values(dataset, f"{name}_count", ("model", "third", "role"))
    n_heads = data.values(dataset, "role_count", ("model_all", "role"))
    shown = []
    for number in range(len(roles)):
        changed = any(count[..., number].any() for count in counts.values())
        if changed or n_heads[:, number].any():
            shown.append(number)
    fig, axes = _third_panels(
        dataset, [roles[number] for number in shown], 1.75, "heads\n← lost      gained →"
    )
    colours = style.layer_colours(3)
    for row, ax in enumerate(axes):
        for third, colour in enumerate(colours):
            positions = _bar_positions(len(shown), third)
            for name, sign in (("gained", 1), ("lost", -1)):
                all_changes = sign * counts[name][row, third, shown]
                significant = sign * counts[f"{name}_sure"][row, third, shown]
                bars: dict[str, Any] = {"x": positions, "width": BAR_WIDTH, "color": colour}
                ax.bar(**bars, height=all_changes, alpha=PALE)
                ax.bar(**bars, height=significant)
        for x, number in enumerate(shown):
            ax.annotate(
                f"{n_heads[0, number]:.0f} → {n_heads[row + 1, number]:.0f}",
                (x, 1),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                fontsize=style.SMALL,
                color=style.GREY,
            )
    handles = []
    for colour, name in zip(colours, data.labels(dataset, "third"), strict=True):
        handles.append(Patch(color=colour, label=name))
    handles.append(Patch(color=style.GREY, alpha=PALE, label="no significant change of bias"))
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
    caption="Each cell is one head; one panel for each model, heads sorted within their layer, on "
    "one colour scale.",
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
        majority = 100 * float(dataset["majority"].values[0])
        notes.append(f"The most frequent label alone: {majority:.1f} %")
    percent = 100 * dataset[["accuracy"]].isel(task=0)
    return heatmap_panels(
        data.panels(percent, "accuracy", "model_all"),
        title=f"{task}: probing accuracy in every model",
        label=score_label(dataset),
        sort=True,
        annotate="none",
        notes=notes,
    )


@figure(
    "change_probing",
    name="heads",
    title="Change of probing accuracy, head by head",
    caption="Each cell is one head: its test score minus that of the same head in the first model, "
    "one panel for each other model, all on one colour scale.",
    paper="Jo & Myaeng 2020, Fig 4",
    needs=("accuracy_change",),
    each="task",
)
def probing_heads(dataset: xr.Dataset) -> Figure:
    """`accuracy_change[model, task, layer, head]` of one task around zero."""
    task = str(dataset["task"].values[0])
    percent = 100 * dataset[["accuracy_change"]].isel(task=0)
    score = score_label(dataset)
    label = "points" if score.endswith("(%)") else f"change of {score}"
    return heatmap_panels(
        data.panels(percent, "accuracy_change", "model"),
        title=f"{task}: change of probing accuracy",
        label=label,
        centre=0.0,
        annotate="none",
        notes=[_against(dataset)],
    )
