"""`headwise compare`: what changed between models, head by head, or by label and relative depth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
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
    from headwise.core.failures import Failure
    from headwise.core.store import CheckpointStore
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
        help="Folders or hub names; `demo` for the built-in model; by depth also atlases (a file, or "
        "the folder of `headwise atlas`).",
    ),
    text: TextOptions,
    options: ComparisonOptions,
    out_file: Path = option(
        Path("change.nc"),
        flag="out",
        help="A NetCDF file with the groups `change`, `change_roles`, …; by depth `family`, …",
    ),
    figures: Path | None = option(None, help="A folder for figures."),
    page: str | None = option(
        None, help="The folder of the page; default: named like --out, `none` for no page."
    ),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Compare models: head by head, or by label and relative depth.

    Models of one shape are compared with the first of them: similarity of maps, roles, features,
    surface, probing accuracy. 2 to 8 models of different shapes, or atlases, are compared by label
    and relative depth. Writes a page (change/index.html): the grid of differences, what changed
    most, the label of each head in every model.

    [dim]Examples:[/dim]

      headwise compare bert-base-uncased ./mrpc-model --corpus dev.tsv

      headwise compare demo last/model top/model --names base,last,top --probing glue/MRPC

      headwise compare small-atlas medium-atlas ./large-model --out family.nc

      headwise compare seed-1 seed-2 --by depth
    """
    from headwise.core.folders import reject_sources
    from headwise.core.options import part_of
    from headwise.experiments.comparison import Comparison
    from headwise.experiments.family import compares_by_depth, family_in_job
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
        outputs = _Outputs(out_file, figures)
        spec = text.spec()
        if compares_by_depth(models, options.by):
            atlas = outputs.write(family_in_job(job, models, spec, options), job)
            failures = outputs.draw_figures(atlas, job)
            if folder is not None:
                failures += write_family_page(atlas, folder, job.started_store)
        else:
            model_options = part_of(options, ModelOptions)
            opened = [model_options.open(None if name == "demo" else name) for name in models]
            comparison = Comparison.open(opened, spec, options)
            atlas = outputs.write(comparison.run(job), job)
            failures = outputs.draw_figures(atlas, job)
            if folder is not None:
                failures += _write_change_page(comparison, atlas, folder, job)
        job.finish()
    if "family" in atlas:
        _print_family(atlas["family"], out_file)
    else:
        _print_changes(atlas, out_file)
    if folder is not None:
        common.out.print(f"Page: {folder / 'index.html'}", soft_wrap=True)
    common.exit_if_failed(failures)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where a comparison goes: its file and its figures."""

    file: Path
    figures: Path | None

    def write(self, result: Atlas, job: Job) -> Atlas:
        """Write the result and return it as its file has it: that is what is drawn and printed."""
        from headwise.atlas import Atlas

        job.write(result.to_bytes())
        return Atlas.load(self.file)

    def draw_figures(self, atlas: Atlas, job: Job) -> list[Failure]:
        """Draw the figures into their folder, where one is named."""
        return common.draw_figures(atlas, self.figures, job.started_store)


def _write_change_page(
    comparison: Comparison, atlas: Atlas, folder: Path, job: Job
) -> list[Failure]:
    """Write the page of a comparison head by head; return what failed."""
    from headwise.page.report import write_report
    from headwise.page.sample import read_samples

    samples = read_samples(folder, atlas) or _choose_samples(comparison, atlas)
    report = write_report(
        atlas,
        folder,
        samples,
        job.progress,
        store=job.started_store,
        overwrite=job.output.may_replace,
    )
    return list(report.failures)


def write_family_page(atlas: Atlas, folder: Path, store: CheckpointStore) -> list[Failure]:
    """Write the page of a comparison by depth, its figures beside it; return what failed."""
    from headwise.core.files import write_atomically
    from headwise.experiments.family import differences
    from headwise.page.family import render_family

    figures = folder / "figures"
    failures = common.draw_figures({"family": atlas["family"]}, figures, store)
    rows = list(differences(atlas["family"]).itertuples(index=False, name=None))
    write_atomically(folder / "index.html", render_family(atlas, rows, figures).encode())
    return failures


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
    if index.exists() and not (job.output.may_replace or job.output.unfinished):
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


def _print_changes(atlas: Atlas, path: Path) -> None:
    """Print how alike the maps are, and how many heads changed in what."""
    common.out.print(_summary_table(atlas["change"], path))
    for group, dataset in atlas.items():
        if group != "change":
            for line in _significant_changes(dataset, group.removeprefix("change_")):
                common.out.print(line)


def _print_family(family: xr.Dataset, path: Path) -> None:
    """Print how many heads of each model have each label, and which differences are significant."""
    from rich.table import Table

    from headwise.core.labels import SIGNIFICANCE_LEVEL
    from headwise.experiments.family import differences

    names = [str(name) for name in family["model"].values]
    table = Table("label", *names, title=f"Heads with each label ({path})")
    for label in family["label"].values:
        of_label = family.sel(label=label)
        cells = [str(label)]
        for number in range(len(names)):
            cell = of_label.isel(model=number)
            if bool(cell["applies"]):
                count = int(cell["total_count"])
                cells.append(f"{count} ({100 * float(cell['total_share']):.1f} %)")
            else:
                cells.append("–")
        table.add_row(*cells)
    if family.sizes["label"]:
        common.out.print(table)
    else:
        common.out.print("No head of these models has a significant label, so none is matched.")
    for row in differences(family).to_dict("records"):
        if row["share_p"] < SIGNIFICANCE_LEVEL:
            common.out.print(
                f"{row['label']}: {100 * row['share']:.1f} % of the heads of {row['model']}, "
                f"{100 * row['share_other']:.1f} % of {row['other']} (corrected p {row['share_p']:.2g})"
            )
        if row["depth_p"] < SIGNIFICANCE_LEVEL:
            common.out.print(
                f"{row['label']}: at {100 * row['depth']:.0f} % of the depth of {row['model']}, "
                f"{100 * row['depth_other']:.0f} % of {row['other']} (corrected p {row['depth_p']:.2g})"
            )
    for first, second in combinations(range(len(names)), 2):
        pair = family.isel(model=first, other=second)
        common.out.print(f"{names[first]} and {names[second]}: {_pair_text(pair)}")


def _pair_text(pair: xr.Dataset) -> str:
    """Return how many heads of two models are matched, and how near in depth they lie."""
    n_matched = int(pair["matched"])
    if not n_matched:
        return "no head is matched"
    return (
        f"{n_matched} heads matched by label; the same labels lie "
        f"{100 * float(pair['depth_distance']):.0f} % of the depth apart "
        f"({100 * float(pair['depth_distance_random']):.0f} % in random order, corrected p "
        f"{float(pair['depth_distance_p_adjusted']):.2g})"
    )


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
