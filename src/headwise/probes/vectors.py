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


def read_vectors(path: str | Path, words: Collection[str]) -> dict[str, np.ndarray]:
    """Read the vectors of some words from a file, by lower-cased word.

    Words that the file lacks are absent. If a file has a word in several capitalisations, the
    lower-cased one counts, else the first.

    Parameters
    ----------
    path : str or Path
        An `.npz` with `words` and `vectors[word, size]`, or text with a word and its numbers in
        each line (GloVe's format, also `.gz`, `.xz`, `.bz2`, `.zst`).
    words : collection of str
        Only these are kept, so that a large file does not fill the memory.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file of word vectors '{path}'; check the path.")
    needed = {word.lower() for word in words}
    vectors: dict[str, np.ndarray] = {}
    has_lower_case: set[str] = set()
    entries = _read_npz(path) if path.suffix == ".npz" else _read_text(path)
    for word, vector in entries:
        name = word.lower()
        if name not in needed or name in has_lower_case:
            continue
        if name not in vectors or word == name:
            vectors[name] = np.asarray(vector, dtype=np.float32)
        if word == name:
            has_lower_case.add(name)
    if not vectors:
        raise InputError(
            f"{path}: it has no vector for any word of the corpus; check its language and format."
        )
    return vectors


def _read_npz(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            words = file["words"]
            vectors = file["vectors"]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path}: word vectors in .npz need the arrays `words` and `vectors` ({error})."
        ) from error
    if vectors.ndim != 2 or len(words) != len(vectors):
        raise InputError(
            f"{path}: `vectors` must have one row for each of {len(words)} words; its shape is "
            f"{list(vectors.shape)}."
        )
    yield from zip(map(str, words), vectors, strict=True)


def _read_text(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    size = 0
    for number, line in on_disk(path).lines():
        word, _, rest = line.partition(" ")
        columns = rest.split(" ")
        if number == 1 and len(columns) == 1:
            continue  # word2vec's first line: number of words, size of vectors
        size = size or len(columns)
        if len(columns) != size:
            raise InputError(
                f"{path}, line {number}: a word with {len(columns)} numbers; the lines before have "
                f"{size}."
            )
        try:
            yield word, np.array(columns, dtype=np.float32)
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: '{word}' is not followed by numbers ({error})."
            ) from error


class WordVectors:
    """Vectors by word form; a word without one gets the zero vector and lowers `coverage`."""

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.size = len(next(iter(vectors.values())))
        self.vectors = vectors
        self.n_words = 0
        self.n_covered = 0

    def of(self, row: Encoded) -> np.ndarray:
        """Return vectors `[word, size]` of the words of an example."""
        words = row.example.all_words[: row.word_count]
        matrix = np.zeros((len(words), self.size), dtype=np.float32)
        for position, word in enumerate(words):
            vector = self.vectors.get(word.lower())
            if vector is not None:
                matrix[position] = vector
                self.n_covered += 1
        self.n_words += len(words)
        return matrix

    @property
    def coverage(self) -> float:
        """Share of words with a vector; NaN before any word was looked up."""
        return self.n_covered / self.n_words if self.n_words else float("nan")


class InputEmbeddings(WordVectors):
    """The mean of the input embeddings of a word's subwords: every word has a vector."""

    def __init__(self, model: Any) -> None:
        self.table = model.module.get_input_embeddings().weight.detach().float().cpu()
        super().__init__({"": np.zeros(self.table.shape[1])})

    def of(self, row: Encoded) -> np.ndarray:
        n_words = row.word_count
        membership = torch.zeros(n_words, len(row))  # [word, token]: 1 where a token is of a word
        inside = np.flatnonzero(row.word >= 0)
        membership[torch.from_numpy(row.word[inside]), torch.from_numpy(inside)] = 1
        self.n_words += n_words
        self.n_covered += n_words
        embeddings = self.table[torch.from_numpy(row.ids)]
        return np.asarray((membership @ embeddings) / membership.sum(1, keepdim=True).clamp(min=1))
