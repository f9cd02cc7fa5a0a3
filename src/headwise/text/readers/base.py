"""What a reader of a file format is: a name, the endings it goes by, and a function from files to examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwise.core.errors import ParameterError, unknown
from headwise.text.example import Example


@dataclass(frozen=True)
class Format:
    """A file format by name.

    `read(files, notes, **options)` yields examples; its keyword-only parameters are the options a user may give.
    `members` are the endings of the files read from an archive or a folder.
    """

    name: str
    about: str
    read: Callable[..., Iterator[Example]]
    members: tuple[str, ...]
    takes_folder: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        parameters = inspect.signature(self.read).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Refuse an option that this format does not have."""
        for name in given:
            if name not in self.options:
                raise ParameterError(unknown(f"option of the format {self.name}", name, self.options))
