"""Before any work: what the corpus holds, which analyses apply, what must be tapped, how the corpus is cut into shards."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwise.analyses.contract import Analysis, Experiment, Observer, Shape
from headwise.core.errors import InputError, MissingAnnotationError
from headwise.text.encode import Encoder

if TYPE_CHECKING:
    from headwise.models import HeadModel
    from headwise.text import Corpus

HOW_TO_GET = {
    "words": "give a corpus of words (.conllu, .jsonl with `words`) or name a parser with --parser",
    "dependencies": "give a treebank (.conllu) or name a parser with --parser",
    "pos": "give a treebank (.conllu) or name a parser with --parser",
    "coreference": "give a coreference corpus (gum:FILE, ontogum:FILE or conll2012:FILE)",
    "frames": "give a frame corpus (framenet:FILE)",
    "segments": "give pairs of texts (`pair` in .jsonl, two sentence columns in .tsv, txt-pairs:FILE)",
    "label": "give a corpus with labels (`label` in .jsonl, a label column in .tsv)",
}


@dataclass(slots=True)
class Scan:
    """What one reading of the corpus found, before the model is asked anything."""

    examples: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    skipped: int = 0
    unaligned: int = 0
    annotations: Counter[str] = field(default_factory=Counter)
    relations: set[str] = field(default_factory=set)
    fingerprint: str = ""
    notes: dict[str, int] = field(default_factory=dict)  # what the corpus's reader left out, with counts

    def counts(self) -> dict[str, int]:
        return {
            name: getattr(self, name) for name in ("examples", "tokens", "longest", "truncated", "skipped", "unaligned")
        }


def scan(corpus: Corpus, encoder: Encoder, limit: int | None = None) -> Scan:
    """Read the whole corpus once: count, fingerprint, find every row that cannot be used before any work is done."""
    found = Scan()
    digest = hashlib.sha256()
    for index, example in enumerate(corpus):
        if limit is not None and index >= limit:
            break
        digest.update(example.fingerprint())
        row = encoder.encode(example, index)
        if row is None:
            found.skipped += 1
            continue
        found.examples += 1
        found.tokens += len(row)
        found.longest = max(found.longest, len(row))
        found.truncated += row.truncated
        found.unaligned += example.words is not None and not row.aligned
        found.annotations.update(example.annotations)
        found.relations.update(example.relations or ())
    if not found.examples:
        why = (
            f"all {found.skipped} examples are longer than {encoder.max_length} tokens; use overlong=truncate"
            if found.skipped
            else "it holds no examples; check the file"
        )
        raise InputError(f"Nothing to run on in corpus '{corpus.name}': {why}.")
    found.fingerprint = digest.hexdigest()
    found.notes = dict(corpus.notes)
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: the analyses that apply, what they make the tap show, and what is left out with the reason."""

    analyses: tuple[Analysis, ...]
    taps: frozenset[str]
    shape: Shape
    scan: Scan
    dropped: dict[str, dict[str, str]]  # analysis -> item -> reason; item "" is the whole analysis
    limits: dict[str, int | None]  # examples each analysis may see
    shard_size: int

    @property
    def streaming(self) -> tuple[Observer, ...]:
        return tuple(a for a in self.analyses if isinstance(a, Observer))

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return tuple(a for a in self.analyses if isinstance(a, Experiment))

    @property
    def shards(self) -> int:
        return -(-(self.scan.examples + self.scan.skipped) // self.shard_size)

    def active(self, shard: int) -> list[Observer]:
        """The streaming analyses that see this shard (a budget is rounded up to whole shards)."""
        first = shard * self.shard_size
        return [a for a in self.streaming if (limit := self.limits[a.name]) is None or first < limit]

    def sampled(self) -> dict[str, int]:
        """The analyses whose budget lets them see only a part, with the number of examples they see."""
        total = self.scan.examples + self.scan.skipped
        streaming = {a.name for a in self.streaming}
        seen = {
            name: -(-limit // self.shard_size) * self.shard_size if name in streaming else limit
            for name, limit in self.limits.items()
            if limit is not None
        }
        return {name: count for name, count in seen.items() if count < total}


def model_shape(model: HeadModel, found: Scan) -> Shape:
    """What analyses may know of this model on this corpus."""
    return Shape(
        layers=model.layers,
        heads=model.heads,
        d_head=model.d_head,
        hidden=model.hidden,
        causal=model.causal,
        max_length=found.longest,
        token_types=model.encoder.token_types,
        annotations=frozenset(found.annotations),
        relations=tuple(sorted(found.relations)),
        kv_groups=tuple(model.kv_groups),
        extras={
            "lm_kind": getattr(model, "lm_kind", None),
            "mask_token": getattr(getattr(model, "tokenizer", None), "mask_token_id", None) is not None,
        },
    )


def make_plan(
    model: HeadModel,
    corpus: Corpus,
    analyses: Sequence[Analysis],
    *,
    limit: int | None,
    shard_size: int,
    full: bool = True,
) -> Plan:
    """Scan the corpus and decide. Fails before any work if nothing is left to do."""
    found = scan(corpus, model.encoder, limit)
    shape = model_shape(model, found)
    kept: list[Analysis] = []
    dropped: dict[str, dict[str, str]] = {}
    for analysis in analyses:
        lacking = sorted(analysis.requires - shape.annotations)
        if lacking:
            what = " and ".join(lacking)
            dropped[analysis.name] = {"": f"the corpus has no {what}: {HOW_TO_GET[lacking[0]]}"}
            continue
        refusal = analysis.refusal(shape)
        if refusal:
            dropped[analysis.name] = {"": refusal}
            continue
        items = analysis.missing(shape)
        if items:
            dropped[analysis.name] = items
        kept.append(analysis)
    if not kept:
        reasons = "; ".join(f"{name}: {items['']}" for name, items in dropped.items())
        raise MissingAnnotationError(f"None of the analyses can run on '{corpus.name}' ({reasons}).")
    taps: frozenset[str] = frozenset().union(*(a.taps for a in kept if isinstance(a, Observer)))
    limits = {a.name: None if full else a.budget for a in kept}
    return Plan(tuple(kept), taps, shape, found, dropped, limits, shard_size)


def describe(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON can hold them."""
    return {
        name: list(value) if isinstance(value, tuple | set | frozenset) else value for name, value in parameters.items()
    }
