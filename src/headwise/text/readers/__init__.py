"""Readers for each file format, by name. A reader is a generator of examples; one place,
`files.TextFile`, reads the lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from headwise.core.errors import ParameterError, unknown
from headwise.text.example import Example
from headwise.text.readers.conll import read_conll, read_conll2012, read_ontogum
from headwise.text.readers.conllu import read_conllu, read_gum
from headwise.text.readers.framenet import read_framenet
from headwise.text.readers.jsonl import read_jsonl
from headwise.text.readers.limits import Limits
from headwise.text.readers.paragraphs import articles_in, read_pairs
from headwise.text.readers.plain import read_txt, text_in
from headwise.text.readers.senteval import read_senteval
from headwise.text.readers.tsv import read_csv, read_tsv


@dataclass(frozen=True)
class Format:
    """A file format by name.

    `read(files, notes, **options)` yields examples; its keyword-only parameters are the options a
    user may give. `members` are the endings of the files read from an archive or a folder."""

    name: str
    about: str
    read: Callable[..., Iterator[Example]]
    members: tuple[str, ...]

    @property
    def options(self) -> Mapping[str, str]:
        """The names a user may give, and what each takes, as the reader's signature says."""
        return options_of(self.read)


@cache
def options_of(read: Callable[..., Any]) -> Mapping[str, str]:
    """The keyword-only parameters of a reader, each with its annotation."""
    parameters = inspect.signature(read).parameters.values()
    return {
        p.name: str(p.annotation) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


def checked_options(
    name: str, known: Mapping[str, str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options given, of those that a format has. A collection of texts may be one text with
    commas between."""
    found = dict(given)
    for option, value in given.items():
        if option not in known:
            raise ParameterError(
                unknown(
                    f"option of the format {name}",
                    option,
                    [*known, "bad_rows", *(limit.name for limit in fields(Limits))],
                )
            )
        kinds, wanted = _TYPES.get(known[option], (object, ""))
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
            raise ParameterError(
                f"The option `{option}` of the format {name} must be {wanted}; it is {value!r}."
            )
        if known[option] == "Collection[str]":
            found[option] = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
            if not all(isinstance(item, str) for item in found[option]):
                raise ParameterError(
                    f"The option `{option}` of the format {name} must be {wanted}; it is {value!r}."
                )
    return found


_TYPES: dict[str, tuple[Any, str]] = {
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "str": (str, "a text"),
    "str | None": ((str, type(None)), "a text"),
    "str | Path | None": ((str, Path, type(None)), "a path"),
    "Collection[str]": (Collection, "texts with commas between"),
}


read_txt_pairs, read_articles = partial(read_pairs, text_in), partial(read_pairs, articles_in)
CONLL_MEMBERS = (".conll", "_conll")

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("txt", "plain text, by lines or by paragraphs", read_txt, (".txt",)),
        Format(
            "txt-pairs",
            "plain text, two consecutive paragraphs an example",
            read_txt_pairs,
            (".txt",),
        ),
        Format("jsonl", "JSON lines with a text or words and annotations", read_jsonl, (".jsonl",)),
        Format(
            "articles",
            "JSON lines with `paragraphs`, two consecutive ones an example",
            read_articles,
            (".jsonl",),
        ),
        Format("wikipedia", "the same as articles", read_articles, (".jsonl",)),
        Format("conllu", "CoNLL-U treebank, an example a sentence", read_conllu, (".conllu",)),
        Format("gum", "CoNLL-U with `Entity=`, an example a document", read_gum, (".conllu",)),
        Format(
            "conll",
            "OntoGUM or CoNLL-2012, told apart by the first rows",
            read_conll,
            CONLL_MEMBERS,
        ),
        Format("ontogum", "index, token, coreference brackets", read_ontogum, CONLL_MEMBERS),
        Format(
            "conll2012",
            "CoNLL-2012 columns with coreference brackets",
            read_conll2012,
            CONLL_MEMBERS,
        ),
        Format(
            "tsv",
            "GLUE's TSV files, or any with a header that names sentence and label",
            read_tsv,
            (".tsv", ".txt"),
        ),
        Format("csv", "a table with a header, fields quoted where needed", read_csv, (".csv",)),
        Format("glue-tsv", "the same as tsv", read_tsv, (".tsv", ".txt")),
        Format("senteval", "part, label and sentence separated by tabs", read_senteval, (".txt",)),
        Format(
            "framenet",
            "FrameNet exemplars as JSON lines or FrameNet's XML folder",
            read_framenet,
            (".jsonl",),
        ),
    )
}

BY_ENDING = {
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".conllu": "conllu",
    ".conll": "conll",
    ".tsv": "tsv",
    ".csv": "csv",
}

__all__ = ["BY_ENDING", "FORMATS", "Format", "checked_options", "options_of"]
