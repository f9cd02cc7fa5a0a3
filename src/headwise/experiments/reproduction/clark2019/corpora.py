"""What Clark et al. 2019 read: segments of Wikipedia, treebanks, documents with coreference; and what stands in."""

from __future__ import annotations

from headwise.experiments.reproduction.bench import Bench
from headwise.text import Corpus, open_corpus

SEGMENTS, QUICK = 1000, 48
MAX_TOKENS = 128


def segments(bench: Bench, quick: int = QUICK) -> tuple[Corpus, dict[str, str], list[str]]:
    """§3: two consecutive paragraphs of at most 128 tokens; what was read, and what differs from the paper."""
    count = bench.count(SEGMENTS, quick)
    if bench.data.find("wikipedia") is None:
        corpus = open_corpus(None, limit=count, seed=bench.seed, prose=bench.model.causal).alone()
        differs = ["No Wikipedia was given: sentences of the built-in corpus (UD English EWT) stand in, far shorter."]
    else:
        corpus = bench.corpus("wikipedia", count, max_tokens=MAX_TOKENS)
        differs = []
    found = corpus.survey().count
    if found < SEGMENTS and not bench.options.quick and bench.options.scale == 1:
        differs.append(f"{found} segments in place of 1000: no more were given.")
    elif found != SEGMENTS:
        differs.append(f"{found} segments in place of 1000, to save time.")
    return corpus, {"text": f"{corpus.name}, {found:,} segments of at most {MAX_TOKENS} tokens"}, differs
