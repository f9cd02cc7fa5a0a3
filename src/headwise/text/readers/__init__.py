"""Readers for each file format, by name. A reader is a generator of examples; one place, `files.TextFile`, reads the
lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headwise.core.errors import ParameterError, unknown
from headwise.text.example import Example
from headwise.text.readers.conll import read_conll, read_conll2012, read_ontogum
from headwise.text.readers.conllu import read_conllu, read_gum
from headwise.text.readers.framenet import read_framenet
from headwise.text.readers.jsonl import read_jsonl
from headwise.text.readers.paragraphs import read_articles
from headwise.text.readers.plain import read_txt, read_txt_pairs
from headwise.text.readers.senteval import read_senteval
from headwise.text.readers.tsv import read_tsv


@dataclass(frozen=True)
class Format:
    """A file format by name.

    `read(files, notes, **options)` yields examples; its keyword-only parameters are the options a user may give.
    `members` are the endings of the files read from an archive or a folder.
    """

    name: str
    about: str
    read: Callable[..., Iterator[Example]]
    members: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The names a user may give."""
        parameters = inspect.signature(self.read).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)

    def check_options(self, given: Mapping[str, object]) -> None:
        """Refuse an option that this format does not have."""
        for name in given:
            if name not in self.options:
                raise ParameterError(unknown(f"option of the format {self.name}", name, self.options))


CONLL_MEMBERS = (".conll", "_conll")

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("txt", "plain text, a blank line between paragraphs", read_txt, (".txt",)),
        Format("txt-pairs", "plain text, two consecutive paragraphs an example", read_txt_pairs, (".txt",)),
        Format("jsonl", "JSON lines with `text` or `words` and annotations", read_jsonl, (".jsonl",)),
        Format("articles", "JSON lines with `paragraphs`, two consecutive ones an example", read_articles, (".jsonl",)),
        Format("wikipedia", "the same as articles", read_articles, (".jsonl",)),
        Format("conllu", "CoNLL-U treebank, an example a sentence", read_conllu, (".conllu",)),
        Format("gum", "CoNLL-U with `Entity=`, an example a document", read_gum, (".conllu",)),
        Format("conll", "OntoGUM or CoNLL-2012, told apart by the first rows", read_conll, CONLL_MEMBERS),
        Format("ontogum", "index, token, coreference brackets", read_ontogum, CONLL_MEMBERS),
        Format("conll2012", "CoNLL-2012 columns with coreference brackets", read_conll2012, CONLL_MEMBERS),
        Format(
            "tsv", "GLUE's TSV files, or any with a header that names sentence and label", read_tsv, (".tsv", ".txt")
        ),
        Format("glue-tsv", "the same as tsv", read_tsv, (".tsv", ".txt")),
        Format("senteval", "part, label and sentence separated by tabs", read_senteval, (".txt",)),
        Format("framenet", "FrameNet exemplars as JSON lines or FrameNet's XML folder", read_framenet, (".jsonl",)),
    )
}

BY_ENDING = {".txt": "txt", ".jsonl": "jsonl", ".conllu": "conllu", ".conll": "conll", ".tsv": "tsv"}

__all__ = ["BY_ENDING", "FORMATS", "Format"]
