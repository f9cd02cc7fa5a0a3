"""The cache folder: unpacked models, parses, downloads, all of which can be made again."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HEADWISE_CACHE"


def cache_dir() -> Path:
    """Return the cache folder, which need not exist yet.

    It is `HEADWISE_CACHE` if that is set, else `headwise` in `XDG_CACHE_HOME`, else
    `~/.cache/headwise`."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not user_cache.is_absolute():  # the specification has relative paths ignored
        user_cache = Path.home() / ".cache"
    return user_cache / "headwise"
