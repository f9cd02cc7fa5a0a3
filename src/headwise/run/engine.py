"""The one loop everything goes through: a model runs over batches while analyses watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from headwise.analyses.contract import Observer
from headwise.core.failures import Failure
from headwise.models import HeadModel
from headwise.models.gradients import stream_gradients
from headwise.models.statistics import StatsRequest, StatsResult, can_join, join_layers
from headwise.models.view import AttentionRows, Layer, Watcher
from headwise.run.clock import SEEN, stage
from headwise.stats.accumulators import State
from headwise.text.encode import Batch, documents_of

GRADIENT_TOKENS = 1024  # tokens run at once where gradients are kept
WAITING_BYTES = {
    "cpu": 0,
    "cuda": 256 * 2**20,
}  # answers of layers that wait to be settled together
MAPS_BYTES = 5 * 2**28  # all maps of one micro-batch, for analyses that look at whole examples


Failures = dict[str, Failure]  # by analysis


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was short, which smaller batches may mend."""
    said = ("not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in said
    )


def record_failure(analysis: Observer, error: Exception, failed: Failures | None) -> None:
    """Note that an analysis failed, so that the others go on without it; with nowhere to note it,
    it is raised."""
    if failed is None or is_out_of_memory(error):
        raise error
    failed[analysis.name] = Failure.of(analysis.name, error)


