"""One lifecycle for every command: resume after an interruption, one process per output, consent
remembered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.core.errors import OutputError
from headwise.core.folders import MANIFEST
from headwise.run.job import Job

IDENTITY = {"task": "squares"}


class Squares:
    """A unit function that remembers which items it was called with."""

    def __init__(self) -> None:
        self.computed: list[int] = []

    def __call__(self, number: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        self.computed.append(number)
        return {"square": np.array(number**2)}, {}


def squares_of(job: Job, function: Squares, numbers: list[int]) -> list[int]:
    return [int(arrays["square"]) for arrays in job.each("number", function, numbers)]


def test_a_job_without_a_folder_computes_and_leaves_nothing() -> None:
    reports: list[tuple[str, int, int]] = []
    with Job.in_folder(None, progress=lambda *report: reports.append(report)) as job:
        folder = job.begin(IDENTITY).folder
        assert squares_of(job, Squares(), [2, 3]) == [4, 9]
        assert folder.exists()
    assert not folder.exists()
    assert reports == [("number", 1, 2), ("number", 2, 2)]


def test_a_job_that_never_begins_keeps_nothing() -> None:
    assert squares_of(Job(), Squares(), [2]) == [4]
    with pytest.raises(RuntimeError, match="begin"):
        Job().dataset("x", lambda: None)  # type: ignore[arg-type,return-value]


def test_an_interrupted_job_resumes_with_its_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    first = Squares()
    with Job.in_folder(tmp_path / "work") as job:
        threads = job.begin(IDENTITY).inherited["threads"]
        squares_of(job, first, [2, 3])
    again = Squares()
    torch.set_num_threads(before + 1)
    try:
        with Job.in_folder(tmp_path / "work") as job:
            job.begin(IDENTITY)
            assert torch.get_num_threads() == threads
            assert squares_of(job, again, [2, 3, 4]) == [4, 9, 16]
            assert job.provenance["threads"] == threads
            job.finish()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert again.computed == [4]
    assert not (tmp_path / "work").exists()


def test_another_identity_is_rejected_unless_it_may_start_again(tmp_path: Path) -> None:
    with Job.in_folder(tmp_path) as job:
        job.begin(IDENTITY)
        squares_of(job, Squares(), [2])
    with Job.in_folder(tmp_path) as other, pytest.raises(OutputError, match="differs in task"):
        other.begin({"task": "cubes"})
    with Job.in_folder(tmp_path, overwrite=True) as other:
        assert other.begin({"task": "cubes"}).names() == []


def test_a_result_that_was_written_before_the_interruption_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with Job.for_file(path) as job:
        job.begin(IDENTITY)
        assert job.written() is None
        job.write(b"result", facts={"failures": []})  # interrupted here
    with Job.for_file(path) as job:
        job.begin(IDENTITY)
        assert job.written() == {"failures": []}
        job.write(b"result")
        job.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.nc"]
    with pytest.raises(OutputError, match="exists; pass overwrite=True"):
        Job.for_file(path)


def test_a_second_job_on_the_same_output_is_rejected(tmp_path: Path) -> None:
    def file_job(overwrite: bool = True) -> Job:
        return Job.for_file(tmp_path / "a.svg", overwrite=overwrite)

    def folder_job(overwrite: bool = True) -> Job:
        return Job.for_folder(tmp_path / "pruned", overwrite=overwrite)

    for make_job in (file_job, folder_job):
        in_use = pytest.raises(OutputError, match="is in use by process")
        with make_job(), in_use, make_job():
            pass
        with make_job():  # the first one has let go
            pass
    assert list(tmp_path.iterdir()) == []


def test_several_files_are_one_output(tmp_path: Path) -> None:
    files = [tmp_path / "a-1.svg", tmp_path / "a-2.svg"]
    with Job.for_file(tmp_path / "a.svg", files=files) as job:
        job.begin(IDENTITY)
        job.write(b"one", files[0])  # interrupted here
    with Job.for_file(tmp_path / "a.svg", files=files) as job:
        job.begin(IDENTITY)
        job.write(b"one", files[0])
        job.write(b"two", files[1])
        job.finish()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a-1.svg", "a-2.svg"]
    files[0].unlink()
    with pytest.raises(OutputError, match=r"a-2.svg exists"):
        Job.for_file(tmp_path / "a.svg", files=files)


def write_folder(target: Path, content: str, *, interrupt: bool = False, **options: bool) -> None:
    with Job.for_folder(target, **options) as job:
        job.begin({"content": content})
        with job.new_folder() as beside:
            (beside / "weights").write_text(content)
        if interrupt:
            raise KeyboardInterrupt
        job.finish()


def test_a_folder_is_replaced_whole_and_an_interrupted_job_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "pruned"
    with pytest.raises(KeyboardInterrupt):
        write_folder(target, "first", interrupt=True)
    write_folder(target, "first")  # its own result is no obstacle
    assert sorted(entry.name for entry in target.iterdir()) == [MANIFEST, "weights"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["pruned"]
    with pytest.raises(OutputError, match="exists; pass overwrite=True"):
        write_folder(target, "second")
    with pytest.raises(KeyboardInterrupt):
        write_folder(target, "second", interrupt=True, overwrite=True)
    write_folder(target, "second")  # consent is remembered
    assert (target / "weights").read_text() == "second"


def test_somebody_elses_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    with pytest.raises(OutputError, match="did not write"):
        write_folder(tmp_path / "thesis", "x", overwrite=True)
    with pytest.raises(OutputError, match="still needed"):
        Job.for_folder(tmp_path, sources=[tmp_path / "thesis"])
