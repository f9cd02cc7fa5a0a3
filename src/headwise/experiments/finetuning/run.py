"""Fine-tuning from names: a model, a task, a pooling, a start, a recipe and seeds in; records,
models and one results file out."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.core.checks import check_types, one_of
from headwise.core.errors import OutputError, ParameterError
from headwise.core.files import file_digest, sweep, write_atomically
from headwise.core.folders import new_folder, refuse_sources, refuse_unsafe
from headwise.core.labels import head_name
from headwise.core.lock import held
from headwise.core.store import CheckpointStore, delete_checkpoints
from headwise.experiments.finetuning.classifier import ClassifierOptions, TaskModel, make_classifier
from headwise.experiments.finetuning.data import TaskRows, encode_rows
from headwise.experiments.finetuning.rank import Ranking, rank_heads
from headwise.experiments.finetuning.recipes import Recipe, parse_seeds, recipe_named
from headwise.experiments.finetuning.results import ResultsFile, TrainingRecord
from headwise.experiments.finetuning.train import (
    TrainingCheckpoint,
    TrainingOptions,
    TrainingResult,
    train,
)
from headwise.experiments.work import Report, kept_work, random_state_kept, silent, software
from headwise.models import HeadModel, loading
from headwise.text.tasks import Task

log = logging.getLogger(__name__)
MAX_LENGTH = 128
SAVED = ("all", "first", "none")
DROPOUT_SEED = (
    1_000_003  # added to the seed of the weights: the same dropout whatever was drawn for the head
)


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """What is trained, how, and how often.

    Parameters
    ----------
    pooling : str, default "last_layer"
        `last_layer` (the model's own classification class), `best_layer` (`layer`, or the best by a
        probe on the training part) or `top_heads` (`heads`, or the `top` best; as many as a layer
        has by default).
    start : str, default "pretrained"
        `none` (no training: pre-trained encoder, random classifier), `random` (all weights drawn
        from a normal distribution, then trained), `pretrained`, or `frozen` (only the head is
        trained).
    recipe : str or Recipe, default "kovaleva"
        `kovaleva`, `jo`, `pande`, or a `Recipe`.
    epochs, batch_size, learning_rate : optional
        Instead of the recipe's.
    seeds : int or iterable of int, default 5
        How many trainings (with seeds `seed`, `seed` + 1, …), or with which seeds.
    seed : int, default 0
        The first seed; the sample by which heads and layers are ranked is drawn with it too.
    layer : int, optional
        The layer of `best_layer`.
    heads : sequence of (layer, head) or names like `L7H9`, optional
        The heads of `top_heads`.
    top : int, optional
        How many heads `top_heads` takes.
    max_length : int, default 128
        Longer inputs are cut.
    device : str or torch.device, optional
        Where to train; a GPU where there is one.
    half : bool, default False
        bfloat16 where that is safe.
    save_models : str, default "all"
        `all`, `first` (of the first seed) or `none`.
    checkpoints : bool, default True
        Keep each finished epoch until the training is done; without them a killed call starts its
        current training anew.
    """

    pooling: str = "last_layer"
    start: str = "pretrained"
    recipe: str | Recipe = "kovaleva"
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    seeds: int | Iterable[int] = 5
    seed: int = 0
    layer: int | None = None
    heads: Sequence[Any] | None = None
    top: int | None = None
    max_length: int = MAX_LENGTH
    device: str | torch.device | None = None
    half: bool = False
    save_models: str = "all"
    checkpoints: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        ClassifierOptions(self.pooling, self.start)
        one_of("save_models", self.save_models, SAVED)
        for name, owner in (("layer", "best_layer"), ("heads", "top_heads"), ("top", "top_heads")):
            if getattr(self, name) is not None and self.pooling != owner:
                raise ParameterError(
                    f"`{name}` belongs to the pooling {owner}; the pooling is {self.pooling}."
                )
        if self.heads is not None and self.top is not None:
            raise ParameterError("Give either `heads` or `top`, not both.")

    def whole_recipe(self) -> Recipe:
        """The recipe with what is given in its place."""
        rate = self.learning_rate
        sizes = {"epochs": self.epochs, "batch_size": self.batch_size}
        return recipe_named(self.recipe).changed(**sizes, learning_rate=rate, frozen_rate=rate)


def finetune(
    model: str | Path | None,
    task: Task,
    out: str | Path,
    options: FinetuneOptions = FinetuneOptions(),  # noqa: B008  (frozen)
    *,
    overwrite: bool = False,
    report: Report = silent,
) -> list[TrainingRecord]:
    """Fine-tune a model on a task, once for each seed.

    Parameters
    ----------
    model : str or Path, optional
        A folder or hub name; None for the built-in demo model.
    task : Task
        What `read_task` gives: `read_task("MRPC", data="glue")`.
    out : str or Path
        A folder: `results.json`, and for each training its predictions and its model, an ordinary
        folder that `headwise atlas` opens. A call that was killed goes on where it stopped; what is
        finished is not done again.
    options : FinetuneOptions, optional
        What is trained, how, and how often.
    overwrite : bool, default False
        Replace results of other trainings there, instead of refusing.
    report : callable, optional
        Told how far it is.

    Returns
    -------
    list of TrainingRecord
        One for each seed, in order.
    """
    seeds = parse_seeds(options.seeds, options.seed)
    source, place = loading.model_path(model), Path(out)
    refuse_sources(place, [Path(source)] if Path(source).exists() else [])
    with held(
        place / ".finetuning", place
    ):  # its results file is read, added to and written by one at a time
        sweep(place)
        job = _Job(source, task, place, options, overwrite, report)
        return [job.run(seed, first=seed == seeds[0]) for seed in seeds]


def model_key(folder: str) -> str:
    """What tells a model's files from others: a digest of its weights and config, or its name on
    the hub."""
    path = Path(folder)
    if not path.is_dir():
        return folder
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.suffix in (".safetensors", ".bin") or file.name == "config.json":
            digest.update(file.name.encode() + bytes.fromhex(file_digest(file)))
    return digest.hexdigest()


class _Job:
    """Trainings that differ in their seed only."""

    def __init__(
        self,
        source: str,
        task: Task,
        out: Path,
        options: FinetuneOptions,
        overwrite: bool,
        report: Report,
    ) -> None:
        self.source, self.task, self.out, self.options = source, task, out, options
        self.overwrite, self.report = overwrite, report
        self.recipe = options.whole_recipe()
        self.device = loading.as_device(options.device)
        self.results = ResultsFile(out)
        self.tokenizer = loading.load_tokenizer(source)
        longest = getattr(self.tokenizer, "model_max_length", options.max_length)
        self.max_length = int(min(options.max_length, longest))
        self.key = {
            "model": model_key(source),
            "data": task.fingerprint(),
            "max_length": self.max_length,
        }
        self.group = (task.name, options.pooling, options.start, self.recipe.name)
        self.detail = self._choose()
        about = {
            "task": task.name,
            "pooling": options.pooling,
            "start": options.start,
            "half": options.half,
        }
        self.identity = {**self.key, **about, "recipe": asdict(self.recipe), "detail": self.detail}

    def _choose(self) -> dict[str, Any]:
        """The layer or the heads of the pooling."""
        options = self.options
        if options.pooling == "last_layer":
            return {}
        if options.layer is not None:
            return {"layer": options.layer, "chosen": "given"}
        if options.heads is not None:
            return {
                "heads": [h if isinstance(h, str) else head_name(*h) for h in options.heads],
                "chosen": "given",
            }
        ranking = self._ranking()
        if options.pooling == "best_layer":
            return {"layer": ranking.layer, "chosen": "best by a probe on the training part"}
        config = loading.load_config(self.source).get_text_config()
        top = (
            options.top
            if options.top is not None
            else int(getattr(config, "num_attention_heads", 12))
        )
        return {"heads": ranking.top(top), "chosen": "best by a probe on the training part"}

    def _ranking(self) -> Ranking:
        """Heads and layers from best to worst: made once for a model, a task and a seed, and kept
        for other poolings."""
        seed = self.options.seed

        def make() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
            limited = {"device": self.device, "dtype": torch.float32, "max_length": self.max_length}
            with HeadModel.open(self.source, **limited) as opened:  # type: ignore[arg-type]
                return {}, asdict(
                    rank_heads(opened, self.task, seed=seed, store=vectors, report=self.report)
                )

        with CheckpointStore(
            self.out / f".ranking-{self.task.name}", {**self.key, "seed": seed}, fresh=True
        ) as store:
            vectors = store.part("vectors")
            ranking = Ranking(**store.checkpoint("ranking", make).facts)
            vectors.remove()
            return ranking

    @cached_property
    def rows(self) -> dict[str, TaskRows]:
        """Both parts of the task, encoded once."""
        return {
            part: encode_rows(
                examples, self.task.targets(examples), self.tokenizer, self.max_length
            )
            for part, examples in (("train", self.task.train), ("dev", self.task.dev))
        }

    def run(self, seed: int, first: bool) -> TrainingRecord:
        """One training, or the record of it where it was done before."""
        identity = {**self.identity, "seed": seed}
        folder = self.out / "-".join(self.group).lower().replace("_", "-") / f"seed-{seed}"
        work = folder / ".training"
        before = self.results.find(self.group, seed)
        if before is not None and not self.overwrite:
            self._check_same(before, identity)
            delete_checkpoints(work)  # a kill may have come between the record and this
            return before
        saved = self.options.save_models == "all" or (self.options.save_models == "first" and first)
        if saved:
            refuse_unsafe(
                folder / "model", overwrite=True
            )  # what headwise did not write, it does not replace
        sweep(folder)
        began = time.perf_counter()
        with (
            kept_work(work, identity, overwrite=self.overwrite) as store,
            random_state_kept(self.device) as seed_torch,
        ):
            seed_torch(seed)
            model = make_classifier(
                self.source, self.tokenizer, self.task, self._head(), self.device
            )
            seed_torch(seed + DROPOUT_SEED)
            trained = self._train(model, seed, TrainingCheckpoint(store))
            self._write_predictions(folder, trained)
            if saved:
                with new_folder(folder / "model", overwrite=True) as beside:
                    model.save(beside, self.tokenizer)
        seconds = time.perf_counter() - began
        log.info("%s, seed %d: trained in %.1f s", " / ".join(self.group), seed, seconds)
        where = str(folder.relative_to(self.out))
        about = {**software(), **identity}
        record = TrainingRecord(
            *self.group, seed, trained.metrics, trained.history, about, self.detail, where
        )
        self.results.add(record)
        delete_checkpoints(work)
        return record

    def _check_same(self, before: TrainingRecord, identity: dict[str, Any]) -> None:
        changed = sorted(key for key in identity if before.identity.get(key) != identity[key])
        if changed:
            kind = " (a checkpoint of another model)" if "model" in changed else ""
            raise OutputError(
                f"{self.results.path} holds a result of {' / '.join(self.group)}, seed {identity['seed']}, that "
                "differs in "
                f"{', '.join(changed)}{kind}; give --overwrite to replace it, or choose another folder with --out."
            )

    def _head(self) -> ClassifierOptions:
        layer, heads = self.detail.get("layer"), self.detail.get("heads")
        read = (self.options.pooling, self.options.start, layer, heads)
        return ClassifierOptions(*read, self.recipe.dropout, self.recipe.new_pooler)

    def _train(self, model: TaskModel, seed: int, checkpoint: TrainingCheckpoint) -> TrainingResult:
        options, untrained = self.options, self.options.start == "none"
        how = TrainingOptions(
            self.recipe, seed, 0 if untrained else None, options.start == "frozen", options.half
        )
        kept = checkpoint if options.checkpoints and not untrained else None
        return train(model, self.task, self.rows, how, checkpoint=kept, report=self.report)

    def _write_predictions(self, folder: Path, trained: TrainingResult) -> None:
        """`predictions.tsv`: the dev examples in their order, with what is so and what the model
        said (for paired tests between trainings)."""
        names = self.task.classes
        lines = ["index\ttruth\tpredicted"]
        said = zip(self.rows["dev"].targets.tolist(), trained.predicted.tolist(), strict=True)
        for i, (true, predicted) in enumerate(said):
            lines.append(
                f"{i}\t{names[true]}\t{names[predicted]}"
                if names
                else f"{i}\t{true:.6g}\t{predicted:.6g}"
            )
        write_atomically(folder / "predictions.tsv", ("\n".join(lines) + "\n").encode())
