"""Words, trees and parts of speech for plain text, by a spaCy pipeline, kept in a cache so that a text is parsed once."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from headwise.core.cache import cache_dir
from headwise.core.errors import InputError, MissingExtraError, ParameterError
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import ROOT, Example
from headwise.text.readers.files import on_disk
from headwise.text.readers.rows import example_of_row, json_rows, row_of_example

CACHE_VERSION = "1"  # to be raised when what is stored for the same text changes
STANFORD = {"dobj", "pobj"}  # relations that only Stanford-like label sets have
ALREADY = "examples with a tree of their own, left as they are"


def annotate(
    corpus: Corpus, pipeline: str | Path | Any, *, batch_size: int = 64, cache: str | Path | None = None
) -> Corpus:
    """The same corpus with words, spans, heads, relations, UPOS, lemmas, features and sentence numbers from a spaCy pipeline.

    Examples of plain text get the pipeline's words as places in the text; examples with words keep them and get a tree over them; examples that have a tree are
    left as they are and counted. The scheme of the relations is `stanford` for pipelines with `dobj` and `pobj` (spaCy's English ones), `ud` otherwise.
    The result is kept as JSON lines in the cache folder, named after the corpus's and the pipeline's fingerprints, and is complete or absent.

    Parameters
    ----------
    pipeline
        The name of an installed spaCy pipeline, its folder, or a pipeline that is loaded already.
    batch_size
        Texts parsed at a time.
    cache
        The cache folder; by default `HEADWISE_CACHE`, or the platform's cache folder for headwise.
    """
    nlp = load_pipeline(pipeline)
    folder = (Path(cache) if cache is not None else cache_dir()) / "annotations"
    scheme = "stanford" if _labels(nlp) >= STANFORD else "ud"

    def stream(notes: Notes) -> Iterator[Example]:
        key = hashlib.sha256(f"{CACHE_VERSION} {corpus.fingerprint()} {identity(nlp)}".encode()).hexdigest()
        path = folder / f"{key[:40]}.jsonl.gz"
        if path.is_file():
            yield from _from_cache(path, corpus, notes)
            return
        with _AtomicGzip(path) as out:
            for example in _parsed(corpus.walk(notes), nlp, scheme, batch_size, notes):
                out.write(json.dumps(row_of_example(example), ensure_ascii=False) + "\n")
                yield example
            out.complete = True

    annotated = corpus.derive(stream)
    annotated.description = f"{corpus.description} (parsed by {_name(nlp)})".strip()
    return annotated


def load_pipeline(pipeline: str | Path | Any) -> Any:
    """A spaCy pipeline that has a parser."""
    try:
        import spacy
    except ImportError:
        raise MissingExtraError("spacy", "parse", "Parsing plain text") from None
    if isinstance(pipeline, str | Path):
        try:
            nlp = spacy.load(_path_of(pipeline))
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(
                f"The spaCy pipeline '{pipeline}' cannot be loaded ({' '.join(str(error).split())[:160]}); install it (python -m spacy download "
                "en_core_web_sm) or give its folder."
            ) from error
    else:
        nlp = pipeline
    names = list(getattr(nlp, "pipe_names", ()))
    if not hasattr(nlp, "pipe") or "parser" not in names:
        raise ParameterError(
            f"The pipeline has no parser (it has {', '.join(names) or 'nothing'}); give one that has, for instance en_core_web_sm."
        )
    return nlp


def _path_of(pipeline: str | Path) -> str | Path:
    """A pipeline's name or folder; a package that holds a pipeline as data says where by `model_path()`."""
    if isinstance(pipeline, Path) or Path(pipeline).exists() or not pipeline.isidentifier():
        return pipeline
    import importlib

    try:
        where = getattr(importlib.import_module(pipeline), "model_path", None)
    except ImportError:
        return pipeline
    return pipeline if where is None else Path(where())


def identity(nlp: Any) -> str:
    """What tells one pipeline from another: its name and version, spaCy's version, its components and their labels."""
    import spacy

    meta = nlp.meta
    parts = {key: meta.get(key) for key in ("lang", "name", "version")}
    return json.dumps(
        {**parts, "spacy": spacy.__version__, "pipes": list(nlp.pipe_names), "labels": sorted(_labels(nlp))},
        sort_keys=True,
    )


def _name(nlp: Any) -> str:
    return f"{nlp.meta.get('lang', '')}_{nlp.meta.get('name', 'pipeline')} {nlp.meta.get('version', '')}".strip()


def _labels(nlp: Any) -> set[str]:
    return set(getattr(nlp.get_pipe("parser"), "labels", ()))


def _parsed(examples: Iterator[Example], nlp: Any, scheme: str, batch_size: int, notes: Notes) -> Iterator[Example]:
    held: list[Example] = []
    for example in examples:
        held.append(example)
        if len(held) == batch_size:
            yield from _parse_some(held, nlp, scheme, batch_size, notes)
            held = []
    yield from _parse_some(held, nlp, scheme, batch_size, notes)


def _parse_some(examples: list[Example], nlp: Any, scheme: str, batch_size: int, notes: Notes) -> Iterator[Example]:
    """Parse the segments of some examples in one batch and put them together again."""
    segments: list[Any] = []
    for example in examples:
        if example.heads is None:
            segments.extend(_segments(example, nlp))
    try:
        docs = iter(list(nlp.pipe(segments, batch_size=batch_size)))
    except Exception as error:  # pipelines raise errors of many kinds, for instance on texts over their limit
        raise InputError(
            f"{examples[0].where} and what follows: the spaCy pipeline cannot parse it ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    for example in examples:
        if example.heads is not None:
            notes[ALREADY] += 1
            yield example
        else:
            own = [next(docs) for _ in range(2 if example.has_pair else 1)]
            yield _annotated(example, own, scheme)


def _segments(example: Example, nlp: Any) -> list[Any]:
    """What the pipeline is given: texts, or documents of the words that are known."""
    if example.words is None:
        return [example.text] if example.pair is None else [example.text, example.pair]
    from spacy.tokens import Doc

    first = len(example.words)
    out = [_doc(Doc, nlp, example.words, example.spans and example.spans[:first])]
    if example.has_pair:
        out.append(_doc(Doc, nlp, example.words_pair or (), example.spans and example.spans[first:]))
    return out


def _doc(doc_class: Any, nlp: Any, words: tuple[str, ...], spans: tuple[tuple[int, int], ...] | None) -> Any:
    spaces = [True] * len(words)
    if spans is not None:
        spaces = [i + 1 < len(spans) and spans[i + 1][0] > spans[i][1] for i in range(len(spans))]
    return doc_class(nlp.vocab, words=list(words), spaces=spaces)


def _annotated(example: Example, docs: list[Any], scheme: str) -> Example:
    words: list[list[str]] = []
    spans: list[tuple[int, int]] = []
    heads: list[int] = []
    relations, upos, lemmas, sentences = list[str](), list[str](), list[str](), list[int]()
    features: list[dict[str, str]] = []
    known = example.words is not None
    sentence = -1
    for doc in docs:
        tokens = [token for token in doc if known or not token.is_space]
        place = {token.i: len(heads) + index for index, token in enumerate(tokens)}
        own: list[str] = []
        fresh = True
        for token in doc:
            fresh |= bool(token.is_sent_start)
            if token.i not in place:
                continue
            if fresh:
                sentence, fresh = sentence + 1, False
            own.append(token.text)
            spans.append((token.idx, token.idx + len(token.text)))
            heads.append(_head(token, place))
            relations.append("root" if token.dep_ == "ROOT" else token.dep_)  # as both schemes write it
            upos.append(token.pos_)
            lemmas.append(token.lemma_)
            features.append(token.morph.to_dict())
            sentences.append(sentence)
        words.append(own)
    if not words[0]:
        raise InputError(f"{example.where}: the spaCy pipeline finds no words in the text; remove the row.")
    return replace(
        example,
        words=example.words if known else tuple(words[0]),
        words_pair=example.words_pair if known else tuple(words[1]) if len(words) > 1 else None,
        spans=example.spans if known else tuple(spans),
        heads=tuple(heads),
        relations=tuple(relations),
        upos=tuple(upos) if example.upos is None and any(upos) else example.upos,
        lemmas=tuple(lemmas) if example.lemmas is None and any(lemmas) else example.lemmas,
        features=tuple(features) if example.features is None and any(features) else example.features,
        sentences=tuple(sentences) if example.sentences is None else example.sentences,
        scheme=scheme,
    )


def _head(token: Any, place: dict[int, int]) -> int:
    """The nearest word above a token: spaces, which are no words, are passed over."""
    above = token.head
    while above.i not in place and above.head.i != above.i:
        above = above.head
    return ROOT if above.i == token.i or above.i not in place else place[above.i]


# --- the cache --------------------------------------------------------------------------------------------------------


def _from_cache(path: Path, corpus: Corpus, notes: Notes) -> Iterator[Example]:
    source = corpus.walk(notes)
    for (line, row), given in zip(json_rows(on_disk(path)), source, strict=True):
        if given.heads is not None:
            notes[ALREADY] += 1
            yield given
            continue
        kept = example_of_row(row, f"{path}:{line}")
        yield replace(kept, heads=tuple(row["heads"]), origin=given.origin, label=given.label)


class _AtomicGzip:
    """A gzip file that appears whole or not at all. A cache that cannot be written is done without."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        self._text: IO[str] | None = None
        self._temporary: Path | None = None

    def __enter__(self) -> _AtomicGzip:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
            os.close(handle)
            self._temporary = Path(name)
            self._text = gzip.open(name, "wt", encoding="utf-8", compresslevel=5)
        except OSError:
            self._text = None
        return self

    def write(self, text: str) -> None:
        if self._text is not None:
            try:
                self._text.write(text)
            except OSError:  # a full disk
                self._give_up()

    def _give_up(self) -> None:
        self._text = None
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __exit__(self, *_: object) -> None:
        if self._text is None or self._temporary is None:
            return
        try:
            self._text.close()
            if self.complete:
                os.replace(self._temporary, self.path)
                return
        except OSError:
            pass
        self._temporary.unlink(missing_ok=True)
