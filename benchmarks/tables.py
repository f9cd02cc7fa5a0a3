"""The tables of docs/results: each section is computed and written between its marks in its page.

    python benchmarks/tables.py SECTION... --data FOLDER [--write] [--size 1.0] [--device cuda]

SECTION is syntax, coreference, roles, features, patterns, attribution, readings (docs/attribution.md), probing,
disabling, or all. FOLDER holds the
public sets as they are shipped: `trees/en_ewt-ud-dev.conllu.xz`, `coreference/ontogum_conll.tar.xz`,
`frames/exemplars.jsonl.gz` with `frames.json.gz`, `glue/MRPC` and `glue/SST-2`, `wikipedia/articles.jsonl.gz`,
`probing/*.txt.gz`, `xnli/dev-en.tsv`. `--size` multiplies the number of examples; the text says how many there were.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from headwise import Corpus, Example, HeadModel, make_analysis, make_atlas, open_corpus
from headwise.analyses.contract import Analysis
from headwise.core.labels import head_name
from headwise.experiments.ablation import AblationOptions, LanguageSubject, ablate

PAGES = Path(__file__).parents[1] / "docs" / "results"
TYPES = ("all", "pronoun", "proper", "nominal")
ROLES = ("local", "local:prev", "local:next", "syntactic", "nsubj", "dobj", "amod", "advmod", "siblings")
ROLES += ("same_word", "delimiter", "cls", "sep")
PAPER = {  # Jo & Myaeng 2020, Table 3, BERT-base: last layer, best layer, best heads
    "sentence_length": "58.0 / 87.8 / 95.0",
    "word_content": "25.2 / 25.2 / 73.1",
    "tree_depth": "29.8 / 31.7 / 38.3",
    "top_constituents": "69.8 / 74.7 / 84.2",
    "bigram_shift": "78.1 / 78.1 / 88.3",
    "past_present": "86.0 / 87.0 / 89.0",
    "subj_number": "82.0 / 84.7 / 88.2",
    "obj_number": "75.4 / 75.4 / 83.4",
    "odd_man_out": "59.6 / 59.6 / 65.1",
    "coordination_inversion": "65.5 / 65.9 / 74.6",
}


@dataclass(frozen=True)
class Given:
    """What all sections work with."""

    data: Path
    size: float
    device: str | None

    def count(self, examples: int) -> int:
        return max(2, round(examples * self.size))

    def trees(self, examples: int) -> Corpus:
        return open_corpus(self.data / "trees" / "en_ewt-ud-dev.conllu.xz").sample(self.count(examples), 0)

    def run(self, corpus: Corpus, *analyses: str | Analysis) -> dict[str, xr.Dataset]:
        atlas = make_atlas(None, corpus, list(analyses), full=True, device=self.device)
        return {name: atlas[name] for name in atlas}


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


# --- sections ---------------------------------------------------------------------------------------------------------


def syntax(given: Given) -> str:
    corpus = given.trees(400)
    dependency = given.run(corpus, "dependency")["dependency"]
    others = given.run(given.trees(64), "distance", "gradient")
    distance, gradient = others["distance"], others["gradient"]["importance"]
    one = dependency.sel(relation="obj")
    name = head_name(int(one["best_layer"]), int(one["best_head"]))
    rows = [
        (kind, by_layer(1e3 * gradient.sel(token_type=kind).mean("head"), 1).replace(" .", " 0."))
        for kind in ("cls", "sep", "punct", "other")
    ]
    return "\n\n".join(
        [
            f"- **Resting** (§3.2, {len(list(corpus)):,} sentences of EWT dev): words that are an `obj` put "
            f"{float(one['best_noop_with']):.3f} of the attention of {name}, the best head for it, on `[SEP]`, other "
            f"words {float(one['best_noop_without']):.3f}.\n"
            f"- **Families** (§6, {given.count(64)} sentences): heads of one layer lie closer "
            f"({float(distance['js_within_layer']):.3f} nats) than heads of different layers "
            f"({float(distance['js_between_layers']):.3f}), p = {float(distance['layer_p_value']):.4f}.\n"
            f"- **Gradients** (Fig 3, masked language model, {given.count(64)} sentences), mean over the heads of each "
            "layer, in thousandths of a nat:",
            table(("attention to", "layers 0 to 11"), rows),
        ]
    )


def coreference(given: Given) -> str:
    corpus = open_corpus(f"ontogum:{given.data / 'coreference' / 'ontogum_conll.tar.xz'}")
    out = []
    for documents, words in (("cut", "Documents cut to 128 tokens"), ("windows", "Overlapping windows of 128 tokens")):
        found = given.run(corpus, make_analysis("coreference", {"documents": documents}))["coreference"]
        rows = []
        for kind in TYPES:
            one = found.sel(mention_type=kind)
            bars = [f"{100 * float(value):.1f}" for value in one["baseline_accuracy"]]
            name = head_name(int(one["best_layer"]), int(one["best_head"]))
            p = float(one["best_p_adjusted"].sel(baseline="rules"))
            rows.append((kind, f"{int(one['count']):,}", *bars, f"{name} {percent(one, 'best_accuracy')}", f"{p:.3f}"))
        bars = [str(value).replace("_", " ") for value in found["baseline"].values]
        median = 100 * float(found["accuracy"].sel(mention_type="all").median())
        out.append(
            f"{words}. Mentions behind a cut: {int(found.attrs.get('mentions_cut', 0)):,}; without an antecedent "
            f"before it: {int(found.attrs.get('mentions_without_antecedent', 0)):,}. The median head has "
            f"{median:.1f}.\n\n"
            + table(("mentions", "number", *bars, "best head (95 % interval)", "corrected p over the rules"), rows)
        )
    return "\n\n".join(out)


def roles(given: Given) -> str:
    corpus = given.trees(150)
    rows = []
    for words, tau in (("the paper's rule", "paper"), ("the default", None)):
        found = given.run(corpus, make_analysis("roles", {"tau": tau} if tau else {}))["roles"]
        has = found["has_role_adjusted"]
        cells = []
        for role in ROLES:
            bound = f" ({float(found['random_bound'].sel(role=role)):.1f})" if tau is None else ""
            cells.append(f"{int(has.sel(role=role).sum())}{bound}")
        rows.append((f"{words}, τ = {float(found.attrs['tau']):g}", *cells, str(int(has.any("role").sum()))))
    return f"{len(list(corpus))} sentences, 144 heads.\n\n" + table(("", *ROLES, "any"), rows)


def features(given: Given) -> str:
    corpus = given.trees(300)
    found = given.run(corpus, "features", "token_pairs")
    one, pairs = found["features"], found["token_pairs"]
    rows = []
    for name in map(str, one["feature"].values):
        part = one.sel(feature=name)
        head, place = best(part["attention"])
        most, where = best(part["excess"])
        rows.append(
            (
                name,
                f"{head} {float(part['attention'].isel(place)):.3f}",
                f"{float(part['attention'].mean()):.3f}",
                f"{float(part['uniform'].mean()):.3f}",
                f"{most} {float(part['excess'].isel(where)):+.2f}",
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
            f"{len(list(corpus))} sentences of EWT dev.",
            table(("feature", "most attended by", "mean", "uniform", "largest excess", "heads that stand out"), rows),
            table(("pair", "largest attention", "largest excess", "heads that stand out"), linked),
            frames(given),
        ]
    )


def frames(given: Given) -> str:
    folder = given.data / "frames"
    options = {"frames": str(folder / "frames.json.gz"), "bad_spans": "skip"}
    corpus = open_corpus(f"framenet:{folder / 'exemplars.jsonl.gz'}", **options).sample(given.count(3000), 0)
    found = given.run(corpus, "frames")["frames"]
    order = np.argsort(-found["score"].values.ravel())[:5]
    heads = found.sizes["head"]
    said = []
    for place in order:
        one = found.isel(layer=int(place) // heads, head=int(place) % heads)
        said.append(
            f"{head_name(int(place) // heads, int(place) % heads)} {float(one['score']):.3f} (moved or unlinked "
            f"{float(one['expected']):.3f}, p {float(one['p_adjusted']):.3f})"
        )
    return (
        f"Frames: {int(found['score_n'].max()):,} sentences of {given.count(3000):,} exemplars of FrameNet 1.7 pass "
        f"the paper's filters; the heads with the highest scores: {', '.join(said)}. Heads that stand out from the "
        f"same words unlinked and from random weights: {int(found['stands_out'].sum())}. The paper's two best heads "
        "of BERT-base have 0.201 and 0.209."
    )


def patterns(given: Given) -> str:
    glue = given.data / "glue"
    corpora = {
        "MRPC, pairs": f"glue:MRPC:{glue / 'MRPC' / 'test.tsv'}",
        "SST-2, sentences": f"glue:SST-2:{glue / 'SST-2' / 'dev.tsv'}",
        "Wikipedia, pairs of paragraphs": f"articles:{given.data / 'wikipedia' / 'articles.jsonl.gz'}",
    }
    tokenizer = HeadModel.open().tokenizer
    rows, names = [], []
    for words, spec in corpora.items():
        corpus = open_corpus(spec, tokenizer=tokenizer).sample(given.count(40), 0)
        found = given.run(corpus, "patterns")["patterns"]
        names = [str(name) for name in found["pattern"].values]
        rows.append((words, *(percent(found.sel(pattern=name), "overall") for name in names)))
    return f"{given.count(40)} inputs of each.\n\n" + table(("inputs", *names), rows)


def attribution(given: Given) -> str:
    lines = (given.data / "xnli" / "dev-en.tsv").read_text(encoding="utf-8").splitlines()
    model = HeadModel.open(device=given.device)
    pairs = (Example(text=row[0], pair=row[1]) for row in (line.split("\t") for line in lines))
    short = [pair for pair in pairs if len(model.encode(pair, 0)) <= 32]
    corpus = Corpus.from_examples(short[: given.count(20)], "XNLI dev, English")
    asked = make_analysis("attribution", {"error": 0.05, "weighting": "tokens", "patterns": 0})
    found = given.run(corpus, asked)["attribution"]
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
        ("input Pearson median < 0.25 in the last four layers", by_layer(deep["pearson"].median("head")[-4:])),
        ("input Spearman median < 0.7 at layer 3 (from 1)", by_layer(deep["spearman"].median("head")[2:3])),
        ("input Spearman median < 0.25 in the last layer", by_layer(deep["spearman"].median("head")[-1:])),
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
            f"{len(list(corpus))} pairs; contributions of the input by a sketch with a median error of 5 % of a row.",
            table(("claim of the paper (BERT-base, MNLI)", "here"), rows),
            table(("correlation with attention, median over the heads of a layer", "layers 0 to 11"), medians),
        ]
    )


def readings(given: Given) -> str:
    with HeadModel.open(device=given.device) as model:
        short = [example for example in open_corpus() if 6 <= len(model.encode(example, 0)) <= 13]
    corpus = Corpus.from_examples(short[: given.count(4)], "short sentences")
    names = {
        "attention": "mean attention",
        "rollout": "rollout",
        "flow": "flow",
        "norm": "norm",
        "value_zeroing": "value zeroing",
        "chefer": "gradient-weighted",
    }
    asked = {"readings": tuple(name for name in names if name != "attention"), "patterns": 0}
    found = given.run(corpus, make_analysis("attribution", asked))["attribution"]
    both = found["mixed_between"].sel(layer_source_b="input")
    low, high = (found[f"mixed_between_{end}"].sel(layer_source_b="input") for end in ("low", "high"))
    rows = []
    for name, words in names.items():
        last = {"layer_source": name}
        ends = by_layer((low.sel(last)[-1], high.sel(last)[-1])).replace(" ", " … ")
        rows.append((words, by_layer(both.sel(last)), ends))
    own = ", ".join(
        f"{name} {float(found['mixed_own'].sel(layer_source=name)[-1]):.2f}" for name in ("input", "rollout", "flow")
    )
    return (
        f"{len(list(corpus))} sentences of at most 13 tokens of the built-in corpus, all readings. Spearman's "
        "correlation of what leaves each layer with the contribution of the input:\n\n"
        + table(("reading", "layers 0 to 11", "last layer, 95 % interval"), rows)
        + f"\n\nWhat a token keeps of itself after the last layer: {own}. So few sentences make wide intervals."
    )


def probing(given: Given) -> str:
    folder = given.data / "probing"
    rows = []
    for task, paper in PAPER.items():
        count = given.count(2000)
        asked = {"tasks": str(folder / f"{task}.txt.gz"), "train": count, "validation": count // 2, "test": count // 2}
        found = given.run(Corpus.from_texts(["a"], "none"), make_analysis("probing", asked | {"control": False}))[
            "probing"
        ]
        one = found.isel(task=0)
        pooled = {str(name): float(one["pooled_accuracy"].sel(pooling=name)) * 100 for name in one["pooling"].values}
        head, place = best(one["accuracy"])
        cells = [f"{value:.1f}" for value in pooled.values()]
        names = list(pooled)
        rows.append(
            (
                task,
                f"{100 * float(one['majority']):.1f}",
                *cells,
                f"{head} {100 * float(one['accuracy'].isel(place)):.1f}",
                f"{int(one['better'].sum())} of 144",
                paper,
            )
        )
    shown = [name.replace("_", " ") for name in names]
    return (
        f"{given.count(2000):,} training rows, {given.count(2000) // 2:,} for validation and as many for the test; "
        "full-batch logistic regression on standardised vectors of the first token; best layer and heads by "
        "validation. The "
        "best single head is the best on test, so if anything too high.\n\n"
        + table(
            ("task", "majority", *shown, "best head", "heads above majority (Holm)", "paper: last / best / top heads"),
            rows,
        )
    )


def disabling(given: Given) -> str:
    corpus = given.trees(60)
    columns: dict[str, list[str]] = {}
    for how in ("uniform", "zero"):
        with HeadModel.open(device=given.device) as model:
            subject = LanguageSubject(model, corpus)
            found = ablate(subject, AblationOptions(how=how, importance=False, sinks=False))
        change, sure = found["difference"], found["p_adjusted"] < 0.05
        order = np.argsort(change.values.ravel())
        heads = found.sizes["head"]

        def named(places: Iterable[int], change: xr.DataArray = change, heads: int = heads) -> str:
            pairs = [(int(place) // heads, int(place) % heads) for place in places]
            return ", ".join(f"{head_name(*pair)} {float(change[pair]):+.3f}" for pair in pairs)

        layers = found["layer_difference"].values
        columns[how] = [
            named(order[:3]),
            named(order[::-1][:3]),
            f"{int((change < 0).sum())} ({int(((change < 0) & sure).sum())})",
            f"{int((change > 0).sum())} ({int(((change > 0) & sure).sum())})",
            f"{float(change.mean()):+.4f}",
            " ".join(f"{value:+.2f}" for value in layers),
        ]
        base = float(found.attrs["baseline"]) if "baseline" in found.attrs else float("nan")
    words = (
        "three heads it is best without",
        "three heads it is worst without",
        "heads it is better without (after correction)",
        "heads it is worse without (after correction)",
        "mean over all heads",
        "without a layer, layers 0 to 11",
    )
    return (
        f"{len(list(corpus))} sentences of EWT dev; the whole model: {base:.3f} nats. Differences in nats.\n\n"
        + table(("", *columns), zip(words, *columns.values(), strict=True))
    )


SECTIONS: dict[str, Callable[[Given], str]] = {
    function.__name__: function
    for function in (syntax, coreference, roles, features, patterns, attribution, readings, probing, disabling)
}


def write(section: str, text: str) -> None:
    """Put it between the marks of its page."""
    path = PAGES.parent / "attribution.md" if section == "readings" else PAGES / f"{section}.md"
    mark = f"<!-- made by benchmarks/tables.py {section} -->\n"
    before, _, rest = path.read_text(encoding="utf-8").partition(mark)
    assert rest, f"{path} has no mark {mark!r}"
    path.write_text(before + mark + f"\n{text}\n\n" + rest[rest.index("<!-- end -->") :], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=[*SECTIONS, "all"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--size", type=float, default=1.0, help="times the number of examples")
    parser.add_argument("--device")
    parser.add_argument("--write", action="store_true", help="into docs/results")
    asked = parser.parse_args()
    given = Given(asked.data, asked.size, asked.device)
    for section in SECTIONS if "all" in asked.sections else asked.sections:
        began = time.process_time()
        text = SECTIONS[section](given)
        print(f"## {section}\n\n{text}\n\n({time.process_time() - began:.0f} s of processor time)\n", flush=True)
        if asked.write:
            write(section, text)


if __name__ == "__main__":
    main()
