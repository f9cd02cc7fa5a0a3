"""The explorer: a local web page where you type a sentence and see what every head does with it."""

from headwise.explore.explorer import Explorer, Question
from headwise.explore.server import serve

__all__ = ["Explorer", "Question", "serve"]
