"""Probing as a call of its own: `headwise.probe`, with the options of the analysis and of the
command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import xarray as xr

from headwise.analyses.probing.analysis import probe_tasks
from headwise.analyses.probing.options import ProbingOptions
from headwise.core.options import recorded_options, takes_options
from headwise.models import HeadModel
from headwise.run.job import Job
from headwise.text.tasks import read_tasks
from headwise.text.tasks.reading import Given


@takes_options(ProbingOptions)
def probe(
    model: HeadModel | str | Path | None,
    tasks: Given,
    *,
    options: ProbingOptions,
    folder: Job | str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> xr.Dataset:
    """Probe every head and every layer of a model for some tasks.

    Each option of `headwise.analyses.probing.options.ProbingOptions` is a keyword. The defaults are
    full-batch logistic regression on standardised vectors; `solver="senteval", folds=5,
    standardize=False` is the paper's protocol.

    Parameters
    ----------
    model : HeadModel, str or Path, optional
        A model, or what `HeadModel.open` takes.
    tasks : Task, Corpus, str, Path, or a sequence or mapping of them
        SentEval files, GLUE folders, folders of them, labelled corpora.
    options : ProbingOptions, optional
        All options together; keywords replace single ones.
    folder : str, Path or Job, optional
        Where checkpoints go, so that an interrupted call resumes; without it there are none.
    progress : callable, optional
        Called as `progress(what, done, total)`.

    Returns
    -------
    Dataset
        `accuracy[task, layer, head]`, `layer_accuracy[task, layer]`, `pooled_accuracy[task,
        pooling]` and what `headwise.analyses.probing.result.probing_dataset` lists.

    Examples
    --------
    >>> from headwise.testing.models import random_model
    >>> from headwise.text import Corpus, Example
    >>> module, tokenizer = random_model()
    >>> examples = [Example(text=f"the {'cat' if i % 2 else 'dog'} saw", label=i % 2) for i in range(60)]
    >>> corpus = Corpus.from_examples(examples, "animals")
    >>> with HeadModel.open(module, tokenizer=tokenizer) as model:
    ...     scores = probe(model, corpus, solver="ridge", greedy=False, control=False, curve=())
    >>> scores["accuracy"].dims
    ('task', 'layer', 'head')
    """
    opened = model if isinstance(model, HeadModel) else HeadModel.open(model)
    task_list = read_tasks(tasks, options.seed or 0)
    with Job.opened(folder) as job:
        store = None
        if folder is not None:
            store = job.begin(
                {
                    "experiment": "probing",
                    "model": opened.identity(),
                    "tasks": [[task.name, task.fingerprint()] for task in task_list],
                    "options": recorded_options(options),
                }
            )
        return probe_tasks(opened, task_list, options, store=store, progress=progress)
