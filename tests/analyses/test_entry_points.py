"""An installed package that declares the group `headwise.analyses` is found by list, run, atlas, page and battery."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ANALYSIS = '''
"""How much of a head's attention falls on the longest word."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import xarray as xr

from headwise.analyses.contract import Observer, Paper, layer_head_coords, mean_variables
from headwise.plots.registry import figure
from headwise.stats.accumulators import Moments, State


@dataclass(frozen=True)
class LongestWord(Observer):
    name: ClassVar[str] = "longest_word"
    title: ClassVar[str] = "Attention to the longest word"
    paper: ClassVar[Paper] = Paper("clark2019", "our own reading")
    requires: ClassVar[frozenset[str]] = frozenset({"words"})

    def start(self, shape):
        return State(mass=Moments(shape.layers, shape.heads))

    def reduce(self, rows, batch):
        target = torch.zeros_like(batch.real)
        for i, row in enumerate(batch.rows):
            words = row.example.all_words
            target[i] = batch.word[i] == max(range(len(words)), key=lambda w: len(words[w]))
        return {"mass": (rows.weights @ target[:, None, :, None].to(rows.weights.dtype)).sum((-2, -1))}

    def observe(self, state, sums, layer, batch):
        state.moments("mass").add(sums["mass"] / batch.lengths[:, None], (layer.layer,))

    def result(self, state, shape):
        means = mean_variables("mass", ("layer", "head"), state.moments("mass"))
        return xr.Dataset(means, coords=layer_head_coords(shape))


@figure("longest_word", name="longest-word", title="The longest word", caption="Attention to it.", needs=("mass",))
def draw(dataset):
    from matplotlib.figure import Figure

    made = Figure()
    made.subplots().imshow(dataset["mass"])
    return made
'''
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "headwise-longest-word"
version = "1"

[project.entry-points."headwise.analyses"]
longest_word = "longest_word"

[tool.setuptools]
py-modules = ["longest_word"]
"""
EVERYTHING = """
import sys
from pathlib import Path

from typer.testing import CliRunner

from headwise import make_analysis
from headwise.cli.main import app
from headwise.testing.battery import check_analysis

folder = Path(sys.argv[1])
for arguments in (
    ["list"],
    ["run", "longest_word", "--limit", "3", "--out", str(folder / "mine.nc")],
    ["atlas", "--analyses", "longest_word,surface", "--limit", "3", "--out", str(folder / "atlas")],
):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    print(done.output)
    print("=====")
print(*check_analysis(make_analysis("longest_word")))
"""
COMMAND = "from headwise.cli.main import main; main()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package in it as pip puts it there."""
    base = tmp_path_factory.mktemp("plugin")
    (base / "source").mkdir()
    (base / "source" / "longest_word.py").write_text(ANALYSIS)
    (base / "source" / "pyproject.toml").write_text(PROJECT)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(base / "site"), str(base / "source")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and "No module named" in done.stderr:
        pytest.skip("pip or setuptools is not installed here")
    assert done.returncode == 0, done.stderr
    return base / "site"


def python(installed: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_an_installed_analysis_is_found_everywhere(installed: Path, tmp_path: Path) -> None:
    done = python(installed, EVERYTHING, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    listed, ran, _, checked = done.stdout.split("=====")
    assert "longest_word" in listed
    assert "mass" in ran
    assert (tmp_path / "mine.nc").is_file()
    page = (tmp_path / "atlas" / "index.html").read_text()
    assert "Attention to the longest word" in page
    assert list((tmp_path / "atlas" / "figures").glob("*longest-word*"))
    assert {"batching", "permutation", "result"} <= set(checked.split())


def test_a_broken_package_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "broken-1.dist-info").mkdir(parents=True)
    (site / "broken-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (site / "broken-1.dist-info" / "entry_points.txt").write_text("[headwise.analyses]\nmine = broken_analysis\n")
    (site / "broken_analysis.py").write_text("import no_such_module_at_all\n")
    done = python(site, COMMAND, "list")
    assert done.returncode == 2
    assert "The analysis 'mine' of an installed package cannot be loaded" in " ".join(done.stderr.split())
    (site / "broken_analysis.py").write_text(ANALYSIS.replace('"longest_word"', '"surface"'))
    done = python(site, COMMAND, "list")
    assert done.returncode == 2
    assert "Two analyses are called 'surface'" in " ".join(done.stderr.split())
