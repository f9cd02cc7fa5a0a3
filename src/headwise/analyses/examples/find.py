"""Search the rows of a corpus on which one head meets a condition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from headwise.analyses.roles.sieves import find_sieve, sieve_matrix
from headwise.analyses.roles.sieves.registry import Sieve
from headwise.core.errors import ParameterError
from headwise.core.labels import existing_heads
from headwise.models import HeadModel
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Encoded, batches
from headwise.text.example import Example

# Examples run together: few, so that the first hits come soon.
EXAMPLES_AT_ONCE = 16
BATCH_TOKENS = 4096

# Tokens of context on each side of a marked token.
CONTEXT_TOKENS = 8
GAP = -1

# Weights below this are rounding: a search with `above=0` does not return them.
MIN_WEIGHT = 1e-12


@dataclass(frozen=True, slots=True)
class RowCondition:
    """Condition on a row: a weight of at least `above` from its query to a matching key.

    Parameters
    ----------
    above : float, default 0.5
        The lowest weight.
    role : str, optional
        A role (`induction`, `nsubj`, `relation:det`, ...) that query and key must have.
    token : str, optional
        The text of the key's token, without spaces around it.
    query : str, optional
        The text of the query's token.
    sink : bool, default False
        Also match the first token, the attention sink of many heads.
    """

    above: float = 0.5
    role: str = ""
    token: str = ""
    query: str = ""
    sink: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.above <= 1:
            raise ParameterError(f"`above` must be between 0 and 1; it is {self.above!r}.")
        if self.role:
            find_sieve(self.role)  # raises for an unknown role

    def matches(self, weights: np.ndarray, row: Encoded, sieve: Sieve | None) -> np.ndarray:
        """Return which pairs of an example match, bool `[query, key]`."""
        matching = weights >= max(self.above, MIN_WEIGHT)
        matching[:, 0] &= self.sink
        if sieve is not None:
            matching &= sieve_matrix(sieve, row)
        if self.token:
            matching &= _tokens_equal(row, self.token)[None, :]
        if self.query:
            matching &= _tokens_equal(row, self.query)[:, None]
        return matching


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching row: where it is, its text with «query» and ⟦key⟧ marked, and the weight."""

    where: str
    text: str
    query: int
    key: int
    weight: float


class HeadMapWatcher(Watcher):
    """Collects the map of one head during a forward pass."""

    needs = frozenset({"attention"})

    def __init__(self, layer: int, head: int) -> None:
        self.layer = layer
        self.head = head
        self._blocks: list[np.ndarray] = []

    def on_rows(self, rows: AttentionRows) -> None:
        if rows.layer == self.layer:
            self._blocks.append(rows.weights[:, self.head].cpu().numpy())

    @property
    def map(self) -> np.ndarray:
        """The weights `[example, query, key]`."""
        return np.concatenate(self._blocks, axis=1)


def find_rows(
    model: HeadModel,
    corpus: Iterable[Example],
    head: str,
    condition: RowCondition = RowCondition(),
) -> Iterator[Hit]:
    """Yield the rows on which a head meets a condition, in the order of the corpus.

    For each query only the matching key with the largest weight is returned.

    Parameters
    ----------
    model : HeadModel
        The model.
    corpus : iterable of Example
        Where to search; read only as far as hits are requested.
    head : str
        `L5H1`.
    condition : RowCondition, optional
        What a row must be like.

    Examples
    --------
    >>> from headwise import HeadModel, open_corpus
    >>> hits = find_rows(HeadModel.open(), open_corpus(limit=4), "L0H2", RowCondition(above=0.3))
    >>> all(hit.weight >= 0.3 for hit in hits)
    True
    """
    ((layer, head_number),) = existing_heads([head], model.layers, model.heads)
    sieve = find_sieve(condition.role) if condition.role else None
    numbered_examples = enumerate(corpus)
    while block := list(islice(numbered_examples, EXAMPLES_AT_ONCE)):
        rows = []
        for index, example in block:
            row = model.encoder.encode(example, index)
            if row is not None:
                rows.append(row)
        hits: dict[int, list[Hit]] = {}
        for batch in batches(rows, BATCH_TOKENS, model.pad_id, model.device):
            watcher = HeadMapWatcher(layer, head_number)
            model.forward(batch, watcher)
            for row, padded_weights in zip(batch.rows, watcher.map, strict=True):
                weights = padded_weights[: len(row), : len(row)]
                matching = condition.matches(weights, row, sieve)
                hits[row.index] = _hits_of(model, row, weights, matching)
        # Batches are made by length: return hits in the order of the corpus.
        for row in rows:
            yield from hits[row.index]


def _tokens_equal(row: Encoded, text: str) -> np.ndarray:
    """Return which tokens of a row have this text, bool `[token]`."""
    return np.array([piece == text for piece in row.pieces])


def _hits_of(
    model: HeadModel, row: Encoded, weights: np.ndarray, matching: np.ndarray
) -> list[Hit]:
    """Return the best matching key of each query of an example."""
    hits = []
    for query in np.flatnonzero(matching.any(1)).tolist():
        key = int(np.where(matching[query], weights[query], -1).argmax())
        text = marked_text(model, row, query, key)
        hits.append(Hit(row.example.where, text, query, key, float(weights[query, key])))
    return hits


# --- text with marks ----------------------------------------------------------------------------


def marked_text(model: HeadModel, row: Encoded, query: int, key: int) -> str:
    """Return the text around query and key with «query» and ⟦key⟧ marked; a token that is both has
    both marks."""
    ids = row.ids.tolist()
    start = max(min(query, key) - CONTEXT_TOKENS, 0)
    stop = min(max(query, key) + CONTEXT_TOKENS + 1, len(ids))
    parts: list[str] = []
    unmarked_ids: list[int] = []

    def flush_unmarked() -> None:
        if unmarked_ids:
            parts.append(model.tokenizer.decode(unmarked_ids))
            unmarked_ids.clear()

    for position in _shown_positions(query, key, start, stop):
        if position == GAP:
            flush_unmarked()
            parts.append(" … ")
        elif position in (query, key):
            flush_unmarked()
            text = model.tokenizer.decode([ids[position]])
            space = _leading_space(text)
            if not space and parts and model.encoder.splits_words:
                space = " "
            parts.append(space + _mark(text.strip(), position == query, position == key))
        else:
            unmarked_ids.append(ids[position])
    flush_unmarked()

    text = " ".join(_join_parts(parts, model.encoder.splits_words).split())
    if start > 0:
        text = f"… {text}"
    if stop < len(ids):
        text = f"{text} …"
    return text


def _shown_positions(query: int, key: int, start: int, stop: int) -> list[int]:
    """Return the positions to show, with GAP between query and key if they are far apart."""
    if abs(query - key) <= 4 * CONTEXT_TOKENS:
        return list(range(start, stop))
    first = min(query, key)
    second = max(query, key)
    around_first = range(start, first + CONTEXT_TOKENS + 1)
    around_second = range(second - CONTEXT_TOKENS, stop)
    return [*around_first, GAP, *around_second]


def _mark(text: str, is_query: bool, is_key: bool) -> str:
    if is_key:
        text = f"⟦{text}⟧"
    if is_query:
        text = f"«{text}»"
    return text


def _leading_space(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _join_parts(parts: Sequence[str], splits_words: bool) -> str:
    """Join decoded parts, with a space where the tokenizer writes none."""
    joined = ""
    for number, part in enumerate(parts):
        needs_space = (
            number > 0
            and splits_words
            and not part[:1].isspace()
            and not parts[number - 1].endswith(" ")
        )
        joined += f" {part}" if needs_space else part
    return joined
