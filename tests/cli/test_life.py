"""The life of a command: stopped, killed, failing or rejected, nothing is lost and nothing of others
is touched."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from headwise import Atlas
from headwise import plots as plots_module
from headwise.analyses.offsets.analysis import Offsets
from headwise.core.folders import MANIFEST
from headwise.core.lock import hold_lock
from headwise.page import parallel as parallel_module
from headwise.page import report as report_module
from headwise.page import sections as sections_module
from headwise.plots.registry import FigureSpec
from headwise.run import engine as engine_module
from headwise.run import runner as runner_module


def everything(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with their bytes."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def plain_figure(*_: object, **__: object) -> Figure:
    return Figure(figsize=(1, 1))


@pytest.fixture(autouse=True)
def plain_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """One empty figure of each analysis: drawing would be most of the time here, and is not what is
    tested."""
    monkeypatch.setattr(sections_module, "FORMATS", ("svg",))
    specs = {
        name: FigureSpec(name, "plain", "Plain", "", "", plain_figure)
        for name in ("surface", "offsets")
    }
    plain = FigureSpec("", "plain", "Plain", "", "", plain_figure)
    for place in (sections_module, plots_module):
        monkeypatch.setattr(place, "figures_for", lambda group: [specs.get(group, plain)])
    for name in ("draw_heads", "draw_all_maps"):
        monkeypatch.setattr(sections_module, name, plain_figure)


@pytest.fixture
def atlas(headwise, model_folder: Path, corpus_file: Path, tmp_path: Path) -> Callable[..., object]:
    """`headwise atlas` with two analyses into a folder of tmp_path."""

    def call(folder: str, *more: object):
        out = tmp_path / folder
        arguments = (
            model_folder,
            "--corpus",
            corpus_file,
            "--analyses",
            "surface,offsets",
            "--out",
            out,
            *more,
        )
        return headwise("atlas", *arguments)

    return call


def stop_at(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, number: int, how: signal.Signals
) -> list[str]:
    """A signal comes when a function is called for the so-manieth time; what it was called with
    before is kept."""
    original, calls = getattr(module, name), []

    def stopping(*arguments: object, **more: object):
        if len(calls) == number:
            calls.append("stop")
            signal.raise_signal(how)
        calls.append(str(arguments[-1]))
        return original(*arguments, **more)

    monkeypatch.setattr(module, name, stopping)
    return calls


def test_a_command_stopped_again_and_again_resumes_to_the_same_bytes(
    atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert atlas("whole").code == 0
    for module, name, number, how, code in (
        (engine_module, "observe_batch", 0, signal.SIGTERM, 143),
        (runner_module, "label", 1, signal.SIGINT, 130),
        (sections_module, "figure_bytes", 0, signal.SIGINT, 130),
        (report_module, "draw_section", 1, signal.SIGTERM, 143),
        (report_module, "write_page", 0, signal.SIGINT, 130),
    ):
        with monkeypatch.context() as patch:
            stop_at(patch, module, name, number, how)
            stopped = atlas("out")
        assert stopped.code == code, name
        assert stopped.err.count("repeat the command to resume") == 1
        assert "Traceback" not in stopped.err
        assert not (tmp_path / "out" / "index.html").exists()
    assert atlas("out").code == 0
    assert everything(tmp_path / "out") == everything(tmp_path / "whole")


def test_a_comparison_stopped_while_it_draws_resumes_and_draws_nothing_twice(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(folder: str):
        out = tmp_path / folder
        models = (model_folder, model_folder, "--names", "old,new", "--corpus", corpus_file)
        return headwise(
            "compare",
            *models,
            "--analyses",
            "surface",
            "--out",
            out / "c.nc",
            "--figures",
            out / "drawn",
        )

    assert compare("whole").code == 0
    monkeypatch.setattr(
        parallel_module, "FEWEST", 99
    )  # what is counted here is drawn here, not by another process
    sections = stop_at(monkeypatch, report_module, "draw_section", 99, signal.SIGTERM)
    figures = stop_at(monkeypatch, plots_module, "save_figure", 99, signal.SIGTERM)
    for module, name, number in (
        (plots_module, "save_figure", 1),
        (report_module, "draw_section", 1),
        (report_module, "write_page", 0),
    ):
        with monkeypatch.context() as patch:
            stop_at(patch, module, name, number, signal.SIGTERM)
            stopped = compare("out")
        assert stopped.code == 143, stopped.err
        assert not (tmp_path / "out" / "c" / "index.html").exists()
    assert compare("out").code == 0
    groups = ["change", "change_surface", "change_words"]
    assert (sorted(sections), sorted(figures)) == (groups, [f"{group}-plain" for group in groups])
    assert everything(tmp_path / "out") == everything(tmp_path / "whole")
    assert not list(tmp_path.rglob("*.run"))


STOPPED_AT = """
import os, sys
from headwise.__main__ import main

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), int(number))

