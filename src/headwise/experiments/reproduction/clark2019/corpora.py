"""The texts of Clark et al. 2019 (segments of Wikipedia, treebanks, documents with coreference)
and their free substitutes.

Each function returns a corpus, a description of it, and the deviations from the paper."""

from __future__ import annotations

from headwise.experiments.reproduction.context import ReproductionContext
from headwise.experiments.reproduction.shared import size_deviation, size_text
from headwise.text import Corpus
from headwise.text.demo import demo_corpus

N_SEGMENTS = 1000
N_SEGMENTS_QUICK = 48
N_DOCUMENTS_QUICK = 16
MAX_TOKENS = 128


def segments(
    context: ReproductionContext, quick_size: int = N_SEGMENTS_QUICK
) -> tuple[Corpus, dict[str, str], list[str]]:
    """§3: pairs of consecutive paragraphs of at most 128 tokens."""
    substitution = (
        "No Wikipedia was given: sentences of the built-in corpus (UD English EWT) stand in, far "
        "shorter."
    )
    corpus, deviations = context.corpus_or_built_in(
        "wikipedia",
        context.sample_size(N_SEGMENTS, quick_size),
        substitution,
        max_tokens=MAX_TOKENS,
    )
    count = corpus.survey().count
    deviations += size_deviation(context, count, N_SEGMENTS, "segments")
    if context.data.find("wikipedia") is None:
        size = size_text(corpus)
    else:
        size = f"{count:,} segments"
    inputs = {"text": f"{corpus.name}, {size} of at most {MAX_TOKENS} tokens"}
    return corpus, inputs, deviations


def treebank(
    context: ReproductionContext, limit: int | None
) -> tuple[Corpus, dict[str, str], list[str]]:
    """§4.2: the dev part of the Penn Treebank, or English EWT, from a file or built in."""
    name = context.data.first("ptb-dev", "ewt-dev")
    substitution = (
        "The Penn Treebank is not free: the built-in corpus (sentences of UD English EWT, a third "
        "of the examples two at a time) stands in."
    )
    corpus, deviations = context.corpus_or_built_in(name, limit, substitution)
    if name == "ewt-dev":
        deviations.append(
            "The Penn Treebank is not free: UD English EWT, dev (web text), stands in."
        )
    if deviations:
        deviations.append(
            "UD relations in place of Stanford's: obj for dobj, compound for nn, nmod:poss for "
            "poss, aux:pass for auxpass, compound:prt for prt; for pobj the relation case, whose "
            "dependent is the preposition; prep has no counterpart."
        )
    inputs = {"trees": f"{corpus.name}, {size_text(corpus)}"}
    return corpus, inputs, deviations


def documents(context: ReproductionContext) -> tuple[Corpus, dict[str, str], list[str]]:
    """§4.3: CoNLL-2012, or OntoGUM, or generated passages of the built-in corpus."""
    name = context.data.first("conll2012", "ontogum")
    deviations = []
    unit = "documents"
    if context.data.find(name) is None:
        corpus = demo_corpus()
        unit = "examples of one to five sentences"
        deviations.append(
            "CoNLL-2012 is not free: short passages of the built-in grammar stand in, far easier."
        )
    else:
        has_trees = name == "ontogum" and context.data.find("gum") is not None
        reader_options = {"trees": context.data.spec("gum")} if has_trees else {}
        limit = N_DOCUMENTS_QUICK if context.options.quick else None
        corpus = context.corpus(name, limit, **reader_options)
        if name == "ontogum":
            if has_trees:
                head_words = "from GUM's trees"
            else:
                head_words = "by rule, since GUM's trees were not given"
            deviations.append(
                "CoNLL-2012 is not free: OntoGUM, annotated by the same rules, stands in; head "
                f"words {head_words}."
            )
    count = corpus.survey().count
    inputs = {"documents": f"{corpus.name}, {count:,} {unit}, cut to {MAX_TOKENS} tokens"}
    return corpus, inputs, deviations
