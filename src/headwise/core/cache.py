"""Where headwise keeps what it can make again: unpacked models, parses, downloads."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HEADWISE_CACHE"


def cache_dir() -> Path:
    """The cache folder: `HEADWISE_CACHE` where it is set, otherwise `~/.cache/headwise`. It need not exist yet."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "headwise"
