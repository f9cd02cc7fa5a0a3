"""`headwise ablate`: what a model can do without some of its heads."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import AtlasFile, ModelName, TextOptions
from headwise.core.options import option
from headwise.experiments.ablation.options import AblationOptions

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

SHOWN_HEADS = 5  # at either end of the ranking
STRONGEST_ROLES = 3  # in the line on roles


@command("ablate", workers=True)
def ablate_command(
    *,
    model: ModelName,
    text: TextOptions,
    options: AblationOptions,
    atlas: AtlasFile = None,
    out_file: Path = option(
        Path("ablation.nc"), flag="out", help="A NetCDF file with the group `ablation`."
    ),
    figures: Path | None = option(None, help="A folder for figures."),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Disable each head, layer or set of heads, and score the model without it.

    The score is that of a task's dev set, or the language-modelling loss.

    [dim]Examples:[/dim]

      headwise ablate mrpc/seed-0/model --task MRPC --data glue --out mrpc-ablation.nc

      headwise ablate ./model --task RTE --dev dev.tsv --how zero --atlas atlas --set
      sinks=roles:delimiter --set frames:top5

      headwise ablate --corpus stories.txt --limit 200
    """
    from headwise.experiments.ablation import ablate_in_job
    from headwise.run import Job

    sources = common.sources_of(model.name, text.spec(), options.data, options.dev, atlas)
    with (
        common.Watch() as watch,
        Job.for_file(out_file, overwrite=overwrite, sources=sources, progress=watch) as job,
    ):
        known_results = common.load_atlas(atlas)
        result = ablate_in_job(job, model.name, text.spec(), options, known_results)
        dataset, failures = common.write_and_draw(job, result, "ablation", out_file, figures)
    if dataset.attrs["note"]:
        common.err.print(dataset.attrs["note"], style="dim")
    common.out.print(summary_table(dataset, str(out_file)))
    for line in summary_lines(dataset):
        common.out.print(line)
    common.exit_if_failed(failures)


def summary_table(dataset: xr.Dataset, title: str) -> Table:
    """Return the heads whose absence helps or harms most, whole layers and sets."""
    from rich.table import Table

    from headwise.core.labels import head_name, labels_of

    columns = (
        "disabled",
        "score",
        "difference",
        "95 % interval",
        "p",
        "p corrected",
        "on first token",
    )
    table = Table(*columns, title=f"{title} (disabled as: {dataset.attrs['how']})")
    table.add_row("nothing", f"{dataset.attrs['baseline']:.4f}", "", "", "", "", "")

    def add_row(name: str, prefix: str, **place: int) -> None:
        def value(key: str) -> float:
            return float(dataset[f"{prefix}{key}"].isel(place))

        sink = ""
        if prefix == "" and "sink_share" in dataset:
            sink = f"{value('sink_share'):.0%}"
        table.add_row(
            name,
            f"{value('score'):.4f}",
            f"{value('difference'):+.4f}",
            format_interval(value("difference_low"), value("difference_high")),
            f"{value('p_value'):.2g}",
            f"{value('p_adjusted'):.2g}",
            sink,
        )

    if "difference" in dataset:
        differences = dataset["difference"].stack(place=("layer", "head")).dropna("place")
        order = differences.values.argsort(kind="stable")
        ranked = [differences["place"].values[number] for number in order]
        if len(ranked) > 2 * SHOWN_HEADS:
            ranked = [*ranked[:SHOWN_HEADS], *ranked[-SHOWN_HEADS:]]
        for layer, head in ranked:
            add_row(head_name(layer, head), "", layer=layer, head=head)
    if "layer_score" in dataset:
        for layer in range(dataset.sizes["layer"]):
            add_row(f"layer {layer}", "layer_", layer=layer)
    if "set" in dataset.dims:
        for number, name in enumerate(labels_of(dataset, "set")):
            add_row(name, "set_", set=number)
    return table


def format_interval(low: float, high: float) -> str:
    """Return an interval as text; where no example changed, there is none."""
    if isnan(low):
        return "no change"
    return f"{low:+.4f} … {high:+.4f}"


def summary_lines(dataset: xr.Dataset) -> list[str]:
    """Return sentences about all heads together."""
    facts = dataset.attrs
    lines = []
    if "mean_difference" in facts:
        n_disabled = facts["heads_disabled"]
        n_heads = dataset.sizes["layer"] * dataset.sizes["head"]
        if n_disabled == n_heads:
            heads = f"A random head (mean over all {n_heads})"
        else:
            heads = f"Mean over the {n_disabled} heads disabled"
        lines.append(
            f"{heads}: {facts['mean_difference']:+.4f} {facts['metric']} "
            f"({format_interval(facts['mean_difference_low'], facts['mean_difference_high'])} over "
            f"{facts.get('units', 'examples')}). Better without {facts['improving']} heads "
            f"({facts['improving_significant']} significantly), worse without {facts['harming']} "
            f"({facts['harming_significant']} significantly)."
        )
    if "importance_spearman" in facts:
        lines.append(
            "Harm of disabling and first-order importance: Spearman "
            f"{facts['importance_spearman']:.2f} (p = {facts['importance_spearman_p']:.2g})."
        )
    if "role_correlation" in dataset:
        line = _strongest_roles(dataset)
        if line:
            lines.append(line)
    return lines


def _strongest_roles(dataset: xr.Dataset) -> str:
    """Return the roles that go most with the harm of disabling, "" where none is known."""
    known = dataset[["role_correlation", "role_correlation_p_adjusted"]].dropna("role")
    correlations = known["role_correlation"].values
    p_values = known["role_correlation_p_adjusted"].values
    order = abs(correlations).argsort(kind="stable")[::-1][:STRONGEST_ROLES]
    parts = []
    for number in order:
        role = known["role"].values[number]
        parts.append(f"{role} {correlations[number]:+.2f} (p corrected {p_values[number]:.2g})")
    if not parts:
        return ""
    return "Harm and roles, Spearman over heads: " + ", ".join(parts)