def _by_layer(value: Tensor, layers: int) -> Tensor:
    """What was settled for several layers at once, `[example, layer, head, ...]`; what has no
    heads, 1 for both."""
    if value.shape[1] == 1:
        return value[:, None]
    return value.reshape(len(value), layers, value.shape[1] // layers, *value.shape[2:])


Settled = tuple[slice, Mapping[str, Tensor]]


def _joined(settled: Sequence[Settled]) -> list[Settled]:
    """What was settled of layers that follow each other, as if at once: taking in many layers costs
    little more than taking in one."""
    groups: list[list[Settled]] = []
    for layers, sums in settled:
        own = (
            layers,
            {name: _by_layer(value, layers.stop - layers.start) for name, value in sums.items()},
        )
        if groups and _follows(groups[-1][-1], own):
            groups[-1].append(own)
        else:
            groups.append([own])
    return [group[0] if len(group) == 1 else _joint(group) for group in groups]


def _follows(one: Settled, other: Settled) -> bool:
    shapes = [{name: value.shape[2:] for name, value in sums.items()} for _, sums in (one, other)]
    return one[0].stop == other[0].start and shapes[0] == shapes[1]


def _joint(group: Sequence[Settled]) -> Settled:
    def all_layers(name: str) -> Tensor:
        parts = [
            sums[name].expand(-1, layers.stop - layers.start, *sums[name].shape[2:])
            for layers, sums in group
        ]
        return torch.cat(parts, dim=1)

    return slice(group[0][0].start, group[-1][0].stop), {
        name: all_layers(name) for name in group[0][1]
    }


class Maps(Watcher):
    """Keeps the maps of a batch, `maps[example, layer, head, row, key]`, and what their rows see;
    or those of some rows, which are asked for, so that a GPU forms no others.

    They go at once where they stay: two copies would not fit.
    """

    def __init__(self, batch: Batch, layers: int, wanted: Tensor | None = None) -> None:
        self.needs = frozenset({"attention"} if wanted is None else ())
        self.request = None if wanted is None else StatsRequest(rows={"wanted": wanted})
        self._size = batch.ids.shape[1] if wanted is None else len(wanted), batch.keys.ids.shape[1]
        self._layers = layers
        self.maps = self.visible = torch.empty(0)

    def on_rows(self, rows: AttentionRows) -> None:
        self._keep(rows.layer, slice(rows.start, rows.stop), rows.weights, rows.visible)

    def on_statistics(self, result: StatsResult) -> None:
        self._keep(result.layer, slice(None), *result.rows["wanted"])

    def _keep(self, layer: int, rows: slice, weights: Tensor, visible: Tensor) -> None:
        if not self.maps.numel():
            examples, heads = weights.shape[:2]
            self.maps = weights.new_empty(examples, self._layers, heads, *self._size)
            self.visible = visible.new_empty(examples, self._layers, 1, *self._size)
        self.maps[:, layer, :, rows] = weights
        self.visible[:, layer, :, rows] = visible[:, :1]


class Observation:
    """Watches one batch for several analyses: adds up what each makes of rows or answers, and hands
    the sums on to `observe` once a layer is done. One that fails is noted in `failed` and asked no
    more."""

    def __init__(
        self,
        analyses: Sequence[Observer],
        states: Mapping[str, State],
        batch: Batch,
        layers: int,
        failed: Failures | None = None,
    ) -> None:
        self.states = states
        self.batch = batch
        self._failed = failed
        self.by_layer = [a for a in analyses if a.scope == "layer"]
        self.whole = [a for a in analyses if a.scope == "example"]
        asks: dict[str, StatsRequest | None] = {}
        self._each(self.by_layer, lambda a: asks.update({a.name: a.request(batch)}))
        self.asking = [a for a in self.by_layer if asks[a.name] is not None]
        self.reducing = [a for a in self.by_layer if asks[a.name] is None]
        self.request = StatsRequest.merge([ask for ask in asks.values() if ask is not None])
        self.needs = frozenset().union(*(a.taps for a in (*self.reducing, *self.whole)))
        self.needs = self.needs.union(*(a.taps - {"attention"} for a in self.asking)) - {
            "attention_gradient"
        }
        self._sums: dict[str, dict[str, Tensor]] = {}
        self._waiting: list[StatsResult] = []
        self._settled: dict[str, list[Settled]] = {}
        self._looked: dict[str, dict[int, Mapping[str, Tensor]]] = {}
        self._maps = Maps(batch, layers)

    def _each(self, analyses: list[Observer], call: Callable[[Observer], None]) -> None:
        """Call something for each of them; those that fail leave the list."""
        for analysis in list(analyses):
            try:
                with stage(analysis.name):
                    call(analysis)
            except Exception as error:  # it may fail in any way
                record_failure(analysis, error, self._failed)
                analyses.remove(analysis)

    def on_rows(self, rows: AttentionRows) -> None:
        self._each(
            self.reducing,
            lambda a: _add(self._sums.setdefault(a.name, {}), a.reduce_rows(rows, self.batch)),
        )
        if self.whole:
            self._maps.on_rows(rows)

    def on_statistics(self, result: StatsResult) -> None:
        if self._waiting and not can_join(self._waiting[-1], result):
            self._settle()
        self._waiting.append(result)
        if result.nbytes * len(self._waiting) >= WAITING_BYTES[result.n_visible.device.type]:
            self._settle()

    def _settle(self) -> None:
        """Let the analyses make sums of the answers that wait: many layers at once, a GPU takes as
        long for one."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        layers, together = slice(waiting[0].layer, waiting[-1].layer + 1), join_layers(waiting)

        def settle(analysis: Observer) -> None:
            sums = analysis.reduce(together, self.batch)
            self._settled.setdefault(analysis.name, []).append((layers, sums))

        self._each(self.asking, settle)

    def on_layer(self, layer: Layer) -> None:
        self._each(
            self.reducing,
            lambda a: a.observe(self.states[a.name], self._sums.pop(a.name, {}), layer, self.batch),
        )

        def look(analysis: Observer) -> None:
            if seen := analysis.read_layer(layer, self.batch):
                self._looked.setdefault(analysis.name, {})[layer.layer] = seen

        self._each(self.asking, look)

    def _seen_by(self, analysis: Observer, layers: slice) -> dict[str, Tensor]:
        """What it took of these layers themselves, `[example, layer, head, ...]`."""
        own = self._looked.get(analysis.name, {})
        seen = [own.get(layer, {}) for layer in range(layers.start, layers.stop)]
        return {name: torch.stack([one[name] for one in seen], dim=1) for name in seen[0]}

    def close(self) -> None:
        """Hand on what is ready only after the pass: sums of answers (so that a GPU is not waited
        for layer by layer), and all maps of the batch, to the analyses that want them together."""

        self._settle()

        def observe(analysis: Observer) -> None:
            for layers, sums in _joined(self._settled.pop(analysis.name, [])):
                analysis.update(
                    self.states[analysis.name],
                    {**sums, **self._seen_by(analysis, layers)},
                    layers,
                    self.batch,
                )

        self._each(self.asking, observe)
        if self.whole:
            maps, visible = self._maps.maps, self._maps.visible
            self._each(
                self.whole,
                lambda a: a.observe_example(self.states[a.name], maps, visible, self.batch),
            )


def observe_batch(
    model: HeadModel,
    batch: Batch,
    analyses: Sequence[Observer],
    states: Mapping[str, State],
    block_rows: int | None = None,
    failed: Failures | None = None,
) -> None:
    """Run one batch once and let every analysis see it; those of gradients get a second,
    differentiated run.

    One that fails unexpectedly is noted in `failed` and asked no more, its state is not to be used;
    without `failed` what it raised is raised."""
    streaming = [
        a for a in analyses if "attention_gradient" not in a.taps and a.name not in (failed or {})
    ]
    if streaming:
        for part in _parts(model, batch, streaming):
            left = [a for a in streaming if a.name not in (failed or {})]
            for analysis in left:
                states[analysis.name].of(documents_of(part.rows))
            apart = [a for a in left if _by_rows(model, part, a)]
            together = [a for a in left if a not in apart]
            if together:
                observation = Observation(together, states, part, model.layers, failed)
                model.forward(part, observation, block_rows=block_rows)
                observation.close()
            if apart:
                observe_rows(model, part, apart, states, failed)
            part.forget()
    for analysis in analyses:
        if "attention_gradient" in analysis.taps and analysis.name not in (failed or {}):
            try:
                with stage(analysis.name):
                    observe_gradients(model, batch, analysis, states[analysis.name], block_rows)
            except Exception as error:
                record_failure(analysis, error, failed)
    if (seen := SEEN.get()) is not None:
        seen(len(batch))


def _by_rows(model: HeadModel, batch: Batch, analysis: Observer) -> bool:
    """Whether an analysis that looks at whole examples gets the rows of this one apart: it is too
    long otherwise."""
    size = (
        len(batch) * model.layers * model.heads * batch.ids.shape[1] * batch.keys.ids.shape[1] * 4
    )
    can = type(analysis).observe_rows is not Observer.observe_rows
    return analysis.scope == "example" and can and size > MAPS_BYTES


def observe_rows(
    model: HeadModel,
    batch: Batch,
    analyses: Sequence[Observer],
    states: Mapping[str, State],
    failed: Failures | None = None,
) -> None:
    """Show one example that is too long to be held whole some of its rows at a time, of all layers:
    as many passes as that takes. An analysis that draws a sample of rows is shown no others."""
    at_once = max(1, MAPS_BYTES // (model.layers * model.heads * batch.keys.ids.shape[1] * 4))
    for analysis in analyses:
        try:
            wanted = analysis.rows_wanted(batch, at_once)
            for rows in torch.split(wanted, at_once):
                kept = Maps(batch, model.layers, rows.sort().values.to(batch.ids.device))
                model.forward(batch, kept)
                with stage(analysis.name):
                    analysis.observe_rows(
                        states[analysis.name], kept.maps, kept.visible, batch, len(wanted)
                    )
        except Exception as error:
            record_failure(analysis, error, failed)


def _parts(model: HeadModel, batch: Batch, analyses: Sequence[Observer]) -> list[Batch]:
    """The batch, or pieces of it where all maps of all its examples together would take too much
    memory."""
    if all(a.scope == "layer" for a in analyses):
        return [batch]
    at_once = max(1, MAPS_BYTES // (model.layers * model.heads * batch.ids.shape[1] ** 2 * 4))
    return _cut(batch, at_once)


def _cut(batch: Batch, at_once: int) -> list[Batch]:
    """The batch in pieces of at most so many examples."""
    if at_once >= len(batch):
        return [batch]
    return [
        batch.select(range(i, min(i + at_once, len(batch)))) for i in range(0, len(batch), at_once)
    ]


def _add(totals: dict[str, Tensor], parts: Mapping[str, Tensor]) -> None:
    for key, value in parts.items():
        totals[key] = totals[key] + value if key in totals else value


def observe_gradients(
    model: HeadModel, batch: Batch, analysis: Observer, state: State, block_rows: int | None = None
) -> None:
    """Run a batch with its loss and hand the gradients to one analysis, a few examples at a time:
    all layers and all scores over the vocabulary are held at once."""
    for part in _cut(batch, max(1, GRADIENT_TOKENS // batch.ids.shape[1])):
        inputs, loss = analysis.prepare(part, model)
        if len(inputs) < len(part):
            analysis.skip(state, len(part) - len(inputs))
        if not len(inputs):
            continue
        sums: dict[int, dict[str, Tensor]] = {}

        def take(
            rows: AttentionRows, inputs: Batch = inputs, sums: dict[int, dict[str, Tensor]] = sums
        ) -> None:
            _add(sums.setdefault(rows.layer, {}), analysis.reduce_rows(rows, inputs))

        stream_gradients(model, inputs, loss, take, block_rows=block_rows)
        state.of(documents_of(inputs.rows))
        for layer, totals in sorted(sums.items()):
            analysis.observe(state, totals, Layer(layer), inputs)
        inputs.forget()


def observe_batches(
    model: HeadModel,
    batches: Iterable[Batch],
    analyses: Sequence[Observer],
    states: Mapping[str, State],
    block_rows: int | None = None,
    failed: Failures | None = None,
) -> Mapping[str, State]:
    """The states after these batches; `states` has one for each analysis, and is what grows. See
    `observe_batch`."""
    for batch in batches:
        observe_batch(model, batch, analyses, states, block_rows, failed)
    return states
