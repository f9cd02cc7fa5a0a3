"""The list of sieves (a decorated function registers itself), and their boolean matrices on a
batch, checked for shape and type."""

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

SieveFunction = Callable[[TokenAxis, TokenAxis], np.ndarray]
RELATION = "relation:"  # `relation:det` is a sieve for the relation `det`, created on request
TREE = frozenset({"words", "dependencies"})


@dataclass(frozen=True, slots=True)
class Sieve:
    """A named sieve: its function and what it needs.

    `function(i, j)` gives a boolean matrix `[rows, tokens]`: True where token i, in this role,
    should attend to j."""

    name: str
    about: str
    function: SieveFunction
    requires: frozenset[str] = frozenset()  # annotations
    token_types: tuple[str, ...] = ()  # the tokenizer must have at least one of these
    ahead: bool = False  # holds later tokens only, which a causal model does not see
    behind: bool = False  # holds earlier tokens only: for causal models
    module: str = __name__  # where it was registered

    @property
    def form(self) -> SieveForm | None:
        """The form whose statistics the attention kernel can compute; None for other functions."""
        return self.function if isinstance(self.function, SieveForm) else None

    def missing_reason(self, shape: Shape) -> str | None:
        """Return why a corpus or model cannot provide this sieve, or None if it can."""
        reason = missing_annotation_reason(self.requires, shape)
        if reason is not None:
            return reason
        if self.token_types and not set(self.token_types) & set(shape.token_types):
            return f"the tokenizer has no {' or '.join(self.token_types)} token"
        if self.ahead and shape.causal:
            return "a causal model cannot attend to later tokens"
        if self.behind and not shape.causal:
            return "decoder-only role"
        if self.name.startswith(RELATION):
            relation = self.name.removeprefix(RELATION)
            relations = known_relations(shape)
            if relation not in relations:
                raise ParameterError(unknown("relation in this corpus", relation, relations))
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
) -> Callable[[SieveFunction], SieveFunction]:
    """Register a function of the two axes of a map as a sieve.

    Parameters
    ----------
    name : str
        Name of the role. It must be free; a function defined again (a notebook cell run twice)
        replaces itself.
    about : str
        In a few words, what a token of this role attends to.
    requires : iterable of str, optional
        Annotations without which the sieve is empty: `words`, `dependencies`, `pos`, `segments`,
        ...
    token_types : iterable of str, optional
        `cls`, `sep`: the tokenizer must have one of these.
    ahead : bool, default False
        The sieve holds later tokens only, so that a causal model cannot have it.
    behind : bool, default False
        The sieve is about earlier tokens, and computed for causal models only.

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
            "A sieve's name must be a letter followed by letters, digits and `_ : . -`; it is "
            f"{name!r}."
        )
    # Taken from the caller: a form, unlike a function, does not know its module.
    module = str(sys._getframe(1).f_globals.get("__name__", ""))

    def register(function: SieveFunction) -> SieveFunction:
        previous = _SIEVES.get(name)
        if previous is not None and not _is_redefinition(previous.function, function):
            raise ParameterError(
                f"Two sieves are called '{name}' (in {previous.module} and in {module}): rename "
                "one of them."
            )
        _SIEVES[name] = Sieve(
            name, about, function, frozenset(requires), tuple(token_types), ahead, behind, module
        )
        return function

    return register


def _is_redefinition(previous: SieveFunction, current: SieveFunction) -> bool:
    """Return whether `current` is `previous` defined again, as in a notebook cell run twice."""
    # The sieves of a plugin file are removed before the file is read again, so a second definition
    # in a file is a clash. Lambdas have no name to recognise them by.
    module = current.__module__
    name = getattr(current, "__qualname__", "<lambda>")
    if module.endswith(".py") or name.endswith("<lambda>"):
        return False
    return previous.__module__ == module and getattr(previous, "__qualname__", "") == name


def known_sieves() -> dict[str, Sieve]:
    """Return every registered sieve by name, in the order of registration."""
    _load_builtin()
    return dict(_SIEVES)


def find_sieve(name: str) -> Sieve:
    """Return a sieve by name; `relation:NAME` is one for any relation of the corpus."""
    sieves = known_sieves()
    if name in sieves:
        return sieves[name]
    if name.startswith(RELATION) and len(name) > len(RELATION):
        return _relation_sieve(name.removeprefix(RELATION))
    raise ParameterError(unknown("sieve", name, [*sieves, f"{RELATION}NAME"]))


# Cached so that it is the same object each time: batches remember matrices by their sieves.
@cache
def _relation_sieve(relation: str) -> Sieve:
    about = f"words linked to the token's word by {relation}"
    return Sieve(RELATION + relation, about, RelationArcs(frozenset({relation})), TREE)


def forget_sieve(name: str) -> None:
    """Remove a sieve from the list (for tests and notebooks)."""
    _SIEVES.pop(name, None)


def load_sieves(plugin: str) -> None:
    """Import sieves of the user: a Python file by its path, or a module by its name.

    The code is executed like that of any imported module. A file is read again when it has changed.
    """
    # The built-in sieves come first: one of the user's that takes a built-in name is rejected.
    _load_builtin()
    if plugin:
        file = Path(plugin)
        is_file = plugin.endswith(".py") and file.is_file()
        _load_plugin(plugin, file.stat().st_mtime_ns if is_file else 0)


@cache
def _load_plugin(plugin: str, changed: int) -> None:
    """Load a plugin; `changed` makes a new version of a file a new entry of the cache."""
    try:
        if plugin.endswith(".py"):
            _load_plugin_file(plugin)
        else:
            importlib.import_module(plugin)
    except ParameterError:
        raise
    except Exception as error:  # code of the user can raise anything
        raise ParameterError(
            f"The sieves of '{plugin}' cannot be loaded ({type(error).__name__}: {error}); check "
            "`plugin`."
        ) from error


def _load_plugin_file(plugin: str) -> None:
    # The path is the module's name too: two files of the same name are two modules.
    path = str(Path(plugin).resolve())
    spec = importlib.util.spec_from_file_location(path, path) if Path(path).is_file() else None
    if spec is None or spec.loader is None:
        raise ParameterError(f"There is no file '{plugin}' with sieves; check `plugin`.")
    # Remove the sieves of an earlier version: the edited file may no longer define them.
    for name in [sieve.name for sieve in _SIEVES.values() if sieve.module == path]:
        forget_sieve(name)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@cache
def _load_builtin() -> None:
    importlib.import_module("headwise.analyses.roles.sieves.builtin")


# --- matrices -------------------------------------------------------------------------------------


def sieve_matrix(sieve: Sieve, row: Encoded, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Return the matrix of a sieve on one input: bool `[rows, tokens]`, for the queries
    `start..stop` (default: all)."""
    queries, keys = token_axes(row, start, stop)
    return _checked_matrix(sieve, queries, keys)


