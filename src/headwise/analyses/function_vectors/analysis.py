"""Function vectors: which heads carry a task from the examples of a prompt to its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from headwise.analyses.contract import (
    ExperimentContext,
    Paper,
    Shape,
    at_least,
    layer_head_coords,
    mean_variables,
    relative_cost,
)
from headwise.analyses.direct_logits import DirectLogitExperiment
from headwise.analyses.function_vectors.prompts import Prompt, TaskPrompts, make_task_prompts
from headwise.analyses.function_vectors.runs import (
    are_right,
    are_right_with,
    function_vector,
    last_outputs,
    next_probabilities,
    patched_probabilities,
)
from headwise.analyses.summaries import format_heads, ranked_heads
from headwise.core.errors import ParameterError
from headwise.core.labels import SIGNIFICANCE_LEVEL
from headwise.core.store import Checkpoint
from headwise.core.workers import current, raise_failures
from headwise.models import HeadModel
from headwise.models.structure import Structure
from headwise.stats.accumulators import Moments
from headwise.stats.corrections import holm
from headwise.text.word_pairs import RELATIONS, WordPair, read_word_pairs

HEADS = ("layer", "head")
MIN_ACCURACY = 0.4  # of prompts with right examples; a task below it is one the model cannot do
FULL_PROMPTS = 8  # of each task, for a model of BERT's size
RANDOM_DRAWS = 5  # of as many heads, to compare a vector with


@dataclass(frozen=True)
class FunctionVectors(DirectLogitExperiment):
    """Find the heads whose mean output carries a task from the examples of a prompt to the answer.

    A prompt has five examples of a task (`hot: cold`) and a query; where the tokenizer opens texts
    with no token of its own, it begins with a line break. The mean output of a head at the last
    token, over such prompts, is put into prompts whose examples have shuffled answers; what the
    probability of the right answer gains is the head's effect. A task that the model cannot do
    (fewer than 0.4 of the prompts with right examples end in the right answer, or no more than with
    shuffled ones) has no scores; a model that can do none has none.

    - `gain[layer, head]`: what the right answer's probability gains, mean over tasks and prompts,
      with count and 95 % interval; `gain_p`: that it is no more than zero (Student's t over tasks ×
      prompts); `gain_p_adjusted`: corrected over heads (Holm);
    - `task_gain[task, layer, head]`: the same by task;
    - `accuracy[task]`, `shuffled_accuracy[task]`: share of right answers after examples with right
      and with shuffled answers;
    - `bare_accuracy`, `vector_accuracy`, `random_accuracy[task]`: share of right answers without
      examples; when the mean outputs of the ten best heads are added to the residual stream before
      `vector_layer`; and when those of ten random heads are (mean of five draws). Queries had
      no part in the vectors, where a list has enough.

    Parameters
    ----------
    shots : int, default 5
        Examples in a prompt.
    prompts : int, optional
        Prompts of each task and kind; default: 8, fewer for models larger than BERT base, at least
        3.
    vector_heads : int, default 10
        Heads whose outputs are added up.
    vector_layer : int, optional
        The layer before which the vectors are added, from 0; default: the number of layers
        divided by 3. The best layer differs between models.
    tasks : str, default ""
        A file with further tasks: task, input and answer in each line, with tabs between them.
    seed : int, optional
        Of the choice of queries and examples; default: that of the run.

    Notes
    -----
    Question: Which heads carry a task from the examples of a prompt to its answer?

    Assumes: The first token of an answer stands for it. Mean outputs of a task's prompts are what
    the head has to say of the task.

    Pitfalls: A model that cannot do the tasks has no scores, which says nothing about its heads. A
    head that makes any single-word answer likelier gains too: `task_gain` shows whether it does so
    for all tasks. Prompts of one task are not quite independent.

    Cost: For each prompt one pass, and one token more for every head.
    """

    shots: int = 5
    prompts: int | None = None
    vector_heads: int = 10
    vector_layer: int | None = None
    tasks: str = ""
    seed: int | None = None

    name: ClassVar[str] = "function_vectors"
    title: ClassVar[str] = "Function vectors: heads that carry a task to its answer"
    paper: ClassVar[Paper] = Paper("todd2023", "§2-3, causal mediation and function vectors")
    units: ClassVar[Mapping[str, str]] = {
        "probability": "task_gain",
        "share of prompts": "accuracy shuffled_accuracy bare_accuracy vector_accuracy "
        "random_accuracy",
    }
    # Heads are scored on the tasks that the model can do, and its first layers can do none.
    tried_on_first_layers: ClassVar[bool] = False
    typical_passes: ClassVar[float] = 400.0

    def __post_init__(self) -> None:
        at_least("shots", self.shots, 2)
        at_least("vector_heads", self.vector_heads, 1)
        if self.vector_layer is not None:
            at_least("vector_layer", self.vector_layer, 0)
        if self.prompts is not None:
            at_least("prompts", self.prompts, 1)

    def planned(self, shape: Shape) -> Self:
        if self.prompts is not None:
            return self
        return replace(
            self, prompts=max(3, round(FULL_PROMPTS / relative_cost(shape, logits=True)))
        )

    def perform(self, bench: ExperimentContext) -> xr.Dataset:
        model = bench.model
        structure = self.structure_to_logits(model)
        vector_layer = self._vector_layer(bench.shape)
        lists: dict[str, list[WordPair]] = dict(RELATIONS)
        if self.tasks:
            lists |= read_word_pairs(self.tasks)
        n_prompts = self.prompts or FULL_PROMPTS
        seed = self.seed or 0
        prompts = {}
        for number, (name, pairs) in enumerate(lists.items()):
            prompts[name] = make_task_prompts(model, pairs, self.shots, n_prompts, seed + number)
        units = []
        for name, task_prompts in prompts.items():
            units.append((f"task-{name}", task_prompts))
        compute = partial(_task_gains, model, structure)
        checkpoints: list[Checkpoint] = []
        for checkpoint in raise_failures(current().run_units(bench.store, compute, units)):
            checkpoints.append(checkpoint)
            bench.progress("tasks", len(checkpoints), len(units))
        by_task = dict(zip(prompts, (part.arrays for part in checkpoints), strict=True))
        return self._dataset(model, structure, prompts, by_task, bench.shape, vector_layer)

    def _vector_layer(self, shape: Shape) -> int:
        """Return the layer before which vectors are added."""
        if self.vector_layer is None:
            return shape.layers // 3
        if self.vector_layer >= shape.layers:
            raise ParameterError(
                f"`vector_layer` is {self.vector_layer}; the model has layers 0 to "
                f"{shape.layers - 1}."
            )
        return self.vector_layer

    def _dataset(
        self,
        model: HeadModel,
        structure: Structure,
        prompts: Mapping[str, TaskPrompts],
        by_task: Mapping[str, Mapping[str, np.ndarray]],
        shape: Shape,
        vector_layer: int,
    ) -> xr.Dataset:
        """Return gains with intervals and tests, and what vectors of the best heads do."""
        names = list(by_task)
        moments = Moments(shape.layers, shape.heads)
        task_gain = np.full((len(names), shape.layers, shape.heads), np.nan)
        for number, name in enumerate(names):
            gains = by_task[name]["gain"]
            if len(gains):
                moments.add(torch.as_tensor(gains))
                task_gain[number] = gains.mean(0)
        tasks_done = [name for name in names if len(by_task[name]["gain"])]
        p_value = np.nan_to_num(moments.p_above(0.0), nan=1.0)
        variables: dict[str, Any] = mean_variables("gain", HEADS, moments, units="probability")
        for end in ("low", "high"):
            variables[f"gain_{end}"].attrs["over"] = "prompts"
        variables |= {
            "gain_p": (HEADS, p_value),
            "gain_p_adjusted": (HEADS, holm(p_value)),
            "task_gain": (("task", *HEADS), task_gain),
        }
        for name in ("accuracy", "shuffled_accuracy"):
            variables[name] = ("task", [float(by_task[task][name]) for task in names])
        judged = {}
        if tasks_done:
            entry = _entries(model)[vector_layer]
            judged = self._judge_vectors(
                model, structure, entry, prompts, by_task, task_gain, tasks_done
            )
        for kind in ("bare_accuracy", "vector_accuracy", "random_accuracy"):
            values = [judged.get(task, {}).get(kind, np.nan) for task in names]
            variables[kind] = ("task", values)
        attrs = {"tasks_done": len(tasks_done), "vector_layer": vector_layer}
        return xr.Dataset(variables, layer_head_coords(shape) | {"task": names}, attrs)

    def _judge_vectors(
        self,
        model: HeadModel,
        structure: Structure,
        entry: nn.Module,
        prompts: Mapping[str, TaskPrompts],
        by_task: Mapping[str, Mapping[str, np.ndarray]],
        task_gain: np.ndarray,
        tasks_done: Sequence[str],
    ) -> dict[str, dict[str, float]]:
        """Return, for each task, the accuracy without examples: alone, with the vector of the best
        heads, with those of random heads."""
        mean_gain = np.nanmean(task_gain, axis=0)
        n_heads = min(self.vector_heads, mean_gain.size)
        best = np.argsort(-mean_gain.ravel(), kind="stable")[:n_heads]
        random = np.random.default_rng(self.seed or 0)
        draws = []
        for _ in range(RANDOM_DRAWS):
            draws.append(random.choice(mean_gain.size, n_heads, replace=False))
        judged = {}
        for task in tasks_done:
            bare = prompts[task].bare
            outputs = torch.as_tensor(by_task[task]["outputs"], device=model.device)

            def share_right(
                places: np.ndarray, bare: list[Prompt] = bare, outputs: Tensor = outputs
            ) -> float:
                heads = [divmod(int(place), model.heads) for place in places]
                vector = function_vector(structure, outputs, heads)
                return float(np.mean(are_right_with(model, entry, bare, vector)))

            judged[task] = {
                "bare_accuracy": float(np.mean(are_right(model, bare))),
                "vector_accuracy": share_right(best),
                "random_accuracy": float(np.mean([share_right(draw) for draw in draws])),
            }
        return judged

    def significant_heads(self, dataset: xr.Dataset) -> xr.DataArray | None:
        return dataset["gain_p_adjusted"] < SIGNIFICANCE_LEVEL

    def summary(self, dataset: xr.Dataset) -> list[str]:
        done = []
        for task in dataset["task"].values:
            of_task = dataset.sel(task=task)
            if np.isfinite(of_task["vector_accuracy"]):
                done.append(
                    f"{task} {float(of_task['accuracy']):.2f} (shuffled "
                    f"{float(of_task['shuffled_accuracy']):.2f})"
                )
        n_tasks = dataset.sizes["task"]
        if not done:
            return [f"The model can do none of {n_tasks} tasks, and no head is scored"]
        gain = dataset["gain"].values
        heads = ranked_heads(gain, dataset["gain_p_adjusted"].values < SIGNIFICANCE_LEVEL)
        line = f"{len(heads)} heads raise the right answer (corrected p < {SIGNIFICANCE_LEVEL:g})"
        if heads:
            line += f", most: {format_heads(gain, heads[:5], '+.3f')}"
        means = dataset[["bare_accuracy", "vector_accuracy", "random_accuracy"]].mean("task")
        return [
            f"{len(done)} of {n_tasks} tasks done, share of right answers: {', '.join(done)}",
            line,
            f"Without examples {float(means['bare_accuracy']):.2f} are right, with the vector of "
            f"the best {self.vector_heads} heads at layer {dataset.attrs['vector_layer']} "
            f"{float(means['vector_accuracy']):.2f}, with random heads "
            f"{float(means['random_accuracy']):.2f}",
        ]


def _task_gains(
    model: HeadModel, structure: Structure, prompts: TaskPrompts
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the gains of a task `[prompt, layer, head]` (no prompt where the model cannot do it),
    mean outputs and accuracies."""
    accuracy = _accuracy(model, prompts.shown_again)
    shuffled_accuracy = _accuracy(model, prompts.shuffled)
    size = (model.layers, model.heads)
    gains = np.zeros((0, *size))
    outputs = np.zeros((*size, model.d_head), np.float32)
    can_do = accuracy >= MIN_ACCURACY and accuracy > shuffled_accuracy
    if can_do and prompts.shown and prompts.bare:
        mean_outputs = last_outputs(model, prompts.shown)
        outputs = mean_outputs.cpu().numpy()
        rows = []
        for prompt in prompts.shuffled:
            before = float(next_probabilities(model, [prompt.ids])[0, prompt.answer])
            rows.append(patched_probabilities(model, structure, prompt, mean_outputs) - before)
        gains = np.stack(rows)
    arrays: dict[str, np.ndarray] = {
        "gain": gains,
        "outputs": outputs,
        "accuracy": np.array(accuracy),
        "shuffled_accuracy": np.array(shuffled_accuracy),
    }
    return arrays, {}


def _accuracy(model: HeadModel, prompts: Sequence[Prompt]) -> float:
    """Return the share of prompts that are answered right; 0 where there are none."""
    if not prompts:
        return 0.0
    return float(np.mean(are_right(model, prompts)))


def _entries(model: HeadModel) -> list[nn.Module]:
    """Return the module of each layer that the residual stream enters."""
    entries: dict[int, nn.Module] = {}
    for site in model.sites.by_module.values():
        assert site.entry is not None
        for layer in site.layers:
            entries[layer] = site.entry
    return [entries[layer] for layer in range(model.layers)]
