"""`headwise gallery` from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from headwise import Atlas


def test_a_gallery_is_made_and_not_replaced_unasked(headwise, tmp_path: Path) -> None:
    for name in ("first", "second"):
        values = xr.DataArray(
            np.random.default_rng(len(name)).random((2, 3)), dims=("layer", "head")
        )
        atlas = Atlas({"surface": xr.Dataset({"entropy": values})}, {"model": {"name": name}})
        atlas.save(tmp_path / name / "atlas.nc")
    folders = [tmp_path / "first", tmp_path / "second" / "atlas.nc"]
    made = headwise("gallery", *folders, "--out", tmp_path / "out", "--title", "Ours")
    assert (made.code, made.out) == (0, f"Gallery: {tmp_path / 'out' / 'index.html'}\n")
    assert "<h1>Ours</h1>" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    again = headwise("gallery", *folders, "--out", tmp_path / "out")
    assert again.code == 2
    assert "On the command line: --overwrite." in again.err
    assert headwise("gallery", *folders, "--out", tmp_path / "out", "--overwrite").code == 0
    missing = headwise("gallery", tmp_path / "frist", "--out", tmp_path / "new")
    assert missing.code == 2
    assert f"Did you mean '{tmp_path / 'first'}'?" in missing.err
    assert not (tmp_path / "new").exists()
