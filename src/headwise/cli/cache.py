"""`headwise cache`: which key/value heads need the whole context."""

from __future__ import annotations

from pathlib import Path

from headwise.cli import common
from headwise.cli.command import command
from headwise.cli.options import ModelName
from headwise.core.options import option
from headwise.experiments.cache.options import CacheOptions


@command("cache", workers=True)
def cache_command(
    *,
    model: ModelName,
    corpus: str | None = option(
        None, help="Long texts; texts that are too short are joined. Default: the built-in text."
    ),
    options: CacheOptions,
    out_file: Path = option(
        Path("cache.nc"), flag="out", help="A NetCDF file with the group `cache`."
    ),
    pattern: Path | None = option(
        None,
        help="Write the recommended pattern here too: a .json for HeadwiseCache, a .tsv, or a folder "
        "(a name without ending) as loaders of DuoAttention's patterns read it.",
    ),
    figures: Path | None = option(None, help="A folder for figures."),
    overwrite: bool = option(False, help="Replace existing results."),
) -> None:
    """Find out which key/value heads need the whole context.

    Chooses the heads that stay whole, and measures on other texts what a cache costs in which the
    others keep only the first and the last tokens.

    [dim]Examples:[/dim]

      headwise cache HuggingFaceTB/SmolLM2-135M --corpus articles.jsonl --pattern pattern.json

      headwise cache MODEL --corpus articles.jsonl --length 8192 --window 512 --at-most 0.02

    The pattern is used as model.generate(..., past_key_values=HeadwiseCache("pattern.json"))."""
    from headwise.atlas import Atlas
    from headwise.experiments.cache import cache_in_job, pattern_of
    from headwise.experiments.cache.result import describe_recommendation
    from headwise.models.kv_cache import pattern_files
    from headwise.run import Job

    sources = common.sources_of(model.name, corpus)
    pattern_paths = [] if pattern is None else pattern_files(pattern)
    files = [out_file, *pattern_paths]
    with (
        common.Watch() as watch,
        Job.for_file(
            out_file, files=files, overwrite=overwrite, sources=sources, progress=watch
        ) as job,
    ):
        result = cache_in_job(job, model.name, corpus, options)
        job.write(result.to_bytes(), out_file)
        # What is drawn and printed is what is in the file.
        dataset = Atlas.load(out_file)["cache"]
        if pattern is not None:
            for path, content in pattern_of(dataset).to_files(pattern).items():
                job.write(content, path)
        failures = common.draw_figures({"cache": dataset}, figures, job.started_store)
        job.finish()
    for line in describe_recommendation(dataset):
        common.out.print(line)
    common.out.print(f"{out_file}" if pattern is None else f"{out_file}, {pattern}", style="dim")
    common.exit_if_failed(failures)
