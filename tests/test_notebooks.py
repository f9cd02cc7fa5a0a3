"""The example notebooks run as they are, and keep pictures when they are saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def test_there_are_two() -> None:
    assert [path.stem for path in EXAMPLES] == ["first_steps", "your_own_decoder"]
    for path in EXAMPLES:  # shipped as written, so that a change is a change of words
        assert all(
            not cell.get("outputs")
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        )


@pytest.mark.slow
def test_they_run_and_saved_ones_keep_their_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebooks = [nbformat.read(path, as_version=4) for path in EXAMPLES]
    # One kernel for all: importing torch takes longer than the cells. Nothing of one is known to
    # the next. Nothing there lives long enough to be collected, and to look for it at the end takes
    # as long as a cell.
    first, last = (
        nbformat.v4.new_code_cell(f"import gc; gc.{does}()") for does in ("disable", "freeze")
    )
    cells = [
        cell for one in notebooks for cell in (*one.cells, nbformat.v4.new_code_cell("%reset -f"))
    ]
    whole = nbformat.v4.new_notebook(cells=[first, *cells, last])
    nbclient.NotebookClient(
        whole, timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    for path, notebook in zip(EXAMPLES, notebooks, strict=True):
        nbformat.write(notebook, tmp_path / path.name)
        saved = nbformat.read(tmp_path / path.name, as_version=4)
        nbformat.validate(saved)
        shown = [
            output.get("data", {}) for cell in saved.cells for output in cell.get("outputs", [])
        ]
        pictures = [data for data in shown if "image/png" in data]
        assert len(pictures) >= 4
        for (
            data
        ) in pictures:  # the picture is in the HTML too, before the script that takes its place
            before, _, script = data["text/html"].partition("<script>")
            assert "data:image/png;base64," in before
            assert "show(el,data)" in script
        assert any(
            "all numbers</summary>" in data.get("text/html", "") for data in shown
        )  # the card
