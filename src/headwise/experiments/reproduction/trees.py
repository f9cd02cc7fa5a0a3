"""Text with gold trees, for entries that need parts of speech: a treebank that was given, or the built-in corpus."""

from __future__ import annotations

from headwise.experiments.reproduction.bench import Bench
from headwise.text import Corpus, open_corpus


def annotated(bench: Bench, limit: int | None) -> tuple[Corpus, dict[str, str], list[str]]:
    """English sentences with trees, what they are, and what to say where the treebank was not given."""
    if bench.data.find("ewt-dev") is None:
        corpus = open_corpus(None, limit=limit, seed=bench.seed, prose=bench.model.causal).alone()
        differs = ["No treebank was given: the built-in corpus (500 sentences of UD English EWT) stands in."]
    else:
        corpus, differs = bench.corpus("ewt-dev", limit), []
    return corpus, {"text": f"{corpus.name}, {corpus.survey().count:,} sentences"}, differs
