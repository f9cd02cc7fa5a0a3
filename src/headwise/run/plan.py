"""Before any work: which analyses apply to this model and corpus, and how the corpus is split into
shards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from headwise.analyses.contract import Analysis, Experiment, Observer, Shape, relative_cost
from headwise.analyses.items import PARSED_ANNOTATIONS, missing_annotation_reason
from headwise.core.errors import MissingAnnotationError, ParameterError
from headwise.core.failures import Failure, UnexpectedError
from headwise.models import HeadModel
from headwise.models.fallbacks import forms_weights
from headwise.models.sizes import has_rotary_positions, layer_kinds
from headwise.run.encoded import CorpusScan, EncodedCorpus
from headwise.text import Corpus

SHARD_SIZE = 64
WHOLE_ANALYSIS = ""  # the item that is left out where all of an analysis is
COSTLY = 4.0  # times the cost of an example in BERT from which on shards are half as large


@dataclass(frozen=True, slots=True, eq=False)
class CorpusPart:
    """A corpus, or a part of one, as rows, and what analyses may know of the model on it."""

    rows: EncodedCorpus
    shape: Shape

    @property
    def name(self) -> str:
        return self.rows.corpus.name


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: the analyses that apply, and what is left out with the reason.

    Attributes
    ----------
    analyses : tuple of Analysis
        Those that apply.
    shape : Shape
        What analyses may know of the model on the corpus.
    scan : CorpusScan
        What the corpus holds.
    left_out : mapping
        What is not computed: analysis to item to reason; the item `WHOLE_ANALYSIS` stands for all
        of the analysis. `_left_out` below decides it before any work, from what each analysis says
        of itself (`requires`, `unsupported_reason`, `missing_items`); what turns out later
        (`unmatched`, an error of the user in a result) `Run` adds to the atlas.
    limits : mapping of str to int or None
        The budget of each analysis: how many examples it reads at most.
    shard_size : int
        Examples of a shard.
    parts : mapping of str to CorpusPart
        What each analysis reads: the corpus, or the first part of it with the annotation it needs.
    failures : mapping of str to Failure
        Analyses that failed while the plan was made.
    """

    analyses: tuple[Analysis, ...]
    shape: Shape
    scan: CorpusScan
    left_out: Mapping[str, Mapping[str, str]]
    limits: Mapping[str, int | None]
    shard_size: int
    parts: Mapping[str, CorpusPart]
    failures: Mapping[str, Failure] = field(default_factory=dict)

    @property
    def elsewhere(self) -> dict[str, list[str]]:
        """The analyses that read a part instead of the corpus itself, by the name of the part."""
        by_part: dict[str, list[str]] = {}
        for name, part in self.parts.items():
            if part.rows.scan is not self.scan:
                by_part.setdefault(part.name, []).append(name)
        return by_part

    @property
    def streaming(self) -> tuple[Observer, ...]:
        """The analyses that observe the model's pass."""
        return tuple(a for a in self.analyses if isinstance(a, Observer))

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """The analyses that run the model themselves."""
        return tuple(a for a in self.analyses if isinstance(a, Experiment))

    def together(self, apart: Collection[str]) -> list[tuple[CorpusPart, list[Observer]]]:
        """Return each part with the observers that share one pass over it, without those named in
        `apart`."""
        shared = [observer for observer in self.streaming if observer.name not in apart]
        passes = []
        for part in dict.fromkeys(self.parts.values()):
            observers = [observer for observer in shared if self.parts[observer.name] is part]
            passes.append((part, observers))
        return passes

    @property
    def shards(self) -> int:
        """The number of shards of the corpus."""
        n_examples = self.scan.examples + self.scan.skipped
        return -(-n_examples // self.shard_size)

    def active(self, shard: int) -> list[Observer]:
        """Return the observers that read a shard; a budget is rounded up to whole shards."""
        first_example = shard * self.shard_size
        active = []
        for observer in self.streaming:
            limit = self.limits[observer.name]
            if limit is None or first_example < limit:
                active.append(observer)
        return active

    def sampled(self) -> dict[str, int]:
        """Return the analyses whose budget covers only a part of the corpus, with the number of
        examples they read."""
        observers = {observer.name for observer in self.streaming}
        sampled = {}
        for name, limit in self.limits.items():
            if limit is None:
                continue
            n_read = limit
            if name in observers:
                n_read = -(-limit // self.shard_size) * self.shard_size
            if n_read < len(self.parts[name].rows):
                sampled[name] = n_read
        return sampled


def model_shape(model: HeadModel, scan: CorpusScan) -> Shape:
    """Return what analyses may know of this model on this corpus."""
    return Shape(
        layers=model.layers,
        heads=model.heads,
        d_head=model.d_head,
        hidden=model.hidden,
        causal=model.causal,
        max_length=scan.longest,
        token_types=model.encoder.token_types,
        annotations=scan.annotations,
        relations=scan.relations,
        kv_groups=tuple(model.kv_groups),
        extras={
            "model": model.name,
            "lm_kind": model.lm_kind,
            "reads_source": model.encoder_part is not None and model.stack != "encoder",
            "layer_kinds": layer_kinds(model),
            "vocabulary": _vocabulary(model),
            "layer_weights": _layer_weights(model),
            "rotary": has_rotary_positions(model),
            "forms_weights": any(map(forms_weights, model.sites.by_module)),
            "mask_token": getattr(model.tokenizer, "mask_token_id", None) is not None,
        },
    )


def _layer_weights(model: HeadModel) -> int:
    """Return how many weights the matrices of a layer have, on average; 0 if it is not known."""
    n_weights = 0
    # Layers that share their weights are one entry.
    for entry in model.sites.entries:
        for parameter in entry.parameters():
            if parameter.ndim == 2:
                n_weights += parameter.numel()
    return n_weights // max(len(model.sites.entries), 1)


def _vocabulary(model: HeadModel) -> int:
    """Return how many logits the model computes for a token; 0 without a language-modelling
    head."""
    if not model.has_lm_head:
        return 0
    return int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)


class _Parts:
    """The corpus and its parts; a part is read and encoded only when an analysis needs it."""

    def __init__(self, model: HeadModel, rows: EncodedCorpus) -> None:
        self.model = model
        self.read = [CorpusPart(rows, model_shape(model, rows.scan))]
        self._unread: Iterator[Corpus] = iter(rows.corpus.parts)

    def with_annotations(self, required: frozenset[str]) -> CorpusPart:
        """Return the first part that has what is required; the corpus itself if none has."""
        for part in self.read:
            if required <= part.shape.annotations:
                return part
        for corpus in self._unread:
            rows = EncodedCorpus(corpus, self.model.encoder)
            part = CorpusPart(rows, model_shape(self.model, rows.scan))
            self.read.append(part)
            if required <= part.shape.annotations:
                return part
        return self.read[0]


def make_plan(
    model: HeadModel,
    rows: EncodedCorpus,
    analyses: Sequence[Analysis],
    *,
    shard_size: int | None = None,
    full: bool = True,
) -> Plan:
    """Return what will be done on a corpus that has been read; raise an error if nothing applies.

    Where the corpus lacks the annotation that an analysis needs, and a part that comes with it does
    not, the analysis reads that part.

    Parameters
    ----------
    model : HeadModel
        The model.
    rows : EncodedCorpus
        The corpus.
    analyses : sequence of Analysis
        What is asked for.
    shard_size : int, optional
        Examples of a shard; by default 64, or 32 for a model whose examples are costly.
    full : bool, default True
        Every analysis reads every example; otherwise each keeps to its budget.
    """
    parts = _Parts(model, rows)
    applicable: list[Analysis] = []
    part_of: dict[str, CorpusPart] = {}
    left_out: dict[str, Mapping[str, str]] = {}
    failures: dict[str, Failure] = {}
    parser_helps = False
    for analysis in analyses:
        if not isinstance(analysis, Observer | Experiment):
            raise ParameterError(
                f"'{analysis.name}' is neither an Observer nor an Experiment; make it one of them."
            )
        part = parts.with_annotations(analysis.requires)
        try:
            reasons = _left_out(analysis, part.shape, model.stack == "cross")
        except Exception as error:
            failures[analysis.name] = Failure.of(analysis.name, error)
            continue
        if reasons:
            left_out[analysis.name] = MappingProxyType(reasons)
            missing = analysis.requires - part.shape.annotations
            if missing and missing <= PARSED_ANNOTATIONS:
                parser_helps = True
        if WHOLE_ANALYSIS not in reasons:
            applicable.append(analysis.planned(part.shape))
            part_of[analysis.name] = part
    if failures and not applicable:
        raise UnexpectedError(*failures.values())
    if not applicable:
        causes = []
        for name, items in left_out.items():
            causes.append(f"{name}: {items[WHOLE_ANALYSIS]}")
        raise MissingAnnotationError(
            f"None of the analyses can run on '{rows.corpus.name}' ({'; '.join(causes)}).",
            option="parser" if parser_helps else None,
        )

    limits: dict[str, int | None] = {}
    for analysis in applicable:
        limits[analysis.name] = None
        if not full:
            limits[analysis.name] = analysis.max_examples(part_of[analysis.name].shape)
    shape = parts.read[0].shape
    if shard_size is None:
        shard_size = SHARD_SIZE
        # Budgets are rounded up to whole shards: those of costly models stay small this way.
        if relative_cost(shape) >= COSTLY:
            shard_size = SHARD_SIZE // 2
    return Plan(
        analyses=tuple(applicable),
        shape=shape,
        scan=rows.scan,
        left_out=MappingProxyType(left_out),
        limits=MappingProxyType(limits),
        shard_size=shard_size,
        parts=MappingProxyType(part_of),
        failures=MappingProxyType(failures),
    )


def _left_out(analysis: Analysis, shape: Shape, cross: bool) -> dict[str, str]:
    """Return the items of an analysis that cannot be computed, each with the reason."""
    if analysis.requires <= shape.annotations:
        reason = analysis.unsupported_reason(shape)
    else:
        reason = missing_annotation_reason(analysis.requires, shape)
    if cross and not analysis.cross:
        reason = "it is defined for self-attention, and this is the cross-attention of a decoder"
    if reason:
        return {WHOLE_ANALYSIS: reason}
    return dict(analysis.missing_items(shape))
