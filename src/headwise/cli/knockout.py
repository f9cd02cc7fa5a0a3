"""`headwise knockout`: what is lost when some tokens can no longer attend to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName
from headwise.core.options import option
from headwise.experiments.knockout.options import KnockoutOptions

if TYPE_CHECKING:
    import xarray as xr


@command("knockout", workers=True)
def knockout_command(
    *,
    model: ModelName,
    texts: str = option(
        "capitals",
        help="A .jsonl with text (spans marked [[...]]) and answer in each row, or the built-in "
        "set: capitals.",
    ),
    options: KnockoutOptions,
    out_file: Path = option(
        Path("knockout.nc"), flag="out", help="A NetCDF file with the group `knockout`."
    ),
    figures: Path | None = option(None, help="A folder for figures."),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Find the layers that read a span of the text.

    Cuts the attention to the marked span in a window of layers, and measures what the answer loses.

    [dim]Examples:[/dim]

      headwise knockout HuggingFaceTB/SmolLM2-135M --figures figures

      headwise knockout gpt2 --texts mine.jsonl --window 3 --rows after

    A row of the file: {"text": "The capital of [[France]] is", "answer": " Paris"}. Rows with the same
    "unit" count as one observation."""
    from headwise.experiments.knockout import knockout_in_job
    from headwise.experiments.knockout.run import BUILTIN_TEXTS
    from headwise.run import Job

    sources = common.sources_of(model.name, None if texts == BUILTIN_TEXTS else texts)
    with (
        common.Watch() as watch,
        Job.for_file(out_file, overwrite=overwrite, sources=sources, progress=watch) as job,
    ):
        result = knockout_in_job(job, model.name, texts, options)
        dataset, failures = common.write_and_draw(job, result, "knockout", out_file, figures)
    _print_summary(dataset, out_file)
    common.exit_if_failed(failures)


def _print_summary(dataset: xr.Dataset, path: Path) -> None:
    facts = dataset.attrs
    common.out.print(
        f"{facts['texts']} of {facts['all_texts']} texts have an answer that the model predicts "
        f"(mean probability {facts['probability']:.2f}); windows of {facts['window']} layers; {path}"
    )
    if facts["note"]:
        common.out.print(facts["note"])
    if not facts["texts"]:
        return
    for span in dataset["span"].values:
        rows = dataset.sel(span=span, renormalised=False)
        if rows["change"].isnull().all():
            continue
        layer = int(rows["change"].argmin("layer"))
        lowest = rows.isel(layer=layer)
        line = (
            f"Cut from the {span} tokens, the answer loses most around layer {layer}: "
            f"{100 * float(lowest['change']):+.0f} % ({100 * float(lowest['change_low']):+.0f} … "
            f"{100 * float(lowest['change_high']):+.0f} %)"
        )
        p = float(lowest["change_p_adjusted"])
        if p == p:
            line += f", p {p:.2g}"
        common.out.print(line)
