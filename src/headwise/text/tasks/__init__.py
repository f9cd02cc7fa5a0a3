"""Tasks, examples with labels in parts: how they are read (GLUE, SentEval, any labelled corpus),
sampled and scored."""

from headwise.stats.metrics import METRICS, score
from headwise.text.known_tasks import GLUE, SENTEVAL
from headwise.text.tasks.reading import (
    glue_task,
    read_task,
    read_tasks,
    senteval_task,
    task_from_examples,
)
from headwise.text.tasks.task import Split, Task, sample

__all__ = [
    "GLUE",
    "METRICS",
    "SENTEVAL",
    "Split",
    "Task",
    "glue_task",
    "read_task",
    "read_tasks",
    "sample",
    "score",
    "senteval_task",
    "task_from_examples",
]
