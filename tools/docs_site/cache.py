"""What the site computes is kept in .work/docs, under a name that changes with the source, so that
nothing stale is shown and nothing is computed twice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".work" / "docs"
QUICK = "HEADWISE_DOCS_QUICK"  # set for a build that checks pages and links: little is computed, nothing is kept


def quick() -> bool:
    return bool(os.environ.get(QUICK))


@cache
def state_of_the_source() -> str:
    """A digest of everything that can change what the pages say."""
    digest = hashlib.sha256()
    for path in sorted(_sources()):
        digest.update(
            path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:16]


def _sources() -> Iterable[Path]:
    yield from (ROOT / "src").rglob("*.py")
    yield from Path(__file__).parent.glob("*.py")
    yield ROOT / "tests" / "models" / "tiny_models.py"


def kept(name: str, make: Callable[[], Any]) -> Any:
    """What `make` gave (plain data), from the file of an earlier build where the source is the
    same."""
    path = KEPT / f"{name}-{state_of_the_source()}.json"
    if not path.exists():
        found = make()
        if quick():
            return found
        KEPT.mkdir(parents=True, exist_ok=True)
        for old in KEPT.glob(f"{name}-*.json"):
            old.unlink()
        path.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))
