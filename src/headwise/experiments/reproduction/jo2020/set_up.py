"""Figures 1 and 2, tables 1 and 2: what is evaluated, and on what."""

from __future__ import annotations

from headwise.core.labels import head_name
from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.frame import Outcome, Row, Table
from headwise.experiments.reproduction.jo2020.probed import given_tasks, probed
from headwise.text.known_tasks import SENTEVAL
from headwise.text.tasks import read_tasks


def drawing(bench: Bench, what: str) -> Outcome:
    """A drawing of the method: nothing is measured in it."""
    model = bench.model
    token = "the last token" if model.causal else "the first token"
    facts = {
        "vectors": f"{model.layers} layers of {model.hidden}, {model.layers * model.heads} heads of {model.d_head}"
    }
    return Outcome(differs=[f"A drawing of the method ({what}); it has no numbers."], seen=facts | {"token": token})


def selection(bench: Bench) -> Outcome:
    """Figure 2: the heads that validation picks, task by task."""
    found, differs, seen = probed(bench)
    rows = []
    for task in map(str, found["task"].values):
        one = found.sel(task=task)
        count = min(int(one.attrs["top"]), one.sizes["rank"])
        picked = [head_name(int(one["top_layer"][i]), int(one["top_head"][i])) for i in range(count)]
        rows.append([str(one["paper_task"].values), " ".join(picked)])
    table = Table("Heads picked on validation, best first", ["task", "heads"], rows)
    return Outcome(tables=[table], differs=differs, seen=seen)


def encoders(bench: Bench) -> Outcome:
    """Table 1: the model that is looked at here."""
    model = bench.model
    size = f"{model.module.num_parameters() / 1e6:.0f}M"
    row = [model.name, model.layers, model.heads, model.layers * model.heads, size]
    table = Table("The encoder", ["encoder", "L", "H", "L × H", "parameters"], [row])
    return Outcome(tables=[table], differs=["One encoder, the one that was given, in place of seven."])


def tasks(bench: Bench) -> Outcome:
    """Table 2: the tasks as they were given."""
    given, missing = given_tasks(bench)
    rows, sizes = [], []
    for name, path in given.items():
        (task,) = read_tasks([path], bench.seed)
        rows.append(Row(name, len({str(label) for label in task.labels})))
        parts = [len(part) for part in (task.split.train, task.split.validation, task.split.test)]
        sizes.append([SENTEVAL[name][0], *parts])
    table = Table("Sentences given", ["task", "train", "validation", "test"], sizes)
    return Outcome(rows, [table], differs=missing)
