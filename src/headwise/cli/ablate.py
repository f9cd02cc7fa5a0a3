"""`headwise ablate`: what a model can do without some of its heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli import common, options
from headwise.cli.command import command

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from headwise.experiments.ablation.scored_models import ScoredModel


@dataclass(frozen=True, slots=True)
class Scored:
    """What models are scored on: the dev set of a task, where a task or a dev file is named, else a
    text."""

    tasks: options.TaskOptions
    text: options.TextOptions
    placed: options.ModelOptions
    limit: int | None
    max_length: int
    seed: int

    @property
    def named(self) -> bool:
        """Whether a task or a text is named at all."""
        return bool(self.text.spec()) or self.tasks.named

    def open(self, model: str | Path | None) -> ScoredModel:
        """A fine-tuned model with its dev set, or a language model with its text."""
        from headwise.core.errors import ParameterError
        from headwise.experiments.ablation import ScoredClassifier, ScoredLanguageModel
        from headwise.models.loading import model_path
        from headwise.text import open_corpus
        from headwise.text.tasks import read_task

        if self.tasks.named:
            if self.text.corpus:
                raise ParameterError(
                    "Give either a task (--task, --data, --dev) or a text (--corpus), not both."
                )
            if self.placed.dtype or self.placed.device_map:
                raise ParameterError(
                    "--dtype and --device-map are for a model on a text (--corpus): a fine-tuned model is opened in "
                    "float32, on one device."
                )
            own = self.tasks
            found = read_task(
                own.task, data=own.data, dev=own.dev, needs_train=False, limit=self.limit
            )
            return ScoredClassifier.open(
                model_path(model), found, device=self.placed.device, max_length=self.max_length
            )
        opened = self.placed.open(model)
        text = open_corpus(self.text.spec(), tokenizer=opened.tokenizer, prose=opened.causal)
        return ScoredLanguageModel(
            opened, text, limit=self.limit, max_length=self.max_length, seed=self.seed
        )


def parse_sets(given: list[str] | None) -> dict[str, str]:
    """`NAME=RULE`, or a rule alone, which is then its own name."""
    from headwise.core.errors import ParameterError

    found: dict[str, str] = {}
    for item in given or []:
        name, equals, rule = item.partition("=")
        # `probing.accuracy=MRPC:top12` is a rule with a label, no name.
        named = bool(equals) and ":" not in name and "." not in name
        key, what = (name.strip(), rule) if named else (item, item)
        if not key or key in found:
            raise ParameterError(f"--set {item}: every set needs a name of its own, as NAME=RULE.")
        found[key] = what
    return found


@command("ablate", workers=True)
def ablate_command(
    *,
    model: options.ModelName,
    tasks: options.TaskOptions,
    text: options.TextOptions,
    how: Annotated[
        str,
        typer.Option(
            help="uniform (the paper's), zero, mean (over the input), corpus_mean, resample (its output on another "
            "input); auto: zero for causal models, uniform for others."
        ),
    ] = "auto",
    heads: Annotated[
        str, typer.Option(help="Single heads to disable: all, none, a list (L7H9,L8H1) or a rule.")
    ] = "all",
    layers: Annotated[bool, typer.Option("--layers/--no-layers", help="Whole layers too.")] = True,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Heads disabled together, NAME=RULE: a list, L3, roles:delimiter, frames:top5; may be given again.",
        ),
    ] = None,
    atlas: options.AtlasFile = None,
    importance: Annotated[
        bool,
        typer.Option(
            "--importance/--no-importance", help="First-order importance too (Michel et al. 2019)."
        ),
    ] = True,
    correction: options.Correction = "holm",
    out_file: Annotated[
        Path, typer.Option("--out", help="A NetCDF file with the group `ablation`.")
    ] = Path("ablation.nc"),
    figures: options.Figures = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = 128,
    placed: options.ModelOptions,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Disable every head, every layer, or sets of heads, and score what is left: a task's dev set,
    or the language-model loss.

    [dim]Examples:[/dim]

      headwise ablate mrpc/seed-0/model --task MRPC --data glue --out mrpc-ablation.nc

      headwise ablate ./model --task RTE --dev dev.tsv --atlas atlas --set rest=roles:delimiter

      headwise ablate --corpus stories.txt --limit 200
    """
    from headwise.atlas import Atlas
    from headwise.experiments.ablation import AblationOptions, ablate, provenance
    from headwise.run import Job

    read = common.sources_of(model.name, text.spec(), tasks.data, tasks.dev, atlas)
    with Job.for_file(out_file, overwrite=overwrite, sources=read) as job:
        subject = Scored(tasks, text, placed, limit, max_length, seed).open(model.name)
        chosen = AblationOptions(
            how=how,
            heads=heads,
            layers=layers,
            sets=parse_sets(sets),
            importance=importance,
            correction=correction,
            seed=seed,
        )
        known = common.load_atlas(atlas)
        with common.Watch() as job.progress:
            made = ablate(subject, chosen, atlas=known, folder=job)
        job.write(Atlas({"ablation": made}, provenance(subject, chosen)).to_bytes())
        dataset = Atlas.load(out_file)["ablation"]
        failures = common.draw_figures({"ablation": dataset}, figures, job.begun)
        job.finish()
    if dataset.attrs["note"]:
        common.err.print(dataset.attrs["note"], style="dim")
    common.out.print(summary_table(dataset, str(out_file)))
    for line in summary_lines(dataset):
        common.out.print(line)
    common.end(failures)


