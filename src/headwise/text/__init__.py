"""Examples, corpora and readers, word alignment, annotation and length-sorted batches."""

from headwise.text.annotate import annotate
from headwise.text.corpus import Corpus, Survey
from headwise.text.encode import Batch, Encoded, Encoder, batches, collate
from headwise.text.example import Example, FrameLink, Mention
from headwise.text.open import Spec, open_corpus

__all__ = [
    "Batch",
    "Corpus",
    "Encoded",
    "Encoder",
    "Example",
    "FrameLink",
    "Mention",
    "Spec",
    "Survey",
    "annotate",
    "batches",
    "collate",
    "open_corpus",
]
