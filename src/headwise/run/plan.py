"""Before any work: which analyses apply to this model and corpus, and how the corpus is cut into shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headwise.analyses.contract import Analysis, Experiment, Observer, Shape
from headwise.core.errors import MissingAnnotationError
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus, Scan

SHARD_SIZE = 64
HOW_TO_GET = {
    "words": "give a corpus of words (.conllu, .jsonl with `words`) or name a parser with --parser",
    "dependencies": "give a treebank (.conllu) or name a parser with --parser",
    "pos": "give a treebank (.conllu) or name a parser with --parser",
    "coreference": "give a coreference corpus (gum:FILE, ontogum:FILE or conll2012:FILE)",
    "frames": "give a frame corpus (framenet:FILE)",
    "segments": "give pairs of texts (`pair` in .jsonl, two sentence columns in .tsv, txt-pairs:FILE)",
    "label": "give a corpus with labels (`label` in .jsonl, a label column in .tsv)",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: the analyses that apply, and what is left out with the reason."""

    analyses: tuple[Analysis, ...]
    shape: Shape
    scan: Scan
    dropped: Mapping[str, Mapping[str, str]]  # analysis -> item -> reason; item "" is the whole analysis
    limits: Mapping[str, int | None]  # examples each analysis may see
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
        annotations=found.annotations,
        relations=found.relations,
        kv_groups=tuple(model.kv_groups),
        extras={
            "lm_kind": getattr(model, "lm_kind", None),
            "mask_token": getattr(getattr(model, "tokenizer", None), "mask_token_id", None) is not None,
        },
    )


def make_plan(
    model: HeadModel,
    rows: EncodedCorpus,
    analyses: Sequence[Analysis],
    *,
    shard_size: int = SHARD_SIZE,
    full: bool = True,
) -> Plan:
    """Decide what will be done on a corpus that has been read. Fails before any work if nothing is left to do."""
    shape = model_shape(model, rows.scan)
    kept: list[Analysis] = []
    dropped: dict[str, Mapping[str, str]] = {}
    for analysis in analyses:
        lacking = sorted(analysis.requires - shape.annotations)
        refusal = (
            f"the corpus has no {' and '.join(lacking)}: {HOW_TO_GET[lacking[0]]}"
            if lacking
            else analysis.refusal(shape)
        )
        items = {"": refusal} if refusal else analysis.missing(shape)
        if items:
            dropped[analysis.name] = MappingProxyType(dict(items))
        if not refusal:
            kept.append(analysis)
    if not kept:
        reasons = "; ".join(f"{name}: {items['']}" for name, items in dropped.items())
        raise MissingAnnotationError(f"None of the analyses can run on '{rows.corpus.name}' ({reasons}).")
    limits = MappingProxyType({a.name: None if full else a.budget for a in kept})
    return Plan(tuple(kept), shape, rows.scan, MappingProxyType(dropped), limits, shard_size)