module, number = sys.argv[1:]
sys.meta_path.insert(0, Stop())
sys.argv[1:] = ["--version"]
main()
"""


@pytest.mark.parametrize("module", ["headwise.cli", "typer", "headwise.cli.atlas"])
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_before_the_command_is_even_imported_is_one_sentence(
    module: str, name: str, code: int
) -> None:
    number = str(int(getattr(signal, name)))
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT, module, number], capture_output=True, text=True
    )
    said = f"headwise: Interrupted by {name}.\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_what_is_drawn_is_not_drawn_again_unless_it_is_damaged(
    atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, report_module, "write_page", 0, signal.SIGTERM)
        atlas("out")
    (tmp_path / "out" / "figures" / ".surface.svg.999999999.headwise-tmp").write_text("half")
    (tmp_path / "out" / ".atlas.nc.999999999.headwise-tmp").write_text("half")
    figure = next((tmp_path / "out" / "figures").glob("offsets-*.svg"))
    whole = figure.read_bytes()
    figure.write_bytes(whole[:-1])
    calls = stop_at(monkeypatch, report_module, "draw_section", 99, signal.SIGTERM)
    monkeypatch.setattr(runner_module.Run, "atlas", lambda self: pytest.fail("made again"))
    assert atlas("out").code == 0
    assert calls == ["offsets"]
    assert figure.read_bytes() == whole
    assert not list((tmp_path / "out").rglob("*.headwise-tmp"))
    assert not (tmp_path / "out" / ".run").exists()


def test_page_draws_again_from_the_atlas_alone(
    headwise, atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert atlas("out").code == 0
    expected = everything(out)
    rejected = headwise("page", out)
    assert rejected.code == 2
    assert "index.html exists; pass overwrite=True" in rejected.err
    shutil.rmtree(out / "figures")
    (out / "index.html").write_text("edited")
    (out / "notes.txt").write_text("mine")
    assert headwise("page", out, "--overwrite").code == 0
    assert (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").unlink()
    assert everything(out) == expected  # the sample too, which came from the model
    assert headwise("page", out / "atlas.nc", "--out", tmp_path / "elsewhere").code == 0
    assert "One input, drawn whole" in (tmp_path / "elsewhere" / "index.html").read_text()
    stop_at(monkeypatch, report_module, "write_page", 0, signal.SIGTERM)
    atlas("other")
    monkeypatch.undo()
    (tmp_path / "other" / "index.html").touch()

    # An unfinished run is not put aside for a page: its checkpoints stay, and it resumes.
    def checkpoints() -> dict[str, bytes]:
        files = everything(tmp_path / "other" / ".run")
        return {name: content for name, content in files.items() if name != "lock"}

    before = checkpoints()
    assert before
    assert headwise("page", tmp_path / "other", "--overwrite").code == 0
    assert checkpoints() == before
    assert not (tmp_path / "other" / ".page").exists()
    with hold_lock(tmp_path / "other" / ".run" / "lock"):
        busy = headwise("page", tmp_path / "other", "--overwrite")
    assert busy.code == 2
    assert "other is in use by process" in busy.err
    (tmp_path / "other" / "atlas.nc").unlink()
    unfinished = headwise("page", tmp_path / "other")
    assert unfinished.code == 2
    assert "is not finished; repeat the command that makes it" in unfinished.err


def test_another_report_takes_away_only_what_headwise_wrote(
    headwise, atlas, model_folder, tmp_path: Path
) -> None:
    assert atlas("out").code == 0
    out = tmp_path / "out"
    (out / "figures" / "mine.svg").write_text("mine")
    assert next((out / "figures").glob("offsets-*"))
    arguments = (
        "--corpus",
        tmp_path / "toy.txt",
        "--analyses",
        "surface",
        "--out",
        out,
        "--overwrite",
    )
    assert headwise("atlas", model_folder, *arguments).code == 0
    assert not list((out / "figures").glob("offsets-*"))
    assert (out / "figures" / "mine.svg").read_text() == "mine"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("my homepage")
    rejected = atlas("site")
    assert rejected.code == 2
    assert "index.html was not written by headwise" in rejected.err
    assert (tmp_path / "site" / "index.html").read_text() == "my homepage"
    assert not (tmp_path / "site" / MANIFEST).exists()


def test_an_output_that_holds_what_is_read_is_rejected(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = corpus_file.read_bytes()
    monkeypatch.chdir(tmp_path)
    senteval = tmp_path / "tense.txt"
    senteval.write_text("tr\tPAST\tthe cat saw\nte\tPRES\ta dog sleeps\n")
    read = (model_folder, "--corpus", corpus_file)
    for command in (
        ("atlas", *read, "--out", corpus_file.parent, "--overwrite"),
        ("atlas", *read, "--out", ".", "--overwrite"),
        ("atlas", *read, "--out", model_folder.parent, "--overwrite"),
        (
            "run",
            "surface",
            "--model",
            model_folder,
            "--corpus",
            f"txt:{corpus_file}",
            "--out",
            corpus_file,
            "--overwrite",
        ),
        ("ablate", *read, "--out", corpus_file, "--overwrite"),
        ("compare", model_folder, *read, "--out", corpus_file, "--overwrite"),
        ("probe", senteval, "--model", model_folder, "--out", model_folder, "--overwrite"),
        (
            "finetune",
            model_folder,
            "--task",
            "MRPC",
            "--data",
            tmp_path,
            "--out",
            tmp_path,
            "--overwrite",
        ),
        ("prune", model_folder, "--heads", "L0H0", "--out", model_folder.parent, "--overwrite"),
        (
            "draw",
            "L0H0",
            "--model",
            model_folder,
            "--out",
            model_folder / "model.safetensors",
            "--overwrite",
        ),
    ):
        rejected = headwise(*command)
        assert rejected.code == 2, command
        assert (
            "is read by this command" in rejected.err
            or "still needed" in rejected.err
            or "end in" in rejected.err
        )
    assert corpus_file.read_bytes() == text
    assert (model_folder / "config.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tense.txt", "toy.txt"]


def failing(*_: object, **__: object) -> None:
    raise ValueError(f"no rows in {object()}")


@pytest.mark.parametrize("where", ["update", "figure"])
def test_one_analysis_that_fails_does_not_lose_the_others(
    headwise, atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "figure":
        object.__setattr__(sections_module.figures_for("offsets")[0], "function", failing)
    else:
        monkeypatch.setattr(Offsets, where, failing)
    failed = atlas("out")
    assert failed.code == 3, failed.err
    assert "failed unexpectedly (ValueError: no rows in <object object>)" in failed.err
    assert "--debug" in failed.err
    assert "Traceback" not in failed.err
    kept = Atlas.load(tmp_path / "out")
    assert "surface" in kept
    assert ("offsets" in kept) == (where == "figure")
    assert (
        "failed unexpectedly (ValueError: no rows in"
        in (tmp_path / "out" / "index.html").read_text()
    )
    assert not (tmp_path / "out" / ".run").exists()
    told = atlas("again", "--debug")
    assert told.code == 3
    assert "Traceback" in told.err
    assert "in failing" in told.err
    assert everything(tmp_path / "again") == everything(tmp_path / "out")


def test_a_failure_is_not_tried_again_when_the_run_resumes(
    atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Offsets, "result", failing)
        stop_at(patch, report_module, "draw_section", 0, signal.SIGTERM)
        assert atlas("out").code == 143
    again = atlas("out")
    assert again.code == 3
    assert "offsets failed unexpectedly" in again.err
    assert list(Atlas.load(tmp_path / "out")) == ["surface"]


def test_what_a_single_analysis_raises_is_one_sentence(
    headwise, model_folder: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Offsets, "update", failing)
    failed = headwise(
        "run",
        "offsets",
        "--model",
        model_folder,
        "--corpus",
        corpus_file,
        "--out",
        tmp_path / "offsets.nc",
    )
    assert failed.code == 3
    assert failed.err.count("please report it") == 1
    assert not (tmp_path / "offsets.nc").exists()


def test_errors_of_the_disk_are_never_an_analysis_left_out(
    atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Offsets, "result", full)
        stopped = atlas("out")
    assert stopped.code == 2
    assert "No space left on device" in stopped.err
    assert not (tmp_path / "out" / "atlas.nc").exists()
    assert atlas("out").code == 0
    assert "offsets" in Atlas.load(tmp_path / "out")


def test_a_disk_that_fills_up_anywhere_is_one_sentence_and_the_command_resumes(
    atlas, tmp_path: Path
) -> None:
    assert atlas("whole").code == 0
    expected = everything(tmp_path / "whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    stopped_at = []
    sizes = [len(content) for content in expected.values()]
    for limit in (
        1,
        min(sizes) // 2,
        len(expected["atlas.nc"]) - 1,
        max(sizes) - 1,
    ):  # no file may be larger
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            full = atlas("out")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert full.code == 2, full.err
        assert "File too large" in full.err
        assert "Traceback" not in full.err
        assert everything(
            tmp_path / "out"
        ).keys() <= expected.keys() | {  # nothing half-written under any name
            name for name in everything(tmp_path / "out") if name.startswith(".run/")
        }
        stopped_at.append((tmp_path / "out" / "atlas.nc").exists())
    assert stopped_at[0] is False
    assert atlas("out").code == 0
    assert everything(tmp_path / "out") == expected
