"""Caches: which key/value heads need the whole context, and what a smaller cache costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.core.lazy import lazy_names

if TYPE_CHECKING:
    from headwise.experiments.cache.options import CacheOptions
    from headwise.experiments.cache.run import cache, cache_in_job, pattern_of

_PACKAGE = "headwise.experiments.cache"
__getattr__ = lazy_names(
    __name__,
    {
        f"{_PACKAGE}.options": ("CacheOptions",),
        f"{_PACKAGE}.run": ("cache", "cache_in_job", "pattern_of"),
    },
)

__all__ = ["CacheOptions", "cache", "cache_in_job", "pattern_of"]
