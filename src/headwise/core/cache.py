"""Where headwise keeps what it can make again: unpacked models, parses, downloads."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HEADWISE_CACHE"


def cache_dir() -> Path:
    """The cache folder: `HEADWISE_CACHE` where it is set, otherwise `headwise` in `XDG_CACHE_HOME`
    where that is set (a whole path, as its specification wants), otherwise `~/.cache/headwise`. It
    need not exist yet."""
    given, common = os.environ.get(VARIABLE), os.environ.get("XDG_CACHE_HOME", "")
    if given:
        return Path(given).expanduser()
    return (Path(common) if Path(common).is_absolute() else Path.home() / ".cache") / "headwise"
