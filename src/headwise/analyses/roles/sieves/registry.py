"""The list of sieves: a decorated function is its own registration, found by name; and their
boolean matrices on a batch, checked for shape and kind."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headwise.analyses.contract import Shape
from headwise.analyses.items import known_relations, missing_annotation_reason
from headwise.analyses.roles.sieves.forms import RelationArcs, SieveForm
from headwise.analyses.roles.sieves.tokens import TokenAxis, token_axes
from headwise.core.errors import HeadwiseError, ParameterError, unknown
from headwise.text.encode import Batch, Encoded

Function = Callable[[TokenAxis, TokenAxis], np.ndarray]
RELATION = "relation:"  # `relation:det`: a sieve for any relation, made when it is asked for
TREE = frozenset({"words", "dependencies"})


@dataclass(frozen=True, slots=True)
class Sieve:
    """A named sieve: its function and what it needs.

    `function(i, j)` gives a boolean matrix `[rows, tokens]`: True where token i, in this role,
    should attend to j."""

    name: str
    about: str
    function: Function
    requires: frozenset[str] = frozenset()  # annotations
    token_types: tuple[str, ...] = ()  # at least one of them the tokenizer must have
    ahead: bool = False  # only looks at later tokens
    behind: bool = False  # only looks at what came before, which is asked of causal models
    module: str = __name__  # where it was registered

    @property
    def form(self) -> SieveForm | None:
        """What it is made of, where that can be asked of the attention kernel; None: only the
        function knows."""
        return self.function if isinstance(self.function, SieveForm) else None

    def missing_reason(self, shape: Shape) -> str | None:
        """Why a corpus or model cannot give this sieve, or None."""
        if reason := missing_annotation_reason(self.requires, shape):
            return reason
        if self.token_types and not set(self.token_types) & set(shape.token_types):
            return f"the tokenizer has no {' or '.join(self.token_types)} token"
        if self.ahead and shape.causal:
            return "a causal model cannot look ahead"
        if self.behind and not shape.causal:
            return "it is asked of decoders, which see only what came before"
        if self.name.startswith(RELATION):
            wanted, known = self.name.removeprefix(RELATION), known_relations(shape)
            if wanted not in known:
                raise ParameterError(unknown("relation in this corpus", wanted, known))
        return None


_SIEVES: dict[str, Sieve] = {}


def sieve(
    name: str,
    about: str,
    *,
    requires: Iterable[str] = (),
    token_types: Iterable[str] = (),
    ahead: bool = False,
    behind: bool = False,
) -> Callable[[Function], Function]:
    """Register a function of the two sides of a map as a sieve.

    Parameters
    ----------
    name : str
        What the role is called. It must be free; a function defined again (a cell run twice)
        replaces itself.
    about : str
        In a few words, what a token of this role looks at.
    requires : iterable of str, optional
        Annotations without which the sieve is empty: `words`, `dependencies`, `pos`, `segments`,
        ...
    token_types : iterable of str, optional
        `cls`, `sep`: the tokenizer must have one of these.
    ahead : bool, default False
        The sieve holds later tokens only, so that a causal model cannot have it.
    behind : bool, default False
        The sieve is about what came before, and asked of causal models only.

    Examples
    --------
    >>> @sieve("shouting", "words in capitals", requires=["words"])
    ... def shouting(i, j):
    ...     return (j.word >= 0) & np.vectorize(str.isupper, otypes=[bool])(j.piece)
    >>> find_sieve("shouting").about
    'words in capitals'
    >>> forget_sieve("shouting")

    `i` and `j` are `TokenAxis`; a result of one row stands for all rows.
    """
    if not re.fullmatch(r"[A-Za-z][\w:.\-]*", name):
        raise ParameterError(
            f"A sieve's name must be a letter followed by letters, digits and `_ : . -`; it is {name!r}."
        )

    module = str(
        sys._getframe(1).f_globals.get("__name__", "")
    )  # a form does not know where it stands

    def register(function: Function) -> Function:
        before = _SIEVES.get(name)
        if before is not None and not _again(before.function, function):
            raise ParameterError(
                f"Two sieves are called '{name}' (in {before.module} and in {module}): give one of them another name."
            )
        _SIEVES[name] = Sieve(
            name, about, function, frozenset(requires), tuple(token_types), ahead, behind, module
        )
        return function

    return register


def _again(before: Function, now: Function) -> bool:
    """Whether a function is an earlier one defined again. A file's are forgotten before it is read
    again, so in a file it is a second one; lambdas have no name to tell them by."""
    names = [(one.__module__, getattr(one, "__qualname__", "<lambda>")) for one in (before, now)]
    return (
        names[0] == names[1]
        and not names[1][0].endswith(".py")
        and not names[1][1].endswith("<lambda>")
    )


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
        return _relation_sieve(name.removeprefix(RELATION))
    raise ParameterError(unknown("sieve", name, [*known, f"{RELATION}NAME"]))


@cache  # the same object each time: it is part of what a batch's matrices are remembered by
def _relation_sieve(relation: str) -> Sieve:
    about = f"words linked to the token's word by {relation}"
    return Sieve(RELATION + relation, about, RelationArcs(frozenset({relation})), TREE)


def forget_sieve(name: str) -> None:
    """Take a sieve out of the list again (for tests and notebooks)."""
    _SIEVES.pop(name, None)


def load_sieves(plugin: str) -> None:
    """Import the user's own sieves: a Python file by its path (again when it has changed), or a
    module by its name.

    It is run as any module that is imported.
    """
    _load_own()  # first: a user's sieves stand after ours, and one that takes a name of ours is refused for it
    if plugin:
        file = Path(plugin)
        _load_plugin(
            plugin, file.stat().st_mtime_ns if plugin.endswith(".py") and file.is_file() else 0
        )


@cache
def _load_plugin(plugin: str, changed: int) -> None:
    try:
        if not plugin.endswith(".py"):
            importlib.import_module(plugin)
            return
        path = str(
            Path(plugin).resolve()
        )  # the module's name as well: two files of one name are two
        found = importlib.util.spec_from_file_location(path, path) if Path(path).is_file() else None
        if found is None or found.loader is None:
            raise ParameterError(f"There is no file '{plugin}' with sieves; check `plugin`.")
        for own in [own.name for own in _SIEVES.values() if own.module == path]:
            forget_sieve(own)  # one that an edited file no longer has is no sieve any more
        found.loader.exec_module(importlib.util.module_from_spec(found))
    except ParameterError:
        raise
    except Exception as error:  # whatever the user's own code does
        raise ParameterError(
            f"The sieves of '{plugin}' cannot be loaded ({type(error).__name__}: {error}); check `plugin`."
        ) from error


@cache
def _load_own() -> None:
    importlib.import_module("headwise.analyses.roles.sieves.builtin")


# --- matrices -------------------------------------------------------------------------------------


def sieve_matrix(sieve: Sieve, row: Encoded, start: int = 0, stop: int | None = None) -> np.ndarray:
    """The matrix of a sieve on one input: bool `[rows, tokens]`, for the looking tokens
    `start..stop` (all if None)."""
    return _checked(sieve, *token_axes(row, start, stop))


def _checked(sieve: Sieve, i: TokenAxis, j: TokenAxis) -> np.ndarray:
    try:
        found = np.asarray(sieve.function(i, j))
    except HeadwiseError:
        raise
    except Exception as error:  # a user's function may fail in any way
        raise ParameterError(
            f"The sieve '{sieve.name}' fails on {i.row.example.where} ({type(error).__name__}: {error}); "
            "mend its function."
        ) from error
    shape = (i.position.size, j.position.size)
    if found.shape not in (
        shape,
        (1, shape[1]),
        (shape[0], 1),
    ):  # a single row or column stands for all
        raise ParameterError(
            f"The sieve '{sieve.name}' gives a matrix of shape {found.shape} for {shape[0]} looking tokens and "
            f"{shape[1]} tokens; it must be {shape}."
        )
    if found.dtype != bool:
        raise ParameterError(
            f"The sieve '{sieve.name}' gives {found.dtype}; it must give True or False for each pair of tokens."
        )
    return np.broadcast_to(found, shape)


def sieve_matrices(
    sieves: Sequence[Sieve], batch: Batch, start: int = 0, stop: int | None = None
) -> Tensor:
    """All sieves on all inputs of a batch: bool `[example, sieve, row, token]` on its device; False
    on padding."""
    width = batch.ids.shape[1]
    stop = width if stop is None else stop
    out = np.zeros((len(batch), len(sieves), stop - start, width), dtype=bool)
    for number, row in enumerate(batch.rows):
        i, j = token_axes(row, start, stop)
        for place, sieve in enumerate(sieves if i.position.size else ()):
            out[number, place, : i.position.size, : len(row)] = _checked(sieve, i, j)
    return torch.from_numpy(out).to(batch.device)
