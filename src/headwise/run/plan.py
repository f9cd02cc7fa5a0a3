"""Before any work: which analyses apply to this model and corpus, and how the corpus is cut into
shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from headwise.analyses.contract import Analysis, Experiment, Observer, Shape, relative_cost
from headwise.analyses.items import missing_annotation_reason
from headwise.core.errors import MissingAnnotationError, ParameterError
from headwise.core.failures import Failure, UnexpectedError
from headwise.models import HeadModel
from headwise.models.sizes import layer_kinds
from headwise.run.encoded import EncodedCorpus, Scan

SHARD_SIZE = 64
COSTLY = 4.0  # times the work of an example in BERT from where shards are half as large


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A corpus, or a part of one, as rows, and what analyses may know of the model on it."""

    rows: EncodedCorpus
    shape: Shape

    @property
    def name(self) -> str:
        return self.rows.corpus.name


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: the analyses that apply, and what is left out with the reason."""

    analyses: tuple[Analysis, ...]
    shape: Shape
    scan: Scan
    dropped: Mapping[
        str, Mapping[str, str]
    ]  # analysis -> item -> reason; item "" is the whole analysis
    limits: Mapping[str, int | None]  # examples each analysis may see
    shard_size: int
    parts: Mapping[
        str, Part
    ]  # analysis -> what it sees: the corpus, or the first part of it with all that it needs
    failures: Mapping[str, Failure] = field(
        default_factory=dict
    )  # analyses that failed while they were asked

    @property
    def elsewhere(self) -> dict[str, list[str]]:
        """The analyses that do not see the corpus itself, by the name of the part that they see."""
        found: dict[str, list[str]] = {}
        for name, part in self.parts.items():
            if part.rows.scan is not self.scan:
                found.setdefault(part.name, []).append(name)
        return found

    @property
    def streaming(self) -> tuple[Observer, ...]:
        return tuple(a for a in self.analyses if isinstance(a, Observer))

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return tuple(a for a in self.analyses if isinstance(a, Experiment))

    def together(self, apart: Collection[str]) -> list[tuple[Part, list[Observer]]]:
        """Each part that is seen, with the streaming analyses that watch it in one pass; those
        apart have their own."""
        shared = [a for a in self.streaming if a.name not in apart]
        return [
            (part, [a for a in shared if self.parts[a.name] is part])
            for part in dict.fromkeys(self.parts.values())
        ]

    @property
    def shards(self) -> int:
        return -(-(self.scan.examples + self.scan.skipped) // self.shard_size)

    def active(self, shard: int) -> list[Observer]:
        """The streaming analyses that see this shard (a budget is rounded up to whole shards)."""
        first = shard * self.shard_size
        return [
            a for a in self.streaming if (limit := self.limits[a.name]) is None or first < limit
        ]

    def sampled(self) -> dict[str, int]:
        """The analyses whose budget lets them see only a part, with the number of examples they
        see."""
        streaming = {a.name for a in self.streaming}
        seen = {
            name: -(-limit // self.shard_size) * self.shard_size if name in streaming else limit
            for name, limit in self.limits.items()
            if limit is not None
        }
        return {name: count for name, count in seen.items() if count < len(self.parts[name].rows)}


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
            "model": model.name,
            "lm_kind": model.lm_kind,
            "reads_source": model.encoder_part is not None and model.stack != "encoder",
            "layer_kinds": layer_kinds(model),
            "mask_token": getattr(model.tokenizer, "mask_token_id", None) is not None,
        },
    )


def make_plan(
    model: HeadModel,
    rows: EncodedCorpus,
    analyses: Sequence[Analysis],
    *,
    shard_size: int | None = None,
    full: bool = True,
) -> Plan:
    """Decide what will be done on a corpus that has been read. Fails before any work if nothing is
    left to do.

    Where the corpus lacks what an analysis needs, and a part that comes with it does not, the
    analysis sees that part."""
    parts = [Part(rows, model_shape(model, rows.scan))]
    others = iter(rows.corpus.parts)
    kept: list[Analysis] = []
    seen: dict[str, Part] = {}
    dropped: dict[str, Mapping[str, str]] = {}
    failures: dict[str, Failure] = {}
    for analysis in analyses:
        if not isinstance(analysis, Observer | Experiment):
            raise ParameterError(
                f"'{analysis.name}' is neither an Observer nor an Experiment; make it one of them."
            )
        while all(analysis.requires - part.shape.annotations for part in parts):
            other = next(others, None)
            if other is None:
                break
            read = EncodedCorpus(other, model.encoder)
            parts.append(Part(read, model_shape(model, read.scan)))
        part = next(
            (part for part in parts if analysis.requires <= part.shape.annotations), parts[0]
        )
        try:
            items = _unfit(analysis, part.shape, model.stack == "cross")
        except Exception as error:
            failures[analysis.name] = Failure.of(analysis.name, error)
            continue
        if items:
            dropped[analysis.name] = MappingProxyType(items)
        if "" not in items:
            kept.append(analysis.planned(part.shape))
            seen[analysis.name] = part
    if failures and not kept:
        raise UnexpectedError(*failures.values())
    if not kept:
        reasons = "; ".join(f"{name}: {items['']}" for name, items in dropped.items())
        raise MissingAnnotationError(
            f"None of the analyses can run on '{rows.corpus.name}' ({reasons})."
        )
    limits = MappingProxyType(
        {a.name: None if full else a.max_examples(seen[a.name].shape) for a in kept}
    )
    return Plan(
        analyses=tuple(kept),
        shape=parts[0].shape,
        scan=rows.scan,
        dropped=MappingProxyType(dropped),
        limits=limits,
        shard_size=shard_size
        or (SHARD_SIZE if relative_cost(parts[0].shape) < COSTLY else SHARD_SIZE // 2),
        parts=MappingProxyType(seen),
        failures=MappingProxyType(failures),
    )


def _unfit(analysis: Analysis, shape: Shape, cross: bool) -> dict[str, str]:
    """What of an analysis cannot be computed, with the reason; all of it under the name ""."""
    refusal = missing_annotation_reason(analysis.requires, shape) or analysis.unsupported_reason(
        shape
    )
    if cross and not analysis.cross:
        refusal = "it looks from a text to itself, and cross-attention from a target to its source"
    return {"": refusal} if refusal else dict(analysis.missing_items(shape))
