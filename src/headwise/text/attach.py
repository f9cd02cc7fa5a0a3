"""Putting two annotations of the same documents together: coreference from one corpus, trees from
another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headwise.core.errors import InputError
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import Example
from headwise.text.readers.entities import TreeHeads

MARK = ", document "
LOST = "_"  # a token that a file lost
KEPT = (
    "pair",
    "words_pair",
    "frames",
    "label",
    "origin",
)  # what an example keeps; all else is its tree's


def document_name(example: Example) -> str:
    """The name of the document that an example is, as its reader noted it; "" where it is none."""
    return example.origin.partition(MARK)[2]


def attach_trees(corpus: Corpus, trees: Corpus) -> Corpus:
    """The documents of `corpus` with the trees, parts of speech, lemmas, features and sentences
    that `trees` has for them.

    Documents are matched by name, and their words must be equal (a lost token, `_`, takes the
    tree's word). A mention's head becomes the word of the tree whose own head lies outside the
    mention. Documents without partner, or with other words, are given as they are and counted. The
    trees are read once and kept.

    Parameters
    ----------
    corpus : Corpus
        Documents with coreference, for instance OntoGUM's.
    trees : Corpus
        The same documents with trees, for instance GUM's (opened as `gum:path`).
    """
    known: dict[str, Example] = {}

    def stream(notes: Notes) -> Iterator[Example]:
        if not known:
            known.update((document_name(example), example) for example in trees)
        if "" in known:
            raise InputError(
                f"{trees.name} holds sentences, not documents; open it as gum:path or documents=True."
            )
        if all(example.heads is None for example in known.values()):
            raise InputError(
                f"{trees.name} has no trees to attach; give a treebank, for instance gum:path."
            )
        for example in corpus.walk(notes):
            partner = known.get(document_name(example))
            if partner is None:
                notes["documents without a tree: none of that name"] += 1
                yield example
            elif not _same_words(example.all_words, partner.all_words):
                notes["documents without a tree: other words"] += 1
                yield example
            else:
                yield _joined(example, partner)

    return corpus.derive(stream)


def _same_words(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    return len(ours) == len(theirs) and all(
        a in (b, LOST) for a, b in zip(ours, theirs, strict=True)
    )


def _joined(example: Example, tree: Example) -> Example:
    mentions = example.mentions
    if mentions is not None and tree.heads is not None:
        head_of = TreeHeads(tree.heads)
        mentions = tuple(replace(m, head=head_of(m.start, m.end)) for m in mentions)
    return replace(tree, mentions=mentions, **{name: getattr(example, name) for name in KEPT})
