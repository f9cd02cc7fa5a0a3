"""Fixed word vectors: from GloVe files (text or npz), or from a model's own input embeddings."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.core.errors import InputError
from headwise.text.encode import Encoded
from headwise.text.readers.files import on_disk

MODEL = "model"


def read_vectors(path: str | Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """The vectors of these words (lower-cased) from a file.

    Parameters
    ----------
    path : str or Path
        An `.npz` with `words` and `vectors[word, size]`, or text with a word and its numbers in
        each line (GloVe's format, also `.gz`, `.xz`, `.bz2`, `.zst`).
    wanted : collection of str
        Only these are kept, so that a large file is not held in memory.

    Words the file does not have are absent. Where a file has a word with several capitalisations,
    the lower-cased one counts, else the first."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file of word vectors '{path}'; check the path.")
    needed = {word.lower() for word in wanted}
    found: dict[str, np.ndarray] = {}
    exact: set[str] = set()
    for word, vector in _npz(path) if path.suffix == ".npz" else _text(path):
        name = word.lower()
        if name in needed and name not in exact and (name not in found or word == name):
            found[name] = np.asarray(vector, dtype=np.float32)
            if word == name:
                exact.add(name)
    if not found:
        raise InputError(
            f"{path}: it has no vector for any word of the corpus; check that its language and format fit."
        )
    return found


def _npz(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            words, vectors = file["words"], file["vectors"]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path}: word vectors in .npz need the arrays `words` and `vectors` ({error})."
        ) from error
    if vectors.ndim != 2 or len(words) != len(vectors):
        raise InputError(
            f"{path}: `vectors` must have one row for each of {len(words)} words; its shape is {list(vectors.shape)}."
        )
    yield from zip(map(str, words), vectors, strict=True)


def _text(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    size = 0
    for number, line in on_disk(path).lines():
        word, _, rest = line.partition(" ")
        parts = rest.split(" ")
        if number == 1 and len(parts) == 1:
            continue  # word2vec's first line: how many words, how many numbers
        size = size or len(parts)
        if len(parts) != size:
            raise InputError(
                f"{path}, line {number}: a word with {len(parts)} numbers, where the lines before have {size}."
            )
        try:
            yield word, np.array(parts, dtype=np.float32)
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: '{word}' is not followed by numbers ({error})."
            ) from error


class WordVectors:
    """Vectors by word form; a word that has none is the zero vector and counts against
    `coverage`."""

    def __init__(self, known: dict[str, np.ndarray]) -> None:
        self.size = len(next(iter(known.values())))
        self.known = known
        self.seen = self.found = 0

    def of(self, row: Encoded) -> np.ndarray:
        """Vectors `[word, size]` of the words of an example."""
        words = row.example.all_words[: row.word_count]
        out = np.zeros((len(words), self.size), dtype=np.float32)
        for place, word in enumerate(words):
            vector = self.known.get(word.lower())
            if vector is not None:
                out[place] = vector
                self.found += 1
        self.seen += len(words)
        return out

    @property
    def coverage(self) -> float:
        return self.found / self.seen if self.seen else float("nan")


class InputEmbeddings(WordVectors):
    """The mean of the input embeddings of a word's pieces: every word has one."""

    def __init__(self, model: Any) -> None:
        self.table = model.module.get_input_embeddings().weight.detach().float().cpu()
        super().__init__({"": np.zeros(self.table.shape[1])})

    def of(self, row: Encoded) -> np.ndarray:
        count = row.word_count
        member = torch.zeros(count, len(row))
        inside = np.flatnonzero(row.word >= 0)
        member[torch.from_numpy(row.word[inside]), torch.from_numpy(inside)] = 1
        self.seen += count
        self.found += count
        pieces = self.table[torch.from_numpy(row.ids)]
        return np.asarray((member @ pieces) / member.sum(1, keepdim=True).clamp(min=1))
