"""One page for each analysis, from its class, its docstring, its figures, and a run on a tiny
model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import torch
import xarray as xr

from docs_site.cache import kept, quick
from docs_site.docstrings import notes, one_line, parameters, sections, table
from docs_site.gallery import pictures_of
from headwise import Corpus, Example, HeadModel, make_atlas
from headwise.analyses.contract import Analysis, Observer, Shape, known_analyses, make_analysis
from headwise.analyses.papers import reference
from headwise.analyses.retrieval import trials
from headwise.plots.registry import figures_for, tables_for
from headwise.testing import planted_decoder
from headwise.testing.battery import SMALL, BatteryCase
from headwise.testing.names import EXTRA_DIMS

NOTES = ("Question", "Assumes", "Pitfalls", "Cost")
# What analyses need to have anything to look at in a corpus of a few words; no search of a rate.
TINY: dict[str, dict[str, Any]] = SMALL | {
    "roles": {"bootstrap": 50, "random_models": 1},
    "token_pairs": {"random_models": 1},
    "tree_probe": {"epochs": 1, "learning_rate": 0.05},
}
NEEDLE = ("word1 word2", "word3 word4 word5 word6 word7 word8", "word9")


def pages() -> dict[str, str]:
    """Markdown by address."""
    schemas = kept("schemas", all_schemas)
    made = {
        f"analyses/{name}.md": page(cls, schemas.get(name)) for name, cls in own_analyses().items()
    }
    return made | {"analyses/index.md": overview()}


def own_analyses() -> dict[str, type[Analysis]]:
    """The analyses of this package: those of packages that happen to be installed are none of this
    site's."""
    return {
        name: cls
        for name, cls in known_analyses().items()
        if cls.__module__.startswith("headwise.")
    }


def overview() -> str:
    rows = []
    for name, cls in own_analyses().items():
        question = notes(sections(cls).get("Notes", ""))["Question"]
        rows.append((f"[{name}]({name}.md)", question, _paper(cls), _supported_models(cls)))
    return (
        "# Analyses\n\nEach answers one question about every head of a model, in one pass over a corpus or in a few "
        "phases. `headwise atlas` runs all that apply, `headwise run NAME` one.\n\n"
        + table(("analysis", "question", "paper", "models"), rows)
        + "\nQuestions that change the model (`ablate`, `prune`, `patch`, `circuit`, `knockout`, `cache`, `compare`, "
        "`finetune`, `probe`) are commands: "
        "[the command line](../reference/commands.md). A question of your own: "
        "[adding an analysis](../adding-an-analysis.md).\n"
    )


def page(cls: type[Analysis], schema: dict[str, Any] | None) -> str:
    parts = sections(cls)
    said = notes(parts.get("Notes", ""))
    summary, _, rest = parts[""].partition("\n\n")
    lines = [f"# {cls.name}", f"**{said['Question']}**", f"*{cls.title}.* {one_line(summary)}"]
    lines += ["```\n" + f"headwise run {cls.name}{_needs_model(cls)}\n" + "```", _facts(cls)]
    lines += ["## What is computed", rest]
    lines += [
        "## Assumptions",
        said["Assumes"],
        "## Pitfalls",
        said["Pitfalls"],
        "## Cost",
        said["Cost"],
        _budget(cls),
    ]
    lines += ["## Parameters", _parameters(cls, parts.get("Parameters", ""))]
    lines += ["## Figures, and how to read them", _figures(cls.name)]
    if schema is not None:
        lines += ["## Variables", _variables(cls.name, schema)]
    return "\n\n".join(lines) + "\n"


def _paper(cls: type[Analysis]) -> str:
    return f"{reference(cls.paper.key).short}, {cls.paper.section}"


@cache
def _supported_models(cls: type[Analysis]) -> str:
    """Which models it is for: asked of the analysis itself."""
    encoder, decoder = (not _refuses(cls.name, causal) for causal in (False, True))
    return "encoders and decoders" if encoder and decoder else "decoders" if decoder else "encoders"


