"""Tasks with a training and a development part: how they are read, encoded and scored."""

from headwise.stats.metrics import METRICS, score
from headwise.text.tasks.glue import GLUE, Task, read_task

__all__ = ["GLUE", "METRICS", "Task", "read_task", "score"]
