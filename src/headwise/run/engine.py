"""The one loop everything goes through: a model runs over batches while analyses watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from headwise.analyses.contract import Observer
from headwise.models import HeadModel
from headwise.models.ask import Answers, Ask
from headwise.models.view import Layer, Rows
from headwise.stats.accumulators import State
from headwise.text.encode import Batch
from headwise.text.units import documents_of

GRADIENT_TOKENS = 1024  # tokens run at once where gradients are kept
MAPS_BYTES = 2**30  # all maps of one micro-batch, for analyses that look at whole examples


class Observation:
    """Watches one batch for several analyses: adds up what each makes of rows or answers, and hands the sums on to
    `observe` once a layer is done."""

    def __init__(self, analyses: Sequence[Observer], states: Mapping[str, State], batch: Batch) -> None:
        self.states = states
        self.batch = batch
        self.by_layer = [a for a in analyses if a.scope == "layer"]
        self.whole = [a for a in analyses if a.scope == "example"]
        asks = {a.name: a.ask(batch) for a in self.by_layer}
        self.asking = [a for a in self.by_layer if asks[a.name] is not None]
        self.reducing = [a for a in self.by_layer if asks[a.name] is None]
        self.ask = Ask.together([ask for ask in asks.values() if ask is not None])
        self.needs = frozenset().union(*(a.taps for a in (*self.reducing, *self.whole)))
        self.needs = self.needs.union(*(a.taps - {"attention"} for a in self.asking)) - {"attention_gradient"}
        self._sums: dict[str, dict[str, Tensor]] = {}
        self._settled: dict[str, list[tuple[int, Mapping[str, Tensor]]]] = {}
        self._maps: list[Tensor] = []  # of each layer, `[example, head, query, key]`
        self._visible: list[Tensor] = []

    def rows(self, rows: Rows) -> None:
        for analysis in self.reducing:
            _add(self._sums.setdefault(analysis.name, {}), analysis.reduce(rows, self.batch))
        if self.whole:
            self._maps.append(rows.weights)
            self._visible.append(rows.visible)

    def answers(self, answers: Answers) -> None:
        for analysis in self.asking:
            sums = analysis.settle(answers, self.batch)
            self._settled.setdefault(analysis.name, []).append((answers.layer, sums))

    def layer(self, layer: Layer) -> None:
        for analysis in self.reducing:
            analysis.observe(self.states[analysis.name], self._sums.pop(analysis.name, {}), layer, self.batch)
        if self.whole:
            for kept in (self._maps, self._visible):
                blocks = kept[layer.layer :]
                kept[layer.layer :] = [torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]]

    def close(self) -> None:
        """Hand on what is ready only after the pass: sums of answers (so that a GPU is not waited for layer by layer),
        and all maps of the batch, to the analyses that want them together."""
        for analysis in self.asking:
            for layer, sums in self._settled.pop(analysis.name, []):
                analysis.observe(self.states[analysis.name], sums, Layer(layer), self.batch)
        if self.whole:
            maps, visible = torch.stack(self._maps, dim=1), torch.stack(self._visible, dim=1)
            for analysis in self.whole:
                analysis.observe_example(self.states[analysis.name], maps, visible, self.batch)


def observe_batch(
    model: HeadModel,
    batch: Batch,
    analyses: Sequence[Observer],
    states: Mapping[str, State],
    block_rows: int | None = None,
) -> None:
    """Run one batch once and let every analysis see it; those of gradients get a second, differentiated run."""
    streaming = [a for a in analyses if "attention_gradient" not in a.taps]
    if streaming:
        for part in _parts(model, batch, streaming):
            for analysis in streaming:
                states[analysis.name].of(documents_of(part))
            observation = Observation(streaming, states, part)
            model.forward(part, observation, block_rows=block_rows)
            observation.close()
            part.forget()
    for analysis in analyses:
        if "attention_gradient" in analysis.taps:
            observe_gradients(model, batch, analysis, states[analysis.name], block_rows)


def _parts(model: HeadModel, batch: Batch, analyses: Sequence[Observer]) -> list[Batch]:
    """The batch, or pieces of it where all maps of all its examples together would take too much memory."""
    if all(a.scope == "layer" for a in analyses):
        return [batch]
    at_once = max(1, MAPS_BYTES // (model.layers * model.heads * batch.ids.shape[1] ** 2 * 4))
    return _cut(batch, at_once)


def _cut(batch: Batch, at_once: int) -> list[Batch]:
    """The batch in pieces of at most so many examples."""
    if at_once >= len(batch):
        return [batch]
    return [batch.select(range(i, min(i + at_once, len(batch)))) for i in range(0, len(batch), at_once)]


def _add(totals: dict[str, Tensor], parts: Mapping[str, Tensor]) -> None:
    for key, value in parts.items():
        totals[key] = totals[key] + value if key in totals else value


def observe_gradients(
    model: HeadModel, batch: Batch, analysis: Observer, state: State, block_rows: int | None = None
) -> None:
    """Run a batch with its loss and hand the gradients to one analysis, a few examples at a time: all layers and all
    scores over the vocabulary are held at once."""
    for part in _cut(batch, max(1, GRADIENT_TOKENS // batch.ids.shape[1])):
        inputs, loss = analysis.prepare(part, model)
        if not len(inputs):
            continue
        sums: dict[int, dict[str, Tensor]] = {}
        for rows in model.gradients(inputs, loss, block_rows=block_rows):
            _add(sums.setdefault(rows.layer, {}), analysis.reduce(rows, inputs))
        state.of(documents_of(inputs))
        for layer, totals in sums.items():
            analysis.observe(state, totals, Layer(layer), inputs)
        inputs.forget()


def observe_batches(
    model: HeadModel,
    batches: Iterable[Batch],
    analyses: Sequence[Observer],
    states: Mapping[str, State],
    block_rows: int | None = None,
) -> Mapping[str, State]:
    """The states after these batches; `states` has one for each analysis, and is what grows."""
    for batch in batches:
        observe_batch(model, batch, analyses, states, block_rows)
    return states
