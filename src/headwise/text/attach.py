"""Combine two annotations of the same documents: coreference from one corpus, trees from
another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headwise.core.errors import InputError
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import Example
from headwise.text.readers.entities import TreeHeads

DOCUMENT_MARK = ", document "  # precedes the document's name in an example's origin
LOST_TOKEN = "_"  # what a file has in place of a token that it may not contain
# Fields that an example keeps; all others come from its tree.
KEPT_FIELDS = ("pair", "words_pair", "frames", "label", "origin")


def document_name(example: Example) -> str:
    """Return the name of the document that an example is; "" where it is no document."""
    return example.origin.partition(DOCUMENT_MARK)[2]


def attach_trees(corpus: Corpus, trees: Corpus) -> Corpus:
    """Return `corpus` with the trees, parts of speech, lemmas, features and sentences of `trees`.

    Documents are matched by name, and their words must be equal (a lost token, `_`, takes the
    tree's word). The head of a mention becomes the word whose own head in the tree lies outside the
    mention. Documents without a partner, or with other words, stay as they are and are counted in
    the notes. The trees are read once and stay in memory.

    Parameters
    ----------
    corpus : Corpus
        Documents with coreference, for instance OntoGUM's.
    trees : Corpus
        The same documents with trees, for instance GUM's (opened as `gum:path`).
    """
    tree_of_document: dict[str, Example] = {}

    def stream(notes: Notes) -> Iterator[Example]:
        if not tree_of_document:
            for example in trees:
                tree_of_document[document_name(example)] = example
        if "" in tree_of_document:
            raise InputError(
                f"{trees.name} holds sentences, not documents; "
                "open it as gum:path or with documents=True."
            )
        if all(example.heads is None for example in tree_of_document.values()):
            raise InputError(
                f"{trees.name} has no trees to attach; give a treebank, for instance gum:path."
            )
        for example in corpus.walk(notes):
            partner = tree_of_document.get(document_name(example))
            if partner is None:
                notes["documents without a tree: none of that name"] += 1
                yield example
            elif not _same_words(example.all_words, partner.all_words):
                notes["documents without a tree: other words"] += 1
                yield example
            else:
                yield _with_tree(example, partner)

    return corpus.derive(stream)


def _same_words(words: tuple[str, ...], tree_words: tuple[str, ...]) -> bool:
    if len(words) != len(tree_words):
        return False
    for word, tree_word in zip(words, tree_words, strict=True):
        if word not in (tree_word, LOST_TOKEN):
            return False
    return True


def _with_tree(example: Example, tree: Example) -> Example:
    """Return the document of `tree` with the mentions and the kept fields of `example`."""
    mentions = example.mentions
    if mentions is not None and tree.heads is not None:
        tree_heads = TreeHeads(tree.heads)
        mentions = tuple(
            replace(mention, head=tree_heads(mention.start, mention.end)) for mention in mentions
        )
    kept_fields = {name: getattr(example, name) for name in KEPT_FIELDS}
    return replace(tree, mentions=mentions, **kept_fields)
