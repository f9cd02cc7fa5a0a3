"""Where what can be made again is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.core.files import cache_dir


def test_the_variable_comes_first_then_the_common_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_CACHE", "/a/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b/cache")
    assert cache_dir() == Path("/a/own")
    monkeypatch.delenv("HEADWISE_CACHE")
    assert cache_dir() == Path("/b/cache/headwise")
    for nothing in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", nothing)
        assert cache_dir() == Path.home() / ".cache" / "headwise"
