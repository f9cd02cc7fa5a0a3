"""`headwise compare`: what changed between models, head by head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import TextOptions
from headwise.core.errors import OutputError
from headwise.core.options import option
from headwise.experiments.comparison.options import ComparisonOptions

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from headwise.atlas import Atlas
    from headwise.experiments.comparison import Comparison
    from headwise.page.sample import Sample
    from headwise.run import Job

SENTENCES = 2  # inputs whose maps the page shows, of every model


@command("compare", workers=True)
def compare_command(
    *,
    models: tuple[str, ...] = option(
        argument=True,
        metavar="MODEL_A MODEL_B [MODEL_C ...]",
        help="Folders or hub names; `demo` for the built-in model.",
    ),
    text: TextOptions,
    options: ComparisonOptions,
    out_file: Path = option(
        Path("change.nc"),
        flag="out",
        help="A NetCDF file with the groups `change`, `change_roles`, …",
    ),
    figures: Path | None = option(None, help="A folder for figures."),
    page: str | None = option(
        None, help="The folder of the page; default: named like --out, `none` for no page."
    ),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Compare two or more models, each with the first: cosine similarity of maps, roles, features,
    surface, probing accuracy. Writes a page (change/index.html): the grid of differences, what
    changed most, the label of each head in every model.

    [dim]Examples:[/dim]

      headwise compare bert-base-uncased ./mrpc-model --corpus dev.tsv

      headwise compare demo last/model top/model --names base,last,top --probing glue/MRPC
    """
    from headwise.atlas import Atlas
    from headwise.core.folders import reject_sources
    from headwise.core.options import part_of
    from headwise.experiments.comparison import Comparison
    from headwise.models.options import ModelOptions
    from headwise.run import Job

    sources = common.sources_of(models, text.spec(), options.probing)
    folder = _page_folder(page, out_file)
    if folder is not None:
        reject_sources(folder, [*sources, out_file.parent])
    with (
        common.Watch() as watch,
        Job.for_file(out_file, overwrite=overwrite, sources=sources, progress=watch) as job,
    ):
        if folder is not None:
            _check_page(folder, job)
        model_options = part_of(options, ModelOptions)
        opened = [model_options.open(None if name == "demo" else name) for name in models]
        comparison = Comparison.open(opened, text.spec(), options)
        result = comparison.run(job)
        job.write(result.to_bytes())
        # What is drawn and printed is what is in the file.
        atlas = Atlas.load(out_file)
        failures = common.draw_figures(atlas, figures, job.started_store)
        if folder is not None:
            from headwise.page.report import write_report
            from headwise.page.sample import read_samples

            samples = read_samples(folder, atlas) or _choose_samples(comparison, atlas)
            report = write_report(
                atlas, folder, samples, watch, store=job.started_store, overwrite=job.may_replace
            )
            failures += report.failures
        job.finish()
    common.out.print(_summary_table(atlas["change"], out_file))
    for group, dataset in atlas.items():
        if group != "change":
            for line in _significant_changes(dataset, group.removeprefix("change_")):
                common.out.print(line)
    if folder is not None:
        common.out.print(f"Page: {folder / 'index.html'}", soft_wrap=True)
    common.exit_if_failed(failures)


def _page_folder(page: str | None, out_file: Path) -> Path | None:
    """Return the folder of the page, None for no page."""
    if page == "none":
        return None
    if page:
        return Path(page)
    if out_file.suffix:
        return out_file.with_suffix("")
    return out_file.with_name(f"{out_file.name}-page")


def _check_page(folder: Path, job: Job) -> None:
    """Reject a page that exists, unless it may be replaced or an interrupted job resumes."""
    index = folder / "index.html"
    if index.exists() and not (job.may_replace or job.output.unfinished):
        raise OutputError(
            f"{index} exists; replace it, or name another folder with --page.", option="overwrite"
        )


def _choose_samples(comparison: Comparison, atlas: Atlas) -> list[Sample]:
    """Return the maps of every model on the same few inputs, one input after the other."""
    from headwise.page.compared import models_of
    from headwise.page.sample import choose_samples

    samples_by_model = []
    for name, model in zip(models_of(atlas), comparison.models, strict=True):
        samples = choose_samples(model, comparison.corpus, SENTENCES)
        samples_by_model.append([replace(sample, model=name) for sample in samples])
    ordered: list[Sample] = []
    for samples_of_input in zip(*samples_by_model, strict=True):
        ordered += samples_of_input
    return ordered


def _summary_table(change: xr.Dataset, path: Path) -> Table:
    """Return the similarity of maps of each model to the first."""
    from rich.table import Table

    from headwise.core.labels import head_name

    title = f"Maps against {change.attrs['reference_model']} ({path})"
    columns = ("model", "mean cosine", "initial", "middle", "final", "least alike")
    table = Table(*columns, title=title)
    for name in change["model"].values:
        model = change.sel(model=name)
        values = model["cosine_to"].transpose("layer", "head").values
        least_alike = head_name(*divmod(int(values.argmin()), values.shape[1]))
        thirds = [f"{float(value):.3f}" for value in model["cosine_third"].values]
        table.add_row(
            str(name), f"{values.mean():.3f}", *thirds, f"{least_alike} ({values.min():.3f})"
        )
    return table


def _significant_changes(dataset: xr.Dataset, group: str) -> list[str]:
    """Return a line for each variable and model: how many heads changed significantly."""
    from headwise.core.labels import SIGNIFICANCE_LEVEL

    lines = []
    for key, p_values in dataset.data_vars.items():
        name, suffix, rest = str(key).partition("_change_p_adjusted")
        if not suffix or rest or name.endswith("_third"):
            continue
        by_model = {"": p_values}
        if "model" in p_values.dims:
            by_model = {
                f" of {model}": p_values.sel(model=model) for model in p_values["model"].values
            }
        for of_model, p in by_model.items():
            n_known = int(p.notnull().sum())
            n_significant = int((p < SIGNIFICANCE_LEVEL).sum())
            if n_known:  # none where these models do not have what is measured
                lines.append(
                    f"{group}{of_model}: {name} changed in {n_significant} of {n_known} values "
                    f"(corrected p < {SIGNIFICANCE_LEVEL})"
                )
    return lines
