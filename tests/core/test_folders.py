"""An output folder is replaced whole or not at all, and nothing is deleted that headwise did not
write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwise.core.errors import OutputError
from headwise.core.folders import MANIFEST, files_in, new_folder, reject_unsafe


def write(target: Path, text: str, **options: object) -> None:
    with new_folder(target, **options) as folder:  # type: ignore[arg-type]
        (folder / "sub").mkdir()
        (folder / "sub" / "a.txt").write_text(text)


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("x")
        assert not (tmp_path / "out").exists()
    assert files_in(tmp_path / "out") == ["a"]
    assert (tmp_path / "out" / MANIFEST).exists()
    assert os.listdir(tmp_path) == ["out"]


def test_an_error_leaves_the_earlier_result_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "out", "first")
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "out", overwrite=True) as folder:
        (folder / "a").write_text(str(1 / 0))
    assert (tmp_path / "out" / "sub" / "a.txt").read_text() == "first"
    assert os.listdir(tmp_path) == ["out"]


def test_a_result_is_replaced_only_when_told_and_others_files_stay(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write(target, "first")
    (target / "notes.txt").write_text("mine")
    (target / "sub" / "more.txt").write_text("mine too")
    with pytest.raises(OutputError, match="overwrite=True"):
        write(target, "second")
    write(target, "second", overwrite=True)
    assert (target / "sub" / "a.txt").read_text() == "second"
    assert (target / "notes.txt").read_text() == "mine"
    assert (target / "sub" / "more.txt").read_text() == "mine too"
    write(target, "third", overwrite=True)  # what was carried over did not become headwise's own
    assert (target / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_of_somebody_elses_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"did not write \(chapter.tex\)"):
        write(target, "x", overwrite=True)
    assert (target / "chapter.tex").read_text() == "years of work"


def test_what_is_read_is_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models" / "llama"
    model.mkdir(parents=True)
    for target in (model, tmp_path / "models"):
        with pytest.raises(OutputError, match=r"still needed|is read by this command"):
            reject_unsafe(target, True, [model])
    monkeypatch.chdir(model)
    for target in (Path("."), Path(".."), tmp_path):
        with pytest.raises(OutputError, match=r"still needed|is read by this command"):
            reject_unsafe(target, True)


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match="is not a folder"):
        reject_unsafe(tmp_path / "out", True)


def test_a_new_file_never_takes_the_place_of_a_users(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with new_folder(target) as folder:
        (folder / "a").write_text("one")
    (target / "b").write_text("mine")
    with (
        pytest.raises(OutputError, match="move it away"),
        new_folder(target, overwrite=True) as folder,
    ):
        (folder / "b").write_text("theirs")
    assert (target / "b").read_text() == "mine"
    assert (target / "a").read_text() == "one"
