"""What single tokens of a tokenizer say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANCHOR = "a"  # stands before a piece that is decoded, since decoders take the space off the first
BROKEN = "\ufffd"


class Pieces:
    """The texts of the tokens of one tokenizer, each found once.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A fast tokenizer of transformers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        # WordPiece and </w> say where a piece stands by marks that its decoder would turn to
        # spaces: they are kept.
        self._decoder = (
            None if type(decoder).__name__ in ("NoneType", "WordPiece", "BPEDecoder") else decoder
        )
        self._special = frozenset(tokenizer.all_special_ids)
        self._bare: dict[int, str] = {}
        self._texts: dict[int, str] = {}

    def bare(self, token: int) -> str:
        """The text of a token, without the marks that say where it stands in a word, and without
        spaces."""
        if token not in self._bare:
            piece = self._piece(token)
            self._bare[token] = piece.removeprefix("##").lstrip("▁ĠĊ ").removesuffix("</w>").strip()
        return self._bare[token]

    def text(self, token: int) -> str:
        """The text of a token as it stands in a text, with the space before it; a piece that alone
        is no character (a byte of several), and pieces that are marked in another way (`##ing`), as
        the tokenizer writes them."""
        if token not in self._texts:
            piece = self._piece(token)
            if self._decoder is not None and token not in self._special:
                read = str(self._decoder.decode([ANCHOR, piece]))
                if read.startswith(ANCHOR) and BROKEN not in read and len(read) > len(ANCHOR):
                    piece = read.removeprefix(ANCHOR)
            self._texts[token] = piece
        return self._texts[token]

    def _piece(self, token: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(token) or "")
