"""Annotate plain text with words, trees and parts of speech by a spaCy pipeline, with a cache."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from headwise.core.errors import InputError, MissingExtraError, ParameterError
from headwise.core.files import cache_dir
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import ROOT, Example
from headwise.text.readers.files import on_disk
from headwise.text.readers.limits import Limits, Walk, reading
from headwise.text.readers.rows import example_of_row, json_rows, row_of_example

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

CACHE_VERSION = "1"  # increase it when the stored annotation of the same text changes
STANFORD = {"dobj", "pobj"}  # relations that only Stanford-like label sets have
ALREADY_ANNOTATED = "examples that have a tree, not parsed"


def annotate(
    corpus: Corpus,
    pipeline: str | Path | Language,
    *,
    batch_size: int = 64,
    cache: str | Path | None = None,
) -> Corpus:
    """Return the corpus with words, spans, heads, relations, UPOS, lemmas, features and sentence
    numbers from a spaCy pipeline.

    Plain text gets the pipeline's words, as spans of the text; examples with words keep them and
    get a tree over them; examples that have a tree are not parsed, and counted. The scheme of the
    relations is `stanford` for pipelines with `dobj` and `pobj` (spaCy's English ones), `ud`
    otherwise. The result is cached as JSON lines, by the fingerprints of corpus and pipeline.

    Parameters
    ----------
    corpus : Corpus
        The examples.
    pipeline : str, Path or spacy.Language
        The name of an installed spaCy pipeline, its folder, or a loaded pipeline.
    batch_size : int, default 64
        Texts parsed at a time.
    cache : str or Path, optional
        The cache folder; default: headwise's own (`HEADWISE_CACHE`).
    """
    nlp = load_pipeline(pipeline)
    cache_folder = cache_dir() if cache is None else Path(cache)
    folder = cache_folder / "annotations"
    scheme = "stanford" if _labels(nlp) >= STANFORD else "ud"

    def stream(notes: Notes) -> Iterator[Example]:
        content = f"{CACHE_VERSION} {corpus.fingerprint()} {identity(nlp)}"
        key = hashlib.sha256(content.encode()).hexdigest()
        path = folder / f"{key[:40]}.jsonl.gz"
        if path.is_file():
            return _from_cache(path, corpus, notes)
        return _to_cache(path, _parsed(corpus.walk(notes), nlp, scheme, batch_size, notes))

    annotated = corpus.derive(stream)
    annotated.description = f"{corpus.description} (parsed by {_name(nlp)})".strip()
    return annotated


def load_pipeline(pipeline: str | Path | Language) -> Language:
    """Return a spaCy pipeline that has a parser."""
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
                f"The spaCy pipeline '{pipeline}' cannot be loaded "
                f"({' '.join(str(error).split())[:160]}); install it (python -m spacy download "
                "en_core_web_sm) or pass its folder."
            ) from error
    names = list(getattr(nlp, "pipe_names", ()))
    if not hasattr(nlp, "pipe") or "parser" not in names:
        has = ", ".join(names) or "nothing"
        raise ParameterError(
            f"The pipeline has no parser (it has {has}); use one that has, for instance "
            "en_core_web_sm."
        )
    return nlp


def _path_of(pipeline: str | Path) -> str | Path:
    """Return what spaCy loads: a name or a folder.

    A package that contains a pipeline as data names its folder by `model_path()`.
    """
    if isinstance(pipeline, Path) or Path(pipeline).exists() or not pipeline.isidentifier():
        return pipeline
    try:
        package = importlib.import_module(pipeline)
    except ImportError:
        return pipeline
    if hasattr(package, "model_path"):
        return Path(package.model_path())
    return pipeline


def identity(nlp: Language) -> str:
    """Return what identifies a pipeline: name, versions, components and labels, as JSON."""
    import spacy

    facts = {
        "lang": nlp.meta.get("lang"),
        "name": nlp.meta.get("name"),
        "version": nlp.meta.get("version"),
        "spacy": spacy.__version__,
        "pipes": list(nlp.pipe_names),
        "labels": sorted(_labels(nlp)),
    }
    return json.dumps(facts, sort_keys=True)


def _name(nlp: Language) -> str:
    language = nlp.meta.get("lang", "")
    name = nlp.meta.get("name", "pipeline")
    return f"{language}_{name} {nlp.meta.get('version', '')}".strip()


def _labels(nlp: Language) -> set[str]:
    return set(getattr(nlp.get_pipe("parser"), "labels", ()))


def _parsed(
    examples: Iterator[Example], nlp: Language, scheme: str, batch_size: int, notes: Notes
) -> Iterator[Example]:
    """Yield the examples with trees; the segments of a batch of examples are parsed together."""
    while batch := list(islice(examples, batch_size)):
        segments: list[str | Doc] = []
        for example in batch:
            if example.heads is None:
                segments += _segments(example, nlp)
        with reading(f"{batch[0].where} and following", "the spaCy pipeline cannot parse it"):
            docs = iter(list(nlp.pipe(segments, batch_size=batch_size)))
        for example in batch:
            if example.heads is not None:
                notes[ALREADY_ANNOTATED] += 1
                yield example
            else:
                n_segments = 2 if example.has_pair else 1
                yield _annotated(example, list(islice(docs, n_segments)), scheme)


def _segments(example: Example, nlp: Language) -> list[str | Doc]:
    """Return what the pipeline parses: texts, or documents of the words that are known."""
    if example.words is None:
        return [text for text in (example.text, example.pair) if text is not None]
    from spacy.tokens import Doc

    word_lists = [example.words]
    if example.has_pair:
        word_lists.append(example.words_pair or ())
    segments: list[str | Doc] = []
    start = 0
    for words in word_lists:
        spaces = [True] * len(words)
        if example.spans is not None:
            spans = example.spans[start : start + len(words)]
            spaces = [following[0] > span[1] for span, following in pairwise(spans)]
            if words:
                spaces.append(False)  # no space after the last word
        segments.append(Doc(nlp.vocab, words=list(words), spaces=spaces))
        start += len(words)
    return segments


def _annotated(example: Example, docs: list[Doc], scheme: str) -> Example:
    """Return an example with the annotation of its segments; what it already has stays."""
    words_known = example.words is not None
    words_by_segment: list[list[Token]] = []
    heads: list[int] = []
    sentences: list[int] = []
    sentence = -1
    for doc in docs:
        words = [token for token in doc if words_known or not token.is_space]
        words_by_segment.append(words)
        word_index = {token.i: len(heads) + place for place, token in enumerate(words)}
        heads += [_head(token, word_index) for token in words]
        starts_sentence = True
        for token in doc:
            # A sentence may start with a space token, which is not a word.
            starts_sentence |= bool(token.is_sent_start)
            if token.i in word_index:
                sentence += starts_sentence
                starts_sentence = False
                sentences.append(sentence)
    if not words_by_segment[0]:
        raise InputError(
            f"{example.where}: the spaCy pipeline finds no words in the text; remove the row."
        )
    tokens = list(chain.from_iterable(words_by_segment))
    if not words_known:
        forms = [tuple(token.text for token in words) for words in words_by_segment]
        example = replace(
            example,
            words=forms[0],
            words_pair=forms[1] if len(forms) > 1 else None,
            spans=tuple((token.idx, token.idx + len(token.text)) for token in tokens),
        )
    # Both schemes write the relation of a root in lower case.
    relations = tuple("root" if token.dep_ == "ROOT" else token.dep_ for token in tokens)
    annotated = replace(example, heads=tuple(heads), relations=relations, scheme=scheme)
    upos = tuple(token.pos_ for token in tokens)
    if example.upos is None and any(upos):
        annotated = replace(annotated, upos=upos)
    lemmas = tuple(token.lemma_ for token in tokens)
    if example.lemmas is None and any(lemmas):
        annotated = replace(annotated, lemmas=lemmas)
    features = tuple(token.morph.to_dict() for token in tokens)
    if example.features is None and any(features):
        annotated = replace(annotated, features=features)
    if example.sentences is None:
        annotated = replace(annotated, sentences=tuple(sentences))
    return annotated


def _head(token: Token, word_index: dict[int, int]) -> int:
    """Return the nearest word above a token; space tokens, which are not words, are skipped."""
    ancestor = token.head
    while ancestor.i not in word_index and ancestor.head.i != ancestor.i:
        ancestor = ancestor.head
    if ancestor.i == token.i or ancestor.i not in word_index:
        return ROOT
    return word_index[ancestor.i]


def _from_cache(path: Path, corpus: Corpus, notes: Notes) -> Iterator[Example]:
    cached_rows = json_rows(on_disk(path, Walk(Limits.none())))
    for (where, row), example in zip(cached_rows, corpus.walk(notes), strict=True):
        if example.heads is not None:
            notes[ALREADY_ANNOTATED] += 1
            yield example
            continue
        # The cache holds the annotation; these fields are not part of the fingerprint it is found by.
        yield replace(
            example_of_row(row, where),
            heads=tuple(row["heads"]),
            origin=example.origin,
            label=example.label,
            document=example.document,
        )


def _to_cache(path: Path, examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples and write them to the cache, as a whole file or not at all.

    A cache that cannot be written (no permission, a full disk) is no error.
    """
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    file: IO[str] | None = None
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = gzip.open(part, "wt", encoding="utf-8", compresslevel=5)  # noqa: SIM115  # closed below
    complete = file is not None
    try:
        for example in examples:
            if file is not None and complete:
                try:
                    file.write(json.dumps(row_of_example(example), ensure_ascii=False) + "\n")
                except OSError:
                    complete = False
            yield example
        if file is not None and complete:
            with suppress(OSError):
                file.close()
                os.replace(part, path)
    finally:
        with suppress(OSError):
            if file is not None:
                file.close()
        with suppress(OSError):
            part.unlink(missing_ok=True)