def _checked_matrix(sieve: Sieve, queries: TokenAxis, keys: TokenAxis) -> np.ndarray:
    try:
        matrix = np.asarray(sieve.function(queries, keys))
    except HeadwiseError:
        raise
    except Exception as error:  # code of the user can raise anything
        raise ParameterError(
            f"The sieve '{sieve.name}' fails on {queries.row.example.where} "
            f"({type(error).__name__}: {error}); fix its function."
        ) from error
    n_queries = queries.position.size
    n_keys = keys.position.size
    # A single row or column stands for all.
    if matrix.shape not in ((n_queries, n_keys), (1, n_keys), (n_queries, 1)):
        raise ParameterError(
            f"The sieve '{sieve.name}' gives a matrix of shape {matrix.shape} for {n_queries} "
            f"queries and {n_keys} keys; it must be {(n_queries, n_keys)}."
        )
    if matrix.dtype != bool:
        raise ParameterError(
            f"The sieve '{sieve.name}' gives {matrix.dtype}; it must give True or False for each "
            "pair of tokens."
        )
    return np.broadcast_to(matrix, (n_queries, n_keys))


def sieve_matrices(
    sieves: Sequence[Sieve], batch: Batch, start: int = 0, stop: int | None = None
) -> Tensor:
    """Return the matrices of all sieves on all inputs of a batch.

    Bool `[example, sieve, row, token]` on the batch's device; False on padding.
    """
    width = batch.ids.shape[1]
    stop = width if stop is None else stop
    matrices = np.zeros((len(batch), len(sieves), stop - start, width), dtype=bool)
    for number, row in enumerate(batch.rows):
        queries, keys = token_axes(row, start, stop)
        n_queries = queries.position.size
        if not n_queries:
            continue
        for place, sieve in enumerate(sieves):
            matrix = _checked_matrix(sieve, queries, keys)
            matrices[number, place, :n_queries, : len(row)] = matrix
    return torch.from_numpy(matrices).to(batch.device)
