"""What Clark et al. 2019 read: segments of Wikipedia, treebanks, documents with coreference; and
what stands in."""

from __future__ import annotations

from headwise.experiments.reproduction.bench import Bench
from headwise.experiments.reproduction.shared import sizes_differ
from headwise.text import Corpus
from headwise.text.demo import demo_corpus

SEGMENTS, QUICK = 1000, 48
MAX_TOKENS = 128


def segments(bench: Bench, quick: int = QUICK) -> tuple[Corpus, dict[str, str], list[str]]:
    """§3: two consecutive paragraphs of at most 128 tokens; what was read, and what differs from
    the paper."""
    instead = "No Wikipedia was given: sentences of the built-in corpus (UD English EWT) stand in, far shorter."
    corpus, differs = bench.text(
        "wikipedia", bench.count(SEGMENTS, quick), instead, max_tokens=MAX_TOKENS
    )
    found = corpus.survey().count
    differs += sizes_differ(bench, found, SEGMENTS, "segments")
    return (
        corpus,
        {"text": f"{corpus.name}, {found:,} segments of at most {MAX_TOKENS} tokens"},
        differs,
    )


def treebank(bench: Bench, limit: int | None) -> tuple[Corpus, dict[str, str], list[str]]:
    """§4.2: the dev part of the Penn Treebank; English EWT where that is not given, as a file or as
    built in."""
    name = bench.data.first("ptb-dev", "ewt-dev")
    instead = "The Penn Treebank is not free: 500 sentences of English EWT, the built-in corpus, stand in."
    corpus, differs = bench.text(name, limit, instead)
    if name == "ewt-dev":
        differs.append("The Penn Treebank is not free: UD English EWT, dev (web text), stands in.")
    if differs:
        differs.append(
            "UD relations in place of Stanford's: obj for dobj, compound for nn, nmod:poss for poss, aux:pass for "
            "auxpass, compound:prt for prt; for pobj the relation case, whose dependent is the preposition; prep has "
            "no counterpart."
        )
    found = corpus.survey().count
    return corpus, {"trees": f"{corpus.name}, {found:,} sentences"}, differs


def documents(bench: Bench) -> tuple[Corpus, dict[str, str], list[str]]:
    """§4.3: CoNLL-2012; OntoGUM where that is not given, the made examples of the built-in corpus
    where neither is."""
    name = bench.data.first("conll2012", "ontogum")
    differs = []
    if bench.data.find(name) is None:
        corpus = demo_corpus()
        differs.append(
            "CoNLL-2012 is not free: short passages of the built-in grammar stand in, far easier."
        )
    else:
        known = name == "ontogum" and bench.data.find("gum") is not None
        options = {"trees": bench.data.spec("gum")} if known else {}
        corpus = bench.corpus(
            name, bench.count(10_000, 16) if bench.options.quick else None, **options
        )
        if name == "ontogum":
            heads = "from GUM's trees" if known else "by rule, since GUM's trees were not given"
            differs.append(
                f"CoNLL-2012 is not free: OntoGUM, annotated by the same rules, stands in; head words {heads}."
            )
    found = corpus.survey().count
    return (
        corpus,
        {"documents": f"{corpus.name}, {found:,} documents, cut to {MAX_TOKENS} tokens"},
        differs,
    )
