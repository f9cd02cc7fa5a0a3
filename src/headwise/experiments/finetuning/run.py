"""Fine-tuning from names: a model, a task, a pooling, a start, a recipe and seeds in; records, models and one results file out."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.analyses.contract import one_of
from headwise.core.errors import OutputError, ParameterError
from headwise.experiments.finetuning.classifier import POOLINGS, STARTS, make_classifier
from headwise.experiments.finetuning.data import Rows, encode_rows
from headwise.experiments.finetuning.rank import Ranking, kept_ranking, rank_heads
from headwise.experiments.finetuning.recipes import Recipe, parse_seeds, recipe_named
from headwise.experiments.finetuning.results import Record, Results
from headwise.experiments.finetuning.train import Checkpoint, Report, Trained, train
from headwise.models import HeadModel, opening
from headwise.text.tasks import Task, read_task

MAX_LENGTH = 128
SAVED = ("all", "first", "none")


def finetune(
    model: str | Path | None,
    task: str | Task,
    out: str | Path,
    *,
    data: str | Path | None = None,
    train_file: str | Path | None = None,
    dev_file: str | Path | None = None,
    pooling: str = "last_layer",
    start: str = "pretrained",
    recipe: str | Recipe = "kovaleva",
    seeds: int | Iterable[int] = 5,
    layer: int | None = None,
    heads: Sequence[Any] | None = None,
    top: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int = MAX_LENGTH,
    device: str | torch.device | None = None,
    half: bool = False,
    limit: int | None = None,
    save_models: str = "all",
    checkpoints: bool = True,
    overwrite: bool = False,
    report: Report | None = None,
) -> list[Record]:
    """Fine-tune a model on a task, once for each seed.

    Parameters
    ----------
    model
        A folder or hub name; None for the built-in demo model.
    task, data, train_file, dev_file
        A `Task`, or what `read_task` takes: a name with a folder or with files.
    out
        A folder: `results.json`, and for each training its predictions and its model, an ordinary folder that `headwise atlas` opens. A call that was killed goes on where
        it stopped; what is finished is not done again.
    pooling
        `last_layer` (the model's own classification class), `best_layer` (`layer`, or the best by a probe on the training part) or `top_heads` (`heads`, or the `top` best;
        as many as a layer has by default).
    start
        `none` (no training: pre-trained encoder, random classifier), `random` (all weights drawn from a normal distribution, then trained), `pretrained`, or `frozen`
        (only the head is trained).
    recipe
        `kovaleva`, `jo`, `pande`, or a `Recipe`; `epochs`, `batch_size` and `learning_rate` change it.
    seeds
        How many (0, 1, …), or which.
    half
        bfloat16 where that is safe; off by default.
    save_models
        `all`, `first` (of the first seed) or `none`.
    checkpoints
        Keep each finished epoch until the training is done; without them a killed call starts its current training anew.

    Returns
    -------
    list of Record
        One for each seed, in order.
    """
    one_of("pooling", pooling, POOLINGS)
    one_of("start", start, STARTS)
    one_of("save_models", save_models, SAVED)
    chosen = recipe_named(recipe).changed(
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, frozen_rate=learning_rate
    )
    numbers = parse_seeds(seeds)
    _check_pooling(pooling, layer, heads, top)
    source = _model_path(model)
    found = task if isinstance(task, Task) else read_task(task, data=data, train=train_file, dev=dev_file, limit=limit)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    job = _Job(
        source,
        found,
        Path(out),
        pooling,
        start,
        chosen,
        layer,
        heads,
        top,
        max_length,
        where,
        half,
        save_models,
        overwrite,
        report,
    )
    job.checkpoints = checkpoints
    return [job.run(seed, first=seed == numbers[0]) for seed in numbers]


def _check_pooling(pooling: str, layer: int | None, heads: Sequence[Any] | None, top: int | None) -> None:
    for name, value, owner in (
        ("layer", layer, "best_layer"),
        ("heads", heads, "top_heads"),
        ("top", top, "top_heads"),
    ):
        if value is not None and pooling != owner:
            raise ParameterError(f"`{name}` belongs to the pooling {owner}; the pooling is {pooling}.")
    if heads is not None and top is not None:
        raise ParameterError("Give either `heads` or `top`, not both.")


def _model_path(model: str | Path | None) -> str:
    if model is None:
        from headwise.models.demo import demo_model_path

        return str(demo_model_path())
    return opening.located(model)


def model_key(folder: str) -> str:
    """What tells a model's files from others: a digest of its weights and config, or its name on the hub."""
    path = Path(folder)
    if not path.is_dir():
        return folder
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.suffix in (".safetensors", ".bin") or file.name == "config.json":
            with file.open("rb") as handle:
                digest.update(file.name.encode() + hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


class _Job:
    """Trainings that differ in their seed only."""

    def __init__(
        self,
        source: str,
        task: Task,
        out: Path,
        pooling: str,
        start: str,
        recipe: Recipe,
        layer: int | None,
        heads: Sequence[Any] | None,
        top: int | None,
        max_length: int,
        device: torch.device,
        half: bool,
        save_models: str,
        overwrite: bool,
        report: Report | None,
    ) -> None:
        self.source, self.task, self.out, self.pooling, self.start, self.recipe = (
            source,
            task,
            out,
            pooling,
            start,
            recipe,
        )
        self.device, self.half, self.save_models, self.overwrite, self.report = (
            device,
            half,
            save_models,
            overwrite,
            report,
        )
        self.results = Results(out)
        self.tokenizer = opening.load_tokenizer(source)
        limits = [max_length, getattr(self.tokenizer, "model_max_length", max_length)]
        self.max_length = int(min(limits))
        self.key = {"model": model_key(source), "data": task.fingerprint(), "max_length": self.max_length}
        self.detail = self._choose(layer, heads, top)
        self.identity = {
            **self.key,
            "task": task.name,
            "pooling": pooling,
            "start": start,
            "half": half,
            "recipe": recipe.settings(),
            "detail": self.detail,
        }
        self.checkpoints = True
        self._rows: dict[str, Rows] | None = None

    def _choose(self, layer: int | None, heads: Sequence[Any] | None, top: int | None) -> dict[str, Any]:
        """The layer or the heads of the pooling."""
        if self.pooling == "last_layer":
            return {}
        if layer is not None:
            return {"layer": layer, "chosen": "given"}
        if heads is not None:
            return {"heads": [h if isinstance(h, str) else f"L{h[0]}H{h[1]}" for h in heads], "chosen": "given"}
        if self.pooling == "top_heads" and top is None:
            top = int(getattr(self._config(), "num_attention_heads", 12))
        ranking = self.ranking()
        if self.pooling == "best_layer":
            return {"layer": ranking.layer, "chosen": "best by a probe on the training part"}
        assert top is not None
        return {"heads": ranking.top(top), "chosen": "best by a probe on the training part"}

    def _config(self) -> Any:
        from transformers import AutoConfig

        with opening.spoken(self.source, "config.json"):
            return AutoConfig.from_pretrained(
                self.source, trust_remote_code=False, local_files_only=opening.offline(self.source)
            ).get_text_config()

    def ranking(self) -> Ranking:
        def make() -> Ranking:
            with HeadModel.open(self.source, device=self.device, dtype=torch.float32) as opened:
                opened.encoder.max_length = min(self.max_length, opened.max_length)
                return rank_heads(opened, self.task, report=self.report)

        return kept_ranking(self.out / f"ranking-{self.task.name}.json", self.key, make)

    def rows(self) -> dict[str, Rows]:
        if self._rows is None:
            self._rows = {
                part: encode_rows(examples, self.task.targets(examples), self.tokenizer, self.max_length)
                for part, examples in (("train", self.task.train), ("dev", self.task.dev))
            }
        return self._rows

    def run(self, seed: int, first: bool) -> Record:
        group = (self.task.name, self.pooling, self.start, self.recipe.name)
        identity = {**self.identity, "seed": seed}
        before = self.results.find(group, seed)
        if before is not None and not self.overwrite:
            changed = sorted(k for k in identity if before.identity.get(k) != identity[k])
            if changed:
                raise OutputError(
                    f"{self.results.path} holds a result of {' / '.join(group)}, seed {seed}, that differs in {', '.join(changed)}"
                    f"{' (a checkpoint of another model)' if 'model' in changed else ''}; give --overwrite to replace it, or choose another folder with --out."
                )
            return before
        folder = self.out / "-".join(group).lower().replace("_", "-") / f"seed-{seed}"
        checkpoint = Checkpoint(folder, identity)
        if self.overwrite:
            checkpoint.remove()
            with suppress(OSError):
                shutil.rmtree(folder / "model")
        began = time.perf_counter()
        torch.manual_seed(seed)
        model = make_classifier(
            self.source,
            self.tokenizer,
            self.task,
            pooling=self.pooling,
            start=self.start,
            layer=self.detail.get("layer"),
            heads=self.detail.get("heads"),
            dropout=self.recipe.dropout,
            new_pooler=self.recipe.new_pooler,
            device=self.device,
        )
        torch.manual_seed(seed + 1_000_003)  # the same dropout whatever was drawn for the head
        trained = train(
            model,
            self.task,
            self.rows(),
            self.recipe,
            seed,
            frozen=self.start == "frozen",
            epochs=0 if self.start == "none" else None,
            checkpoint=checkpoint if self.checkpoints and self.start != "none" else None,
            half=self.half,
            report=self.report,
            what=f"seed {seed}",
        )
        self._write_predictions(folder, trained)
        if self.save_models == "all" or (self.save_models == "first" and first):
            model.save(folder / "model", self.tokenizer)
        record = Record(
            *group,
            seed,
            trained.metrics,
            trained.history,
            identity,
            self.detail,
            str(folder.relative_to(self.out)),
            round(time.perf_counter() - began, 2),
        )
        self.results.add(record)
        checkpoint.remove()
        return record

    def _write_predictions(self, folder: Path, trained: Trained) -> None:
        """`predictions.tsv`: the dev examples in their order, with what is so and what the model said (for paired tests between trainings)."""
        truth, said = self.rows()["dev"].targets, trained.predicted
        lines = ["index\ttruth\tpredicted"]
        names = self.task.classes
        for i, (true, predicted) in enumerate(zip(truth.tolist(), np.asarray(said).tolist(), strict=True)):
            lines.append(f"{i}\t{names[true]}\t{names[predicted]}" if names else f"{i}\t{true:.6g}\t{predicted:.6g}")
        from headwise.core.files import write_atomically

        write_atomically(folder / "predictions.tsv", ("\n".join(lines) + "\n").encode())
