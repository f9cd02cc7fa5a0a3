"""Labelled arrays over tokens that say what is wrong with a token that is not there."""

from __future__ import annotations

from typing import Any

import xarray as xr

from headwise.core.errors import ParameterError, similar_names

TOKEN_DIMS = ("query", "key", "token")


class UnknownTokenError(ParameterError, KeyError):
    """A token that is not among the labels of an array."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would quote it


class TokenArray(xr.DataArray):  # type: ignore[no-untyped-call]
    """An array with tokens as labels; everywhere else a `DataArray`.

    The tokens of most decoders begin with the space before the word, which is easily forgotten.

    Examples
    --------
    >>> weights = TokenArray([0.2, 0.8], {"query": ["The", " cat"]}, ("query",))
    >>> try:
    ...     weights.sel(query="cat")
    ... except KeyError as error:
    ...     print(error)
    There is no token 'cat' in `query`. Did you mean ' cat', with a space?
    """

    __slots__ = ()

    def sel(
        self,
        indexers: Any = None,
        method: str | None = None,
        tolerance: Any = None,
        drop: bool = False,
        **indexers_kwargs: Any,
    ) -> Any:
        """As `DataArray.sel`; a token that is not there is rejected with the nearest ones."""
        try:
            return super().sel(indexers, method, tolerance, drop, **indexers_kwargs)
        except KeyError as error:
            for dim, labels in {**(indexers or {}), **indexers_kwargs}.items():
                if dim in TOKEN_DIMS and dim in self.coords:
                    self._reject_unknown(dim, labels, error)
            raise

    def _reject_unknown(self, dim: str, labels: Any, error: KeyError) -> None:
        """Raise an error for the first of some labels that is no token of a dim."""
        tokens = [str(token) for token in self[dim].values]
        for label in [labels] if isinstance(labels, str) else list(labels):
            if str(label) not in tokens:
                hint = _hint(str(label), tokens)
                message = f"There is no token {str(label)!r} in `{dim}`.{hint}"
                raise UnknownTokenError(message) from error


def _hint(label: str, tokens: list[str]) -> str:
    """Return a sentence with the tokens that a label may stand for."""
    for token in tokens:
        if token.strip() == label.strip():
            spacing = "with a space" if token != token.strip() else "without a space"
            return f" Did you mean {token!r}, {spacing}?"
    similar = similar_names(label, dict.fromkeys(tokens))
    if similar:
        return f" Did you mean {' or '.join(map(repr, similar))}?"
    shown = ", ".join(map(repr, tokens[:8]))
    more = ", …" if len(tokens) > 8 else ""
    return f" The tokens are {shown}{more}."
