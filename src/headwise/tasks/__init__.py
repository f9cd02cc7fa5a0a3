"""Tasks with a training and a development part: how they are read, encoded and scored."""

from headwise.tasks.glue import GLUE, Task, read_task
from headwise.tasks.metrics import METRICS, score

__all__ = ["GLUE", "METRICS", "Task", "read_task", "score"]
