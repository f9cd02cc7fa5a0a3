"""The example notebooks run as they are, and keep pictures when they are saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def test_there_are_two() -> None:
    assert [path.stem for path in EXAMPLES] == ["first_steps", "your_own_decoder"]
    for path in EXAMPLES:  # shipped as written, so that a change is a change of words
        assert all(not cell.get("outputs") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_a_saved_one_keeps_its_pictures(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.write(notebook, tmp_path / path.name)
    saved = nbformat.read(tmp_path / path.name, as_version=4)
    nbformat.validate(saved)
    shown = [output.get("data", {}) for cell in saved.cells for output in cell.get("outputs", [])]
    pictures = [data for data in shown if "image/png" in data]
    assert len(pictures) >= 4
    for data in pictures:  # the picture is in the HTML too, before the script that takes its place
        before, _, script = data["text/html"].partition("<script>")
        assert "data:image/png;base64," in before
        assert "show(el,data)" in script
    assert any("all numbers</summary>" in data.get("text/html", "") for data in shown)  # the card
