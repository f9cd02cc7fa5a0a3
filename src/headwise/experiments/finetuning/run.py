"""Fine-tune a model on a task: records, models and one results file."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.atlas import Atlas
from headwise.core.errors import OutputError, ParameterError
from headwise.core.files import file_digest, sweep, write_atomically
from headwise.core.folders import check_writable, new_folder, reject_sources, reject_unsafe
from headwise.core.interrupts import keeping_work
from headwise.core.labels import head_name
from headwise.core.lock import hold_lock
from headwise.core.options import recorded_options, takes_options
from headwise.core.store import CheckpointStore, delete_checkpoints
from headwise.experiments.finetuning.classifier import ClassifierOptions, TaskModel, make_classifier
from headwise.experiments.finetuning.data import TaskRows, encode_rows
from headwise.experiments.finetuning.options import FinetuneOptions
from headwise.experiments.finetuning.rank import HeadRanking, rank_heads
from headwise.experiments.finetuning.recipes import Recipe, parse_seeds, recipe_named
from headwise.experiments.finetuning.results import ResultsFile, TrainingRecord
from headwise.experiments.finetuning.train import (
    TrainingCheckpoint,
    TrainingOptions,
    TrainingResult,
    train,
)
from headwise.models import HeadModel, loading
from headwise.run.job import Job, Progress, no_progress, software_versions
from headwise.text.tasks import Task, read_task

log = logging.getLogger(__name__)
# Added to the seed of the weights: the same dropout whatever was drawn for the head.
DROPOUT_SEED = 1_000_003
BY_PROBE = "best by a probe on the training part"


@takes_options(FinetuneOptions)
def finetune(
    model: str | Path | None,
    task: Task | str | Sequence[Task | str] | None,
    out: str | Path = "finetuned",
    *,
    overwrite: bool = False,
    progress: Progress = no_progress,
    options: FinetuneOptions,
) -> list[TrainingRecord]:
    """Fine-tune a model on a task or several, once for each seed.

    Parameters
    ----------
    model : str or Path, optional
        A folder or hub name; None for the built-in model.
    task : Task, str, or a sequence of them
        A task that is open (`read_task`), or the name of one whose files the options `data`, or
        `train` and `dev`, name: `finetune(None, "MRPC", "mrpc", data="glue")`. None for the only
        one that `data` or `dev` holds.
    out : str or Path, default "finetuned"
        A folder: `results.json`, and for each training its predictions and its model, an ordinary
        folder that `headwise atlas` opens. An interrupted call resumes: repeat it.
    overwrite : bool, default False
        Replace results of other trainings there.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    options : FinetuneOptions
        Each option is also a keyword.

    Returns
    -------
    list of TrainingRecord
        One for each task and seed, in order.
    """
    seeds = parse_seeds(options.seeds, options.seed)
    source = loading.model_path(model)
    folder = Path(out)
    check_writable(folder)
    reject_sources(folder, [Path(source)] if Path(source).exists() else [])
    names: Sequence[Task | str | None]
    names = [task] if isinstance(task, Task | str) or task is None else list(task)
    if len(names) > 1 and (options.train or options.dev):
        raise ParameterError(
            "`train` and `dev` belong to one task; name the folder of several as `data`.",
            option="data",
        )
    records = []
    for name in names:
        opened = _open_task(name, options)
        task_options = options
        if options.probing is not None:
            task_options = _with_probed_heads(options, opened.name)
        # The results file is read, added to and written by one process at a time. Interrupted between
        # two trainings, too, the call resumes: what is finished stands in that file.
        with hold_lock(folder / ".finetuning", folder), keeping_work(opened):
            sweep(folder)
            finetuning = TaskFinetuning(source, opened, folder, task_options, overwrite, progress)
            for seed in seeds:
                records.append(finetuning.run(seed, first=seed == seeds[0]))
    return records


def _open_task(task: Task | str | None, options: FinetuneOptions) -> Task:
    if isinstance(task, Task):
        return task
    name = task
    if name is None:
        name = Path(options.data).name if options.data else "task"
    return read_task(
        name, data=options.data, train=options.train, dev=options.dev, limit=options.limit
    )


def _with_probed_heads(options: FinetuneOptions, task: str) -> FinetuneOptions:
    """Return the options with the best layer, or the best heads, of a probing result.

    A layer or heads that are named in the options stay."""
    path = options.probing
    assert path is not None
    atlas = Atlas.load(path)
    if "probing" not in atlas:
        raise ParameterError(f"{path} holds no probing result; run `headwise probe` first.")
    probing = atlas["probing"]
    known_tasks = [str(name) for name in probing["task"].values]
    if task not in known_tasks:
        raise ParameterError(
            f"The probing result has no task '{task}'; it has {', '.join(known_tasks)}."
        )
    of_task = probing.sel(task=task)
    if options.pooling == "best_layer" and options.layer is None:
        name = "layer_validation" if "layer_validation" in of_task else "layer_accuracy"
        return replace(options, layer=int(of_task[name].argmax("layer")))
    if options.pooling == "top_heads" and options.heads is None:
        layers = of_task["top_layer"].values
        numbers = of_task["top_head"].values
        n_ranked = int((layers >= 0).sum())
        count = options.top or int(probing.attrs.get("top", n_ranked))
        if count > n_ranked:
            raise ParameterError(
                f"`top` must be at most {n_ranked}, the heads this result has ranked; it is "
                f"{count}."
            )
        heads = []
        for layer, head in zip(layers[:count].tolist(), numbers[:count].tolist(), strict=True):
            heads.append(head_name(layer, head))
        return replace(options, heads=heads, top=None)
    return options


def whole_recipe(options: FinetuneOptions) -> Recipe:
    """Return the recipe with the options that replace parts of it."""
    return recipe_named(options.recipe).changed(
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        frozen_rate=options.learning_rate,
    )


@contextmanager
def _random_state_restored(device: torch.device) -> Iterator[Callable[[int], object]]:
    """Yield the function that seeds torch for work on a device; restore torch's random state
    afterwards."""
    if device.type == "cuda":
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield torch.manual_seed
    else:
        with torch.random.fork_rng([]):
            yield torch.default_generator.manual_seed


def model_key(folder: str) -> str:
    """Return what identifies a model's files: a digest of its weights and config, or its name on
    the hub."""
    path = Path(folder)
    if not path.is_dir():
        return folder
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.suffix in (".safetensors", ".bin") or file.name == "config.json":
            digest.update(file.name.encode() + bytes.fromhex(file_digest(file)))
    return digest.hexdigest()


class TaskFinetuning:
    """Trainings of one model on one task that differ only in their seed."""

    def __init__(
        self,
        source: str,
        task: Task,
        out: Path,
        options: FinetuneOptions,
        overwrite: bool,
        progress: Progress,
    ) -> None:
        self.source = source
        self.task = task
        self.out = out
        self.options = options
        self.overwrite = overwrite
        self.progress = progress
        self.recipe = whole_recipe(options)
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
        self.detail = self._choose_layer_or_heads()
        self.identity = {
            **self.key,
            "task": task.name,
            **recorded_options(options),
            "recipe": asdict(self.recipe),
            "detail": self.detail,
        }

    def _choose_layer_or_heads(self) -> dict[str, Any]:
        """Return the layer or the heads of the pooling, and how they were chosen."""
        options = self.options
        if options.pooling == "last_layer":
            return {}
        if options.layer is not None:
            return {"layer": options.layer, "chosen": "given"}
        if options.heads is not None:
            names = []
            for head in options.heads:
                names.append(head if isinstance(head, str) else head_name(*head))
            return {"heads": names, "chosen": "given"}
        ranking = self._rank_heads()
        if options.pooling == "best_layer":
            return {"layer": ranking.layer, "chosen": BY_PROBE}
        count = options.top
        if count is None:
            config = loading.load_config(self.source).get_text_config()
            count = int(getattr(config, "num_attention_heads", 12))
        return {"heads": ranking.top(count), "chosen": BY_PROBE}

    def _rank_heads(self) -> HeadRanking:
        """Return heads and layers from best to worst, computed once for a model, a task and a seed,
        and kept for other poolings."""
        seed = self.options.seed
        folder = self.out / f".ranking-{self.task.name}"
        with CheckpointStore(folder, {**self.key, "seed": seed}, fresh=True) as store:
            vectors = store.part("vectors")

            def rank() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
                with HeadModel.open(
                    self.source,
                    device=self.device,
                    dtype=torch.float32,
                    max_length=self.max_length,
                ) as opened:
                    ranking = rank_heads(
                        opened, self.task, seed=seed, store=vectors, report=self.progress
                    )
                return {}, asdict(ranking)

            ranking = HeadRanking(**store.checkpoint("ranking", rank).facts)
            vectors.remove()
            return ranking

    @cached_property
    def rows(self) -> dict[str, TaskRows]:
        """Both parts of the task, encoded once."""
        rows = {}
        for part, examples in (("train", self.task.train), ("dev", self.task.dev)):
            targets = self.task.targets(examples)
            rows[part] = encode_rows(examples, targets, self.tokenizer, self.max_length)
        return rows

    def run(self, seed: int, first: bool) -> TrainingRecord:
        """Train once, or return the record of a training that was finished before."""
        identity = {**self.identity, "seed": seed}
        folder = self.out / "-".join(self.group).lower().replace("_", "-") / f"seed-{seed}"
        work = folder / ".training"
        earlier = self.results.find(self.group, seed)
        if earlier is not None and not self.overwrite:
            self._check_same(earlier, identity)
            delete_checkpoints(work)  # an interruption may have come between the record and this
            return earlier
        save_models = self.options.save_models
        saves_model = save_models == "all" or (save_models == "first" and first)
        if saves_model:
            # What headwise did not write, it does not replace.
            reject_unsafe(folder / "model", overwrite=True)
        sweep(folder)
        began = time.perf_counter()
        with (
            Job.in_folder(work, overwrite=self.overwrite, progress=self.progress) as job,
            _random_state_restored(self.device) as seed_torch,
        ):
            store = job.begin(identity)
            seed_torch(seed)
            model = make_classifier(
                self.source, self.tokenizer, self.task, self._classifier_options(), self.device
            )
            seed_torch(seed + DROPOUT_SEED)
            result = self._train(model, seed, TrainingCheckpoint(store))
            self._write_predictions(folder, result)
            if saves_model:
                with new_folder(folder / "model", overwrite=True) as beside:
                    model.save(beside, self.tokenizer)
        # Times go to the log: the results file of the same training has the same bytes.
        seconds = time.perf_counter() - began
        log.info("%s, seed %d: trained in %.1f s", " / ".join(self.group), seed, seconds)
        record = TrainingRecord(
            *self.group,
            seed=seed,
            metrics=result.metrics,
            history=result.history,
            identity={**software_versions(), **identity},
            detail=self.detail,
            folder=str(folder.relative_to(self.out)),
        )
        self.results.add(record)
        delete_checkpoints(work)
        return record

    def _check_same(self, earlier: TrainingRecord, identity: dict[str, Any]) -> None:
        """Raise where the results file holds another training under the same name."""
        changed = sorted(key for key in identity if earlier.identity.get(key) != identity[key])
        if changed:
            hint = " (a checkpoint of another model)" if "model" in changed else ""
            raise OutputError(
                f"{self.results.path} holds a result of {' / '.join(self.group)}, seed "
                f"{identity['seed']}, that differs in {', '.join(changed)}{hint}; pass "
                "overwrite=True to replace it, or choose another folder.",
                option="overwrite",
            )

    def _classifier_options(self) -> ClassifierOptions:
        return ClassifierOptions(
            pooling=self.options.pooling,
            start=self.options.start,
            layer=self.detail.get("layer"),
            heads=self.detail.get("heads"),
            dropout=self.recipe.dropout,
            new_pooler=self.recipe.new_pooler,
        )

    def _train(self, model: TaskModel, seed: int, checkpoint: TrainingCheckpoint) -> TrainingResult:
        untrained = self.options.start == "none"
        options = TrainingOptions(
            recipe=self.recipe,
            seed=seed,
            epochs=0 if untrained else None,
            frozen=self.options.start == "frozen",
            half=self.options.half,
        )
        keeps_epochs = self.options.checkpoints and not untrained
        return train(
            model,
            self.task,
            self.rows,
            options,
            checkpoint=checkpoint if keeps_epochs else None,
            report=self.progress,
        )

    def _write_predictions(self, folder: Path, result: TrainingResult) -> None:
        """Write `predictions.tsv`: the dev examples in their order, with the true and the predicted
        label (for paired tests between trainings)."""
        labels = self.task.classes
        lines = ["index\ttruth\tpredicted"]
        targets = self.rows["dev"].targets.tolist()
        for index, (target, predicted) in enumerate(
            zip(targets, result.predicted.tolist(), strict=True)
        ):
            if labels:
                lines.append(f"{index}\t{labels[target]}\t{labels[predicted]}")
            else:
                lines.append(f"{index}\t{target:.6g}\t{predicted:.6g}")
        write_atomically(folder / "predictions.tsv", ("\n".join(lines) + "\n").encode())
