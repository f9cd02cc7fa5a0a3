"""`headwise compare`: what changed between models, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command

if TYPE_CHECKING:
    import xarray as xr

    from headwise.atlas import Atlas
    from headwise.models import HeadModel
    from headwise.page.sample import Sample
    from headwise.text import Corpus

SENTENCES = 2  # inputs whose maps the page shows, of every model


@command("compare", workers=True)
def compare_command(
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL_A MODEL_B [MODEL_C ...]",
            help="Folders or hub names; `demo` for the built-in model.",
        ),
    ],
    text: options.TextOptions,
    analyses: Annotated[
        str,
        typer.Option(
            help="What is compared beside the maps, with commas between; `none` for nothing."
        ),
    ] = "surface,roles,features",
    probing: Annotated[
        str | None,
        typer.Option(
            help="Tasks to probe all models for: SentEval files, GLUE folders, labelled corpora."
        ),
    ] = None,
    probing_limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use at most this many examples of each part of a probing task."),
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="What the models are called, with commas between.")
    ] = None,
    out_file: Annotated[
        Path,
        typer.Option("--out", help="A NetCDF file with the groups `change`, `change_roles`, …"),
    ] = Path("change.nc"),
    figures: options.Figures = None,
    page: Annotated[
        str | None,
        typer.Option(
            help="The folder of the page; by default named like --out, `none` for no page."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Use at most this many examples.")] = 1000,
    correction: options.Correction = "holm",
    parser: options.Parser = None,
    placed: options.ModelOptions,
    reading: options.As = "paper",
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Compare two or more models, each with the first: cosine similarity of maps, roles, features,
    surface, probing accuracy. Ends in a page (change/index.html): the grid of differences, what
    changed most, what each head does in every model.

    [dim]Examples:[/dim]

      headwise compare bert-base-uncased ./mrpc-model --corpus dev.tsv

      headwise compare demo last/model top/model --names base,last,top --probing glue/MRPC
    """
    from rich.table import Table

    from headwise.atlas import Atlas
    from headwise.core.errors import OutputError
    from headwise.core.folders import refuse_sources
    from headwise.core.labels import head_name
    from headwise.experiments.comparison import ComparisonOptions, compare
    from headwise.page.report import write_report
    from headwise.page.sample import read_samples
    from headwise.run import Job, Source, SourceOptions

    chosen = [] if analyses.strip() == "none" else options.names_in(analyses)
    read = common.sources_of(models, text.spec(), probing)
    beside = (
        out_file.with_suffix("") if out_file.suffix else out_file.with_name(f"{out_file.name}-page")
    )
    folder = None if page == "none" else Path(page) if page else beside
    if folder is not None:
        refuse_sources(folder, [*read, out_file.parent])
    with Job.for_file(out_file, overwrite=overwrite, sources=read) as job:
        if (
            folder is not None
            and (folder / "index.html").exists()
            and not (job.may_replace or job.output.unfinished)
        ):
            raise OutputError(
                f"{folder / 'index.html'} exists; give --overwrite to replace it, or another folder with --page."
            )
        opened = [placed.open(None if name == "demo" else name) for name in models]
        first = opened[0]
        source = Source(first, text.spec(), SourceOptions(parser=parser))
        given = source.open_corpus(first, limit, seed)
        wanted = ComparisonOptions(
            analyses=chosen,
            names=options.names_in(names) or None,
            probing=probing,
            probing_limits=(probing_limit, probing_limit, probing_limit),
            limit=limit,
            correction=correction,
            seed=seed,
            reading=reading,
        )
        with common.Watch() as job.progress:
            made = compare(opened, given, wanted, folder=job)
        job.write(made.to_bytes())
        atlas = Atlas.load(out_file)
        with common.Watch() as watch:  # what is drawn has checkpoints too
            failures = common.draw_figures(atlas, figures, job.begun)
            if folder is not None:
                samples = read_samples(folder, atlas) or _samples(opened, given, atlas)
                drawn = write_report(
                    atlas, folder, samples, watch, store=job.begun, overwrite=job.may_replace
                )
                failures += drawn.failures
        job.finish()
    change = atlas["change"]
    title = f"Maps against {change.attrs['reference_model']} ({out_file})"
    shown = Table("model", "mean cosine", "initial", "middle", "final", "least alike", title=title)
    for model in change["model"].values:
        own = change.sel(model=model)
        values = own["cosine_to"].transpose("layer", "head").values
        least = head_name(*divmod(int(values.argmin()), values.shape[1]))
        thirds = [f"{float(value):.3f}" for value in own["cosine_third"].values]
        shown.add_row(str(model), f"{values.mean():.3f}", *thirds, f"{least} ({values.min():.3f})")
    common.out.print(shown)
    for group, dataset in atlas.items():
        for line in (
            _surely_changed(dataset, group.removeprefix("change_")) if group != "change" else ()
        ):
            common.out.print(line)
    if folder is not None:
        common.out.print(f"Page: {folder / 'index.html'}", soft_wrap=True)
    common.end(failures)


def _samples(models: Sequence[HeadModel], corpus: Corpus, atlas: Atlas) -> list[Sample]:
    """The maps of every model on the same few inputs, one input after the other."""
    from headwise.page.compared import models_of
    from headwise.page.sample import choose_samples

    found = [
        [replace(sample, model=name) for sample in choose_samples(model, corpus, SENTENCES)]
        for name, model in zip(models_of(atlas), models, strict=True)
    ]
    return [sample for same in zip(*found, strict=True) for sample in same]


def _surely_changed(dataset: xr.Dataset, what: str) -> list[str]:
    """For each variable and model: how many heads changed surely."""
    lines = []
    for key, p in dataset.data_vars.items():
        name, suffix, rest = str(key).partition("_change_p_adjusted")
        if suffix and not rest and not name.endswith("_third"):
            for model in p["model"].values if "model" in p.dims else [None]:
                own, of = (p, "") if model is None else (p.sel(model=model), f" of {model}")
                sure, known = int((own < 0.05).sum()), int(own.notnull().sum())
                if not known:  # of what these models do not have
                    continue
                lines.append(
                    f"{what}{of}: {name} changed in {sure} of {known} values (corrected p < 0.05)"
                )
    return lines