def _refuses(name: str, causal: bool) -> bool:
    """Whether an analysis has no answer for an encoder or a decoder on a corpus with every
    annotation."""
    shape = _shape(causal)
    analysis = _tiny(name).planned(shape)
    return (
        not analysis.requires <= shape.annotations or analysis.unsupported_reason(shape) is not None
    )


@cache
def _shape(causal: bool) -> Shape:
    return BatteryCase(_tiny("surface"), causal=causal).shape


def _needs_model(cls: type[Analysis]) -> str:
    return " HuggingFaceTB/SmolLM2-135M" if _supported_models(cls) == "decoders" else ""


def _facts(cls: type[Analysis]) -> str:
    analysis = make_analysis(cls.name)
    needs = ", ".join(f"`{need}`" for need in sorted(analysis.requires)) or "nothing but text"
    papers = [
        reference(cls.paper.key).citation,
        *(reference(key).citation for key in cls.paper.more),
    ]
    rows = [
        ("paper", f"{cls.paper.section}: " + "; ".join(papers)),
        ("models", _supported_models(cls) + (", cross-attention too" if cls.cross else "")),
        ("the corpus must have", needs),
        ("part of `headwise atlas`", "yes" if cls.automatic else "only when named"),
    ]
    return table(("", ""), rows)


def _budget(cls: type[Analysis]) -> str:
    how = (
        "It watches the one pass that all such analyses share."
        if issubclass(cls, Observer)
        else "It runs by itself."
    )
    examples = (
        "all examples"
        if cls.budget is None
        else f"{cls.budget:,} examples for a model of BERT's size"
    )
    more = "[large models and long inputs](../scale.md)"
    return f"{how} `headwise atlas` gives it {examples} (`--full` lifts that): {more}."


def _parameters(cls: type[Analysis], section: str) -> str:
    if not fields(cls):  # type: ignore[arg-type]
        return "None."
    rows = [
        (", ".join(f"`{n.strip()}`" for n in names.split(",")), kind, text)
        for names, kind, text in parameters(section)
    ]
    note = f"On the command line `--set NAME=VALUE` (in an atlas `--set {cls.name}.NAME=VALUE`), in Python "
    note += f'`make_analysis("{cls.name}", {{"NAME": value}})`.'
    return table(("parameter", "type", "meaning"), rows) + "\n" + note


def _figures(name: str) -> str:
    found = pictures_of()
    lines = []
    for spec in figures_for(name):
        lines.append(
            f"### {spec.title}\n\n{spec.caption}" + (f" *{spec.paper}.*" if spec.paper else "")
        )
        shown = [p for p in found if p.startswith(f"{name}-{spec.name}")]
        lines += [f"![{spec.title}](../gallery/{picture}.png)" for picture in shown[:1]]
    for spec in tables_for(name):
        lines.append(
            f"### Table: {spec.title}\n\n{spec.note} `tables/{name}-{spec.name}.csv` in the folder of an atlas."
        )
    return "\n\n".join(lines) or "None of its own."


# --- variables ------------------------------------------------------------------------------------


def _tiny(name: str) -> Analysis:
    return make_analysis(name, TINY.get(name))


def all_schemas() -> dict[str, Any]:
    """Of every analysis what its result has, from a run on a tiny model: random weights, or for
    decoders the planted one, whose heads have something to find."""
    torch.set_num_threads(1)
    planted = {} if quick() else planted_results(asked_of_decoders())
    found = {}
    for name in ("surface", "dependency") if quick() else own_analyses():
        dataset = planted[name] if name in planted else BatteryCase(_tiny(name)).labelled
        found[name] = {
            "variables": {
                str(key): described(str(key), array) for key, array in dataset.data_vars.items()
            },
            "dims": {str(dim): _labels(dataset, str(dim)) for dim in dataset.dims},
            "attributes": sorted(set(map(str, dataset.attrs)) - {"title", "paper", "parameters"}),
        }
    return found


