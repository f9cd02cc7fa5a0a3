"""The tables of docs/results: each is written between its marks in its page.

    python benchmarks/tables.py syntax roles features patterns attribution readings --atlas atlas
    --write python benchmarks/tables.py coreference --data FOLDER --write

Most are read off the atlas of the built-in model on the built-in corpus that `make atlas` wrote.
Coreference is of OntoGUM, `FOLDER/coreference/ontogum_conll.tar.xz`, with the trees of
`gum_conllu.tar.xz` there. `readings` goes into docs/attribution.md."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from headwise import Atlas, make_analysis, make_atlas, open_corpus
from headwise.analyses.accuracy import shown_accuracy
from headwise.core.labels import head_name

PAGES = Path(__file__).parents[1] / "docs" / "results"
TYPES = ("all", "pronoun", "proper", "nominal")
ROLES = (
    "local",
    "local:prev",
    "local:next",
    "syntactic",
    "nsubj",
    "dobj",
    "amod",
    "advmod",
    "siblings",
)
ROLES += ("same_word", "delimiter", "cls", "sep")


@dataclass(frozen=True)
class Given:
    """What sections are made from."""

    atlas: Atlas | None
    data: Path | None

    def group(self, name: str) -> xr.Dataset:
        if self.atlas is None:
            raise SystemExit(
                "This section is read off an atlas: give the folder that `make atlas` wrote as --atlas."
            )
        return self.atlas[name]

    def seen(self, name: str) -> int:
        """Examples that an analysis saw."""
        assert self.atlas is not None
        facts = self.atlas.provenance
        return int(facts["sampled"].get(name, facts["corpus"]["examples"]))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))


def by_layer(values: Iterable[float], digits: int = 2) -> str:
    return " ".join(f"{value:.{digits}f}".replace("0.", ".", 1) for value in map(float, values))


def best(array: xr.DataArray) -> tuple[str, dict[str, int]]:
    """The head with the largest value, and its place."""
    layer, head = np.unravel_index(int(np.nanargmax(array.values)), array.shape)
    return head_name(int(layer), int(head)), {"layer": int(layer), "head": int(head)}


def percent(dataset: xr.Dataset, name: str) -> str:
    value, low, high = (100 * float(dataset[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


# --- sections -------------------------------------------------------------------------------------


def syntax(given: Given) -> str:
    dependency, distance = given.group("dependency"), given.group("distance")
    gradient = given.group("gradient")["importance"]
    one = dependency.sel(relation="obj")
    name = head_name(int(one["best_layer"]), int(one["best_head"]))
    kinds = [str(kind) for kind in gradient["token_type"].values]
    rows = [
        (
            kind,
            " ".join(f"{1e3 * float(v):.2f}" for v in gradient.sel(token_type=kind).mean("head")),
        )
        for kind in kinds
    ]
    return "\n\n".join(
        [
            f"- **Resting** (§3.2, {given.seen('dependency')} examples): words that are an `obj` put "
            f"{float(one['best_noop_with']):.3f} of the attention of {name}, the best head for it, on `[SEP]`, other "
            f"words {float(one['best_noop_without']):.3f}.\n"
            f"- **Families** (§6, {given.seen('distance')} examples): heads of one layer lie closer "
            f"({float(distance['js_within_layer']):.3f} nats) than heads of different layers "
            f"({float(distance['js_between_layers']):.3f}), p = {float(distance['layer_p_value']):.4f}.\n"
            f"- **Gradients** (Fig 3, masked language model, {given.seen('gradient')} examples), mean over the heads "
            "of each layer, in thousandths of a nat:",
            table(("attention to", "layers 0 to 11"), rows),
        ]
    )


def coreference(given: Given) -> str:
    if given.data is None:
        raise SystemExit("Coreference is computed from OntoGUM: give its folder as --data.")
    folder = given.data / "coreference"
    trees = f"gum:{folder / 'gum_conllu.tar.xz'}"
    corpus = open_corpus(f"ontogum:{folder / 'ontogum_conll.tar.xz'}", trees=trees)
    out = []
    for documents, words in (
        ("cut", "Documents cut to 128 tokens"),
        ("windows", "Overlapping windows of 128 tokens"),
    ):
        asked = make_analysis("coreference", {"documents": documents})
        found = make_atlas(None, corpus, [asked], full=True)["coreference"]
        rows = []
        for kind in TYPES:
            one = found.sel(mention_type=kind)
            bars = [f"{100 * float(value):.1f}" for value in one["baseline_accuracy"]]
            name = head_name(int(one["best_layer"]), int(one["best_head"]))
            p = float(one["best_p_adjusted"].sel(baseline="rules"))
            rows.append(
                (
                    kind,
                    f"{int(one['count']):,}",
                    *bars,
                    f"{name} {percent(one, shown_accuracy(one))}",
                    f"{p:.3f}",
                )
            )
        bars = [str(value).replace("_", " ") for value in found["baseline"].values]
        median = 100 * float(found["accuracy"].sel(mention_type="all").median())
        out.append(
            f"{words}. Mentions behind a cut: {int(found.attrs.get('mentions_cut', 0)):,}; without an antecedent "
            f"before it: {int(found.attrs.get('mentions_without_antecedent', 0)):,}. The median head has "
            f"{median:.1f}.\n\n"
            + table(
                (
                    "mentions",
                    "number",
                    *bars,
                    "best head, on documents that it was not picked on (95 % interval)",
                    "corrected p over the rules",
                ),
                rows,
            )
        )
    return "\n\n".join(out)


def roles(given: Given) -> str:
    found = given.group("roles")
    rows = []
    for role in ROLES:
        one = found.sel(role=role)
        if bool(one["bias"].notnull().any()):
            name, place = best(one["bias"])
            rows.append(
                (
                    f"`{role}`",
                    str(int(one["has_role_adjusted"].sum())),
                    f"{float(one['random_bound']):.1f}",
                    f"{float(one['ceiling'].mean()):.1f}",
                    f"{name} {float(one['bias'].isel(place)):.1f}",
                )
            )
    both = found["spearman"].sel(role="local", role_b="syntactic")
    return (
        f"{given.seen('roles')} examples, τ = {float(found.attrs['tau']):g} (the paper's rule gives "
        f"{float(found.attrs['tau_paper']):g}). Of 144 heads {int(found['has_role_adjusted'].any('role').sum())} have "
        f"a role; local and syntactic biases go together over heads (Spearman {float(both):.2f}).\n\n"
        + table(("role", "heads", "random heads stay below", "ceiling", "largest bias"), rows)
    )


def features(given: Given) -> str:
    one, pairs = given.group("features"), given.group("token_pairs")
    rows = []
    for name in map(str, one["feature"].values):
        part = one.sel(feature=name)
        head, place = best(part["attention"])
        excess = "–"  # a token that is in every input has no neighbours to compare with
        if bool(part["excess"].notnull().any()):
            most, where = best(part["excess"])
            excess = f"{most} {float(part['excess'].isel(where)):+.2f}"
        rows.append(
            (
                name,
                f"{head} {float(part['attention'].isel(place)):.3f}",
                f"{float(part['attention'].mean()):.3f}",
                f"{float(part['uniform'].mean()):.3f}",
                excess,
                str(int(part["stands_out"].sum())),
            )
        )
    linked = []
    for name in map(str, pairs["pair"].values):
        part = pairs.sel(pair=name)
        head, place = best(part["attention"])
        most, where = best(part["excess"])
        linked.append(
            (
                name,
                f"{head} {float(part['attention'].isel(place)):.2f} (excess {float(part['excess'].isel(place)):+.3f})",
                f"{most} {float(part['excess'].isel(where)):+.3f} (p {float(part['p_adjusted'].isel(where)):.1g})",
                str(int(part["stands_out"].sum())),
            )
        )
    return "\n\n".join(
        [
            f"{given.seen('features')} examples of the built-in corpus (UD English EWT), with gold trees.",
            table(
                (
                    "feature",
                    "most attended by",
                    "mean",
                    "uniform",
                    "largest excess",
                    "heads that stand out",
                ),
                rows,
            ),
            table(("pair", "largest attention", "largest excess", "heads that stand out"), linked),
        ]
    )


def patterns(given: Given) -> str:
    found = given.group("patterns")
    names = [str(name) for name in found["pattern"].values]
    rows = [[percent(found.sel(pattern=name), "overall") for name in names]]
    return f"{given.seen('patterns')} examples × 144 heads.\n\n" + table(names, rows)


def attribution(given: Given) -> str:
    found = given.group("attribution")
    local, deep = found.sel(source="previous_layer"), found.sel(source="input")

    def heads(share: xr.DataArray) -> str:
        return f"{int(share.sum())} of {share.size}"

    rows = [
        ("local Pearson > 0.7 for all heads but two", heads(local["pearson"] > 0.7)),
        ("local Pearson > 0.85 for 90 %", heads(local["pearson"] > 0.85)),
        ("local Spearman > 0.9 for all but four", heads(local["spearman"] > 0.9)),
        ("local Spearman > 0.95 for 75 %", heads(local["spearman"] > 0.95)),
        (
            "input Pearson < 0.5 for most heads after four layers",
            heads(deep["pearson"].isel(layer=slice(4, None)) < 0.5),
        ),
        (
            "input Pearson median < 0.25 in the last four layers",
            by_layer(deep["pearson"].median("head")[-4:]),
        ),
        (
            "input Spearman median < 0.7 at layer 3 (from 1)",
            by_layer(deep["spearman"].median("head")[2:3]),
        ),
        (
            "input Spearman median < 0.25 in the last layer",
            by_layer(deep["spearman"].median("head")[-1:]),
        ),
    ]
    medians = [
        (words, by_layer(part[name].median("head")))
        for words, part, name in (
            ("Pearson, previous layer", local, "pearson"),
            ("Pearson, input", deep, "pearson"),
            ("Spearman, previous layer", local, "spearman"),
            ("Spearman, input", deep, "spearman"),
        )
    ]
    return "\n\n".join(
        [
            f"{given.seen('attribution')} examples of at most 32 tokens; contributions of the input by a sketch with "
            "a median error of 8 % of a row.",
            table(("claim of the paper (BERT-base, MNLI)", "here"), rows),
            table(
                ("correlation with attention, median over the heads of a layer", "layers 0 to 11"),
                medians,
            ),
        ]
    )


def readings(given: Given) -> str:
    found = given.group("attribution")
    names = {"attention": "mean attention", "rollout": "rollout", "norm": "norm"}
    ends = [
        found[f"mixed_between{end}"].sel(layer_source_b="input") for end in ("", "_low", "_high")
    ]
    rows = []
    for name, words in names.items():
        middle, low, high = (end.sel(layer_source=name) for end in ends)
        rows.append((words, by_layer(middle), f"{float(low[-1]):.2f} to {float(high[-1]):.2f}"))
    kept = found["mixed_own"].isel(layer=-1)
    own = ", ".join(
        f"{name} {float(kept.sel(layer_source=name)):.2f}" for name in ("input", *names)
    )
    return (
        f"{given.seen('attribution')} examples of at most 32 tokens. Spearman's correlation of what leaves each layer "
        "with the contribution of the input:\n\n"
        + table(("reading", "layers 0 to 11", "last layer, 95 % interval"), rows)
        + f"\n\nWhat a token keeps of itself after the last layer: {own}. So few examples make wide intervals."
    )


SECTIONS: dict[str, Callable[[Given], str]] = {
    function.__name__: function
    for function in (syntax, coreference, roles, features, patterns, attribution, readings)
}


def write(section: str, text: str) -> None:
    """Put it between the marks of its page."""
    path = PAGES.parent / "attribution.md" if section == "readings" else PAGES / f"{section}.md"
    mark = f"<!-- made by benchmarks/tables.py {section} -->\n"
    before, _, rest = path.read_text(encoding="utf-8").partition(mark)
    assert rest, f"{path} has no mark {mark!r}"
    path.write_text(
        before + mark + f"\n{text}\n\n" + rest[rest.index("<!-- end -->") :], encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="+", choices=list(SECTIONS))
    parser.add_argument("--atlas", type=Path, help="what `make atlas` wrote")
    parser.add_argument("--data", type=Path, help="a folder with public data sets")
    parser.add_argument("--write", action="store_true", help="into docs")
    asked = parser.parse_args()
    given = Given(Atlas.load(asked.atlas) if asked.atlas else None, asked.data)
    for section in asked.sections:
        text = SECTIONS[section](given)
        print(f"## {section}\n\n{text}\n", flush=True)
        if asked.write:
            write(section, text)


if __name__ == "__main__":
    main()
