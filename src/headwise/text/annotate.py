"""Words, trees and parts of speech for plain text, by a spaCy pipeline, kept in a cache: a text is
parsed once."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from headwise.core.cache import cache_dir
from headwise.core.errors import InputError, MissingExtraError, ParameterError
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import ROOT, Example
from headwise.text.readers.files import on_disk
from headwise.text.readers.limits import Limits, Walk, reading
from headwise.text.readers.rows import example_of_row, json_rows, row_of_example

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

CACHE_VERSION = "1"  # to be raised when what is stored for the same text changes
STANFORD = {"dobj", "pobj"}  # relations that only Stanford-like label sets have
ALREADY = "examples with a tree of their own, left as they are"


def annotate(
    corpus: Corpus,
    pipeline: str | Path | Language,
    *,
    batch_size: int = 64,
    cache: str | Path | None = None,
) -> Corpus:
    """The same corpus with words, spans, heads, relations, UPOS, lemmas, features and sentence
    numbers from a spaCy pipeline.

    Examples of plain text get the pipeline's words as places in the text; examples with words keep
    them and get a tree over them; examples that have a tree are left as they are and counted. The
    scheme of the relations is `stanford` for pipelines with `dobj` and `pobj` (spaCy's English
    ones), `ud` otherwise. The result is kept as JSON lines in the cache folder, named after the
    corpus's and the pipeline's fingerprints, and is complete or absent.

    Parameters
    ----------
    corpus : Corpus
        What is parsed.
    pipeline : str, Path or spacy.Language
        The name of an installed spaCy pipeline, its folder, or a pipeline that is loaded already.
    batch_size : int, default 64
        Texts parsed at a time.
    cache : str or Path, optional
        The cache folder; by default headwise's own (`HEADWISE_CACHE`).
    """
    nlp = load_pipeline(pipeline)
    folder = (Path(cache) if cache is not None else cache_dir()) / "annotations"
    scheme = "stanford" if _labels(nlp) >= STANFORD else "ud"

    def stream(notes: Notes) -> Iterator[Example]:
        key = hashlib.sha256(
            f"{CACHE_VERSION} {corpus.fingerprint()} {identity(nlp)}".encode()
        ).hexdigest()
        path = folder / f"{key[:40]}.jsonl.gz"
        if path.is_file():
            return _from_cache(path, corpus, notes)
        return _to_cache(path, _parsed(corpus.walk(notes), nlp, scheme, batch_size, notes))

    annotated = corpus.derive(stream)
    annotated.description = f"{corpus.description} (parsed by {_name(nlp)})".strip()
    return annotated


def load_pipeline(pipeline: str | Path | Language) -> Language:
    """A spaCy pipeline that has a parser."""
    try:
        import spacy
    except ImportError:
        raise MissingExtraError("spacy", "parse", "Parsing plain text") from None
    nlp = pipeline
    if isinstance(pipeline, str | Path):
        try:
            nlp = spacy.load(_path_of(pipeline))
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(
                f"The spaCy pipeline '{pipeline}' cannot be loaded ({' '.join(str(error).split())[:160]}); install it "
                "(python -m spacy download en_core_web_sm) or give its folder."
            ) from error
    names = list(getattr(nlp, "pipe_names", ()))
    if not hasattr(nlp, "pipe") or "parser" not in names:
        has = ", ".join(names) or "nothing"
        raise ParameterError(
            f"The pipeline has no parser (it has {has}); give one that has, for instance en_core_web_sm."
        )
    return nlp


def _path_of(pipeline: str | Path) -> str | Path:
    """A pipeline's name or folder; a package that holds a pipeline as data says where by
    `model_path()`."""
    if isinstance(pipeline, Path) or Path(pipeline).exists() or not pipeline.isidentifier():
        return pipeline
    try:
        where = getattr(importlib.import_module(pipeline), "model_path", None)
    except ImportError:
        return pipeline
    return pipeline if where is None else Path(where())


def identity(nlp: Language) -> str:
    """What tells one pipeline from another: its name and version, spaCy's version, its components
    and their labels."""
    import spacy

    own = {key: nlp.meta.get(key) for key in ("lang", "name", "version")}
    made = {
        "spacy": spacy.__version__,
        "pipes": list(nlp.pipe_names),
        "labels": sorted(_labels(nlp)),
    }
    return json.dumps({**own, **made}, sort_keys=True)


def _name(nlp: Language) -> str:
    return f"{nlp.meta.get('lang', '')}_{nlp.meta.get('name', 'pipeline')} {nlp.meta.get('version', '')}".strip()


def _labels(nlp: Language) -> set[str]:
    return set(getattr(nlp.get_pipe("parser"), "labels", ()))


def _parsed(
    examples: Iterator[Example], nlp: Language, scheme: str, batch_size: int, notes: Notes
) -> Iterator[Example]:
    """The examples with their trees; the segments of some of them are parsed in one batch and put
    together again."""
    while held := list(islice(examples, batch_size)):
        segments = [
            segment
            for example in held
            if example.heads is None
            for segment in _segments(example, nlp)
        ]
        with reading(f"{held[0].where} and what follows", "the spaCy pipeline cannot parse it"):
            docs = iter(list(nlp.pipe(segments, batch_size=batch_size)))
        for example in held:
            if example.heads is not None:
                notes[ALREADY] += 1
                yield example
            else:
                yield _annotated(example, list(islice(docs, 2 if example.has_pair else 1)), scheme)


def _segments(example: Example, nlp: Language) -> list[str | Doc]:
    """What the pipeline is given: texts, or documents of the words that are known."""
    if example.words is None:
        return [text for text in (example.text, example.pair) if text is not None]
    from spacy.tokens import Doc

    segments: list[str | Doc] = []
    start = 0
    for words in (example.words, example.words_pair or ())[: 2 if example.has_pair else 1]:
        spaces = [True] * len(words)
        if example.spans is not None:
            own = example.spans[start : start + len(words)]
            spaces = [
                after[0] > before[1] for before, after in pairwise((*own, (0, 0)))
            ]  # none after the last
        segments.append(Doc(nlp.vocab, words=list(words), spaces=spaces))
        start += len(words)
    return segments


def _annotated(example: Example, docs: list[Doc], scheme: str) -> Example:
    known = example.words is not None
    words: list[list[Token]] = []
    heads, sentences = list[int](), list[int]()
    sentence = -1
    for doc in docs:
        words.append([token for token in doc if known or not token.is_space])
        place = {token.i: len(heads) + index for index, token in enumerate(words[-1])}
        heads += [_head(token, place) for token in words[-1]]
        fresh = True
        for token in doc:  # a sentence may begin with a space, which is no word
            fresh |= bool(token.is_sent_start)
            if token.i in place:
                sentence, fresh = sentence + fresh, False
                sentences.append(sentence)
    if not words[0]:
        raise InputError(
            f"{example.where}: the spaCy pipeline finds no words in the text; remove the row."
        )
    tokens = [token for own in words for token in own]
    upos, lemmas = [token.pos_ for token in tokens], [token.lemma_ for token in tokens]
    features = [token.morph.to_dict() for token in tokens]
    if not known:
        forms = [tuple(token.text for token in own) for own in words]
        spans = tuple((token.idx, token.idx + len(token.text)) for token in tokens)
        example = replace(
            example, words=forms[0], words_pair=forms[1] if len(forms) > 1 else None, spans=spans
        )
    return replace(
        example,
        heads=tuple(heads),
        relations=tuple(
            "root" if token.dep_ == "ROOT" else token.dep_ for token in tokens
        ),  # as both schemes write it
        upos=tuple(upos) if example.upos is None and any(upos) else example.upos,
        lemmas=tuple(lemmas) if example.lemmas is None and any(lemmas) else example.lemmas,
        features=tuple(features)
        if example.features is None and any(features)
        else example.features,
        sentences=tuple(sentences) if example.sentences is None else example.sentences,
        scheme=scheme,
    )


def _head(token: Token, place: dict[int, int]) -> int:
    """The nearest word above a token: spaces, which are no words, are passed over."""
    above = token.head
    while above.i not in place and above.head.i != above.i:
        above = above.head
    return ROOT if above.i == token.i or above.i not in place else place[above.i]


def _from_cache(path: Path, corpus: Corpus, notes: Notes) -> Iterator[Example]:
    for (where, row), given in zip(
        json_rows(on_disk(path, Walk(Limits.none()))), corpus.walk(notes), strict=True
    ):
        if given.heads is not None:
            notes[ALREADY] += 1
            yield given
        else:
            kept = example_of_row(row, where)
            own = {name: getattr(given, name) for name in ("origin", "label", "document")}
            yield replace(kept, heads=tuple(row["heads"]), **own)


def _to_cache(path: Path, examples: Iterable[Example]) -> Iterator[Example]:
    """The examples, written to a file as they pass; it appears whole or not at all. One that cannot
    be written is done without."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    out: IO[str] | None = None
    full = False  # the disk
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        out = gzip.open(part, "wt", encoding="utf-8", compresslevel=5)  # noqa: SIM115  # closed below
    try:
        for example in examples:
            try:
                if out is not None and not full:
                    out.write(json.dumps(row_of_example(example), ensure_ascii=False) + "\n")
            except OSError:
                full = True
            yield example
        if out is not None and not full:
            with suppress(OSError):
                out.close()
                os.replace(part, path)
    finally:
        with suppress(OSError):
            if out is not None:
                out.close()
        with suppress(OSError):
            part.unlink(missing_ok=True)