def asked_of_decoders() -> list[str]:
    """The questions that have no answer for an encoder."""
    return [name for name in own_analyses() if _refuses(name, causal=False)]


def planted_results(names: Sequence[str]) -> dict[str, xr.Dataset]:
    """Questions that are asked of decoders, on the decoder whose heads are planted."""
    made = planted_decoder(words=40, max_length=160)
    random = np.random.default_rng(0)
    texts = [" ".join(f"word{i}" for i in random.permutation(np.arange(20, 40))) for _ in range(12)]
    corpus = Corpus.from_examples([Example(text=text) for text in texts], "planted words")
    before, trials.NEEDLES = trials.NEEDLES, (NEEDLE,)
    try:
        with HeadModel.open(made.model, tokenizer=made.tokenizer) as model:
            made_atlas = make_atlas(
                model, corpus, names, parameters={"retrieval": {"lengths": (64, 96), "depths": 2}}
            )
            return {name: made_atlas[name] for name in names}
    finally:
        trials.NEEDLES = before


def units_of(name: str, dataset: xr.Dataset) -> dict[str, str]:
    """The units of a result's numbers, `analysis.variable`; counts and intervals have those of what
    they belong to."""
    return {
        f"{name}.{key}": described(str(key), array)["unit"]
        for key, array in dataset.data_vars.items()
        if not (str(key).rpartition("_")[2] in ("n", "low", "high") and str(key).rpartition("_")[0])
    }


def described(name: str, array: xr.DataArray) -> dict[str, Any]:
    return {
        "dims": list(map(str, array.dims)),
        "unit": str(array.attrs.get("units", "")) or plain_unit(name, array),
    }


def plain_unit(name: str, array: xr.DataArray) -> str:
    """The unit that a name or type says by itself; "" where it says none."""
    kind = array.dtype.kind
    if kind == "b":
        return "true or false"
    if kind in "OUST":
        return "text"
    if re.search(r"(^|_)p(_|$)", name):
        return "probability"
    if re.search(r"(^|_)(layer|head)$", name) and kind == "i":
        return "index from 0"
    return "count" if kind in "iu" else ""


def _labels(dataset: xr.Dataset, dim: str) -> list[str]:
    return [str(label) for label in dataset.get_index(dim)] if dim in dataset.indexes else []


def _variables(name: str, schema: dict[str, Any]) -> str:
    variables, dims = schema["variables"], schema["dims"]
    rows = []
    for key, what in variables.items():
        stem = re.sub(r"_(n|low|high)$", "", key)
        if stem != key and stem in variables:
            continue
        beside = [end for end in ("_n", "_low", "_high") if key + end in variables]
        rows.append(
            (
                f"`{key}`",
                ", ".join(what["dims"]),
                what["unit"],
                " ".join(f"`{end}`" for end in beside),
            )
        )
    used = {dim for what in variables.values() for dim in what["dims"]}
    words = []
    for dim in sorted(used):
        labels = dims.get(dim, [])
        shown = ", ".join(labels[:12]) + (", …" if len(labels) > 12 else "")
        words.append(
            (
                f"`{dim}`",
                EXTRA_DIMS.get(dim, ""),
                "" if labels and labels[0].lstrip("-").isdigit() else shown,
            )
        )
    return (
        f"The group `{name}` of an atlas, read off a run on a tiny model; beside a mean stand its count `_n` and the "
        "ends of its 95 % interval.\n\n"
        + table(("variable", "dims", "unit", "beside it"), rows)
        + "\n"
        + table(("dim", "what", "labels in that run"), words)
        + "\nAttributes: "
        + ", ".join(f"`{key}`" for key in schema["attributes"])
        + "."
    )