def summary_table(dataset: xr.Dataset, title: str) -> Table:
    """The heads whose loss helps or harms most, whole layers and sets."""
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
    shown = Table(*columns, title=f"{title} (disabled as: {dataset.attrs['how']})")
    shown.add_row("nothing", f"{dataset.attrs['baseline']:.4f}", "", "", "", "", "")
    keys = ("score", "difference", "difference_low", "difference_high", "p_value", "p_adjusted")

    def add(name: str, part: str, **where: int) -> None:
        score, change, low, high, p, corrected = (
            float(dataset[f"{part}{key}"].isel(where)) for key in keys
        )
        interval = f"{low:+.4f} … {high:+.4f}"
        sink = (
            f"{float(dataset['sink_share'].isel(where)):.0%}"
            if part == "" and "sink_share" in dataset
            else ""
        )
        shown.add_row(
            name, f"{score:.4f}", f"{change:+.4f}", interval, f"{p:.2g}", f"{corrected:.2g}", sink
        )

    if "difference" in dataset:
        ranked = dataset["difference"].stack(place=("layer", "head")).dropna("place")
        order = [ranked["place"].values[i] for i in ranked.values.argsort(kind="stable")]
        for layer, head in order if len(order) <= 10 else [*order[:5], *order[-5:]]:
            add(head_name(layer, head), "", layer=layer, head=head)
    for layer in range(dataset.sizes["layer"]) if "layer_score" in dataset else ():
        add(f"layer {layer}", "layer_", layer=layer)
    for place, name in enumerate(labels_of(dataset, "set") if "set" in dataset.dims else ()):
        add(name, "set_", set=place)
    return shown


def summary_lines(dataset: xr.Dataset) -> list[str]:
    """What the run says of all heads together."""
    facts, lines = dataset.attrs, []
    if "mean_difference" in facts:
        count, total = facts["heads_disabled"], dataset.sizes["layer"] * dataset.sizes["head"]
        which = (
            f"A random head (mean over all {total})"
            if count == total
            else f"Mean over the {count} heads disabled"
        )
        lines.append(
            f"{which}: {facts['mean_difference']:+.4f} {facts['metric']} ({facts['mean_difference_low']:+.4f} … "
            f"{facts['mean_difference_high']:+.4f} over examples). Better without {facts['improving']} heads "
            f"({facts['improving_significant']} surely), worse without {facts['harming']} "
            f"({facts['harming_significant']} surely)."
        )
    if "importance_spearman" in facts:
        lines.append(
            "Harm of disabling and first-order importance: Spearman "
            f"{facts['importance_spearman']:.2f} (p = {facts['importance_spearman_p']:.2g})."
        )
    if "role_correlation" in dataset:
        known = dataset[["role_correlation", "role_correlation_p_adjusted"]].dropna("role")
        told = [
            f"{role} {r:+.2f} (p corrected {p:.2g})"
            for role, r, p in zip(
                *(known[name].values for name in ("role", *known.data_vars)), strict=True
            )
        ]
        order = abs(known["role_correlation"]).values.argsort(kind="stable")[::-1][:3]
        if len(order):
            lines.append(
                "Harm and roles, Spearman over heads: " + ", ".join(told[i] for i in order)
            )
    return lines
