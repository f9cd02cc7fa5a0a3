"""The list of sieves: a decorated function is its own registration, found by name."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.core.errors import ParameterError, unknown

if TYPE_CHECKING:
    from headwise.analyses.contract import Shape
    from headwise.analyses.roles.sieves.tokens import Tokens

Function = Callable[["Tokens", "Tokens"], np.ndarray]
RELATION = "relation:"  # `relation:det`: a sieve for any relation, made when it is asked for
HOW_TO_GET = {
    "words": "no words: give a corpus of words, or name a parser",
    "dependencies": "no trees: give a treebank, or name a parser",
    "pos": "no parts of speech: give a treebank, or name a parser",
    "segments": "no pairs of texts",
}


@dataclass(frozen=True, slots=True)
class Sieve:
    """A named sieve: its function and what it needs.

    `function(i, j)` gives a boolean matrix `[rows, tokens]`: True where token i, in this role, should attend to token j.
    """

    name: str
    about: str
    function: Function
    requires: frozenset[str] = frozenset()  # annotations
    token_types: tuple[str, ...] = ()  # at least one of them the tokenizer must have
    ahead: bool = False  # only looks at later tokens

    def lacking(self, shape: Shape) -> str | None:
        """Why a corpus or model cannot give this sieve, or None."""
        for name in sorted(self.requires - shape.annotations):
            return f"the corpus has {HOW_TO_GET.get(name, f'no {name}')}"
        if self.token_types and not set(self.token_types) & set(shape.token_types):
            return f"the tokenizer has no {' or '.join(self.token_types)} token"
        if self.ahead and shape.causal:
            return "a causal model cannot look ahead"
        if self.name.startswith(RELATION):
            known = sorted({relation.split(":", 1)[0] for relation in shape.relations} | set(shape.relations))
            wanted = self.name.removeprefix(RELATION)
            if wanted not in known:
                raise ParameterError(unknown("relation in this corpus", wanted, known))
        return None


_SIEVES: dict[str, Sieve] = {}
_OF_FILE: dict[str, set[str]] = {}  # the sieves of each file of a user


def sieve(
    name: str, about: str, *, requires: Iterable[str] = (), token_types: Iterable[str] = (), ahead: bool = False
) -> Callable[[Function], Function]:
    """Register a function of the two sides of a map as a sieve.

    Parameters
    ----------
    name
        What the role is called.
    about
        In a few words, what a token of this role looks at.
    requires
        Annotations without which the sieve is empty: `words`, `dependencies`, `pos`, `segments`, ...
    token_types
        `cls`, `sep`: the tokenizer must have one of these.
    ahead
        The sieve holds later tokens only, so that a causal model cannot have it.

    Examples
    --------
    >>> @sieve("shouting", "words in capitals", requires=["words"])
    ... def shouting(i, j):
    ...     return (j.word >= 0) & np.vectorize(str.isupper, otypes=[bool])(j.piece)

    `i` and `j` are `Tokens`; a result of one row stands for all rows.
    """
    if not re.fullmatch(r"[A-Za-z][\w:.\-]*", name):
        raise ParameterError(
            f"A sieve's name must be a letter followed by letters, digits and `_ : . -`; it is {name!r}."
        )

    def register(function: Function) -> Function:
        before = _SIEVES.get(name)
        if before is not None and (before.function.__module__, before.function.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise ParameterError(f"Two sieves are called '{name}': give one of them another name.")
        _SIEVES[name] = Sieve(name, about, function, frozenset(requires), tuple(token_types), ahead)
        return function

    return register


def known_sieves() -> dict[str, Sieve]:
    """Every registered sieve by name, in the order of registration."""
    _load_own()
    return dict(_SIEVES)


def find_sieve(name: str) -> Sieve:
    """A sieve by name; `relation:NAME` is one for any relation of the corpus."""
    known = known_sieves()
    if name in known:
        return known[name]
    if name.startswith(RELATION) and len(name) > len(RELATION):
        wanted = name.removeprefix(RELATION)

        def linked(i: Tokens, j: Tokens) -> np.ndarray:
            return i.linked(j, {wanted})

        return Sieve(
            name, f"words linked to the token's word by {wanted}", linked, frozenset({"words", "dependencies"})
        )
    raise ParameterError(unknown("sieve", name, [*known, f"{RELATION}NAME"]))


def forget_sieve(name: str) -> None:
    """Take a sieve out of the list again (for tests and notebooks)."""
    _SIEVES.pop(name, None)


def load_sieves(plugin: str) -> None:
    """Import the user's own sieves: a Python file by its path (again when it has changed), or a module by its name. It is run as any module that is imported."""
    _load_own()  # first: a user's sieves stand after ours, and one that takes a name of ours is refused for it
    if plugin:
        file = Path(plugin)
        _load_plugin(plugin, file.stat().st_mtime_ns if plugin.endswith(".py") and file.is_file() else 0)


@cache
def _load_plugin(plugin: str, changed: int) -> Any:
    try:
        if not plugin.endswith(".py"):
            return importlib.import_module(plugin)
        path = Path(plugin)
        found = importlib.util.spec_from_file_location(f"headwise_sieves_{path.stem}", path) if path.is_file() else None
        if found is None or found.loader is None:
            raise ParameterError(f"There is no file '{plugin}' with sieves; check `plugin`.")
        module = importlib.util.module_from_spec(found)
        for name in _OF_FILE.pop(plugin, ()):  # one that an edited file no longer has is no sieve any more
            forget_sieve(name)
        others = set(_SIEVES)
        found.loader.exec_module(module)
        _OF_FILE[plugin] = set(_SIEVES) - others
        return module
    except ParameterError:
        raise
    except Exception as error:  # whatever the user's own code does
        raise ParameterError(
            f"The sieves of '{plugin}' cannot be loaded ({type(error).__name__}: {error}); check `plugin`."
        ) from error


@cache
def _load_own() -> None:
    for module in ("positions", "syntax", "builtin"):
        importlib.import_module(f"headwise.analyses.roles.sieves.{module}")
