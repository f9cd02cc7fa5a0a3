"""The texts of single tokens of a tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Decoders remove the space before the first piece, so that one is put before each.
ANCHOR = "a"
REPLACEMENT_CHARACTER = "\ufffd"  # what bytes that are no character decode to


class Pieces:
    """The texts of the tokens of one tokenizer, each computed once.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A fast tokenizer of transformers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        # WordPiece (`##`) and BPE with `</w>` mark the place of a piece in its word, and their
        # decoders would turn the marks into spaces: such pieces are not decoded.
        if type(decoder).__name__ in ("WordPiece", "BPEDecoder"):
            decoder = None
        self._decoder = decoder
        self._special = frozenset(tokenizer.all_special_ids)
        self._bare: dict[int, str] = {}
        self._texts: dict[int, str] = {}

    def bare(self, token: int) -> str:
        """Return the text of a token without the marks of its place in a word and without
        spaces."""
        if token not in self._bare:
            piece = self._piece(token)
            self._bare[token] = piece.removeprefix("##").lstrip("▁ĠĊ ").removesuffix("</w>").strip()
        return self._bare[token]

    def text(self, token: int) -> str:
        """Return the text of a token as it stands in running text, with the space before it.

        A token that is no character by itself (one byte of several) and pieces with other marks
        (`##ing`) are returned as the tokenizer writes them.
        """
        if token not in self._texts:
            piece = self._piece(token)
            if self._decoder is not None and token not in self._special:
                decoded = str(self._decoder.decode([ANCHOR, piece]))
                text = decoded.removeprefix(ANCHOR)
                if decoded.startswith(ANCHOR) and text and REPLACEMENT_CHARACTER not in text:
                    piece = text
            self._texts[token] = piece
        return self._texts[token]

    def _piece(self, token: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(token) or "")
