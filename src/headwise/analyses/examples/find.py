"""Search: the rows of a corpus on which one head does something, streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from headwise.analyses.roles.sieves import find_sieve, sieve_matrix
from headwise.core.errors import ParameterError
from headwise.core.labels import existing_heads
from headwise.models import HeadModel
from headwise.models.view import AttentionRows, Watcher
from headwise.text.encode import Encoded, batches
from headwise.text.example import Example

AT_ONCE = 16  # examples run together: the first hits come soon
REACH = 8  # tokens shown on each side


@dataclass(frozen=True, slots=True)
class Condition:
    """What a row must be like: a weight of at least `above` from its query to a key that fits.

    Parameters
    ----------
    above : float, default 0.5
        The least weight.
    role : str, optional
        A sieve of `roles` (`induction`, `nsubj`, `relation:det`, …) that query and key are in.
    token : str, optional
        The text of the key's token, without spaces around it.
    query : str, optional
        The text of the query's token.
    sink : bool, default False
        Also keys at the first token, where heads rest.
    """

    above: float = 0.5
    role: str = ""
    token: str = ""
    query: str = ""
    sink: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.above <= 1:
            raise ParameterError(f"`above` must lie between 0 and 1; it is {self.above!r}.")
        if self.role:
            find_sieve(self.role)


@dataclass(frozen=True, slots=True)
class Hit:
    """A row that fits: where it stands, its text with «query» and ⟦key⟧ marked, and the weight."""

    where: str
    text: str
    query: int
    key: int
    weight: float


class _Watch(Watcher):
    """Keeps the map of one head."""

    needs = frozenset({"attention"})

    def __init__(self, layer: int, head: int) -> None:
        self.at, self.maps = (layer, head), []  # type: ignore[var-annotated]

    def on_rows(self, rows: AttentionRows) -> None:
        if rows.layer == self.at[0]:
            self.maps.append(rows.weights[:, self.at[1]].cpu().numpy())


def find_rows(
    model: HeadModel,
    corpus: Iterable[Example],
    head: str,
    condition: Condition = Condition(),  # noqa: B008  (frozen)
) -> Iterator[Hit]:
    """Rows on which a head does what is asked, in the order of the corpus; of each query the key
    with most weight.

    Parameters
    ----------
    model : HeadModel
        Whose head.
    corpus : iterable of Example
        Where to look; read as far as hits are taken.
    head : str
        `L5H1`.
    condition : Condition, optional
        What a row must be like.

    Examples
    --------
    >>> from headwise import HeadModel, open_corpus
    >>> hits = find_rows(HeadModel.open(), open_corpus(limit=4), "L0H2", Condition(above=0.3))
    >>> all(hit.weight >= 0.3 for hit in hits)
    True
    """
    ((layer, number),) = existing_heads([head], model.layers, model.heads)
    sieve = find_sieve(condition.role) if condition.role else None
    walk = enumerate(corpus)
    while block := list(islice(walk, AT_ONCE)):
        encoded = (model.encoder.encode(example, index) for index, example in block)
        rows = [row for row in encoded if row is not None]
        found: dict[int, list[Hit]] = {}
        for batch in batches(rows, 4096, model.pad_id, model.device):
            watch = _Watch(layer, number)
            model.forward(batch, watch)
            maps = np.concatenate(watch.maps, axis=1)
            for place, row in enumerate(batch.rows):
                n = len(row)
                own = maps[place, :n, :n]
                fits = own >= max(condition.above, 1e-12)
                fits[:, 0] &= condition.sink
                if sieve is not None:
                    fits &= sieve_matrix(sieve, row)
                for text, axis in ((condition.token, 0), (condition.query, 1)):
                    if text:
                        same = np.array([piece == text for piece in row.pieces])
                        fits &= same[None, :] if axis == 0 else same[:, None]
                found[row.index] = [
                    Hit(row.example.where, marked(model, row, i, j), i, j, float(own[i, j]))
                    for i, j in _best(own, fits)
                ]
        for row in rows:
            yield from found[row.index]


def _best(weights: np.ndarray, fits: np.ndarray) -> Iterator[tuple[int, int]]:
    """For each query with a key that fits, the one with most weight."""
    for i in np.flatnonzero(fits.any(1)).tolist():
        yield i, int(np.where(fits[i], weights[i], -1).argmax())


def marked(model: HeadModel, row: Encoded, query: int, key: int) -> str:
    """The text around query and key, «query» and ⟦key⟧ marked; one token that is both has both
    marks."""
    decode, ids = model.tokenizer.decode, row.ids.tolist()
    low, high = max(min(query, key) - REACH, 0), min(max(query, key) + REACH + 1, len(ids))
    inner = range(low, high)
    if abs(query - key) > 4 * REACH:  # far apart: both surroundings, and a gap between
        near, far = sorted((query, key))
        inner = [*range(low, near + REACH + 1), -1, *range(far - REACH, high)]  # type: ignore[assignment]
    out, plain = [], []  # type: ignore[var-annotated]

    def flush() -> None:
        if plain:
            out.append(decode(plain))
            plain.clear()

    for place in inner:
        if place not in (query, key, -1):
            plain.append(ids[place])
            continue
        flush()
        if place == -1:
            out.append(" … ")
            continue
        text = decode([ids[place]])
        lead = text[: len(text) - len(text.lstrip())] or (
            " " if out and model.encoder.splits_words else ""
        )
        text = text.strip()
        text = f"⟦{text}⟧" if place == key else text
        out.append(lead + (f"«{text}»" if place == query else text))
    flush()
    body = "".join(
        part if part[:1].isspace() or i == 0 else _spaced(out[i - 1], part, model)
        for i, part in enumerate(out)
    )
    return ("… " if low > 0 else "") + " ".join(body.split()) + (" …" if high < len(ids) else "")


def _spaced(before: str, part: str, model: HeadModel) -> str:
    """A space between decoded parts, where the tokenizer writes none of its own."""
    return f" {part}" if model.encoder.splits_words and not before.endswith(" ") else part
