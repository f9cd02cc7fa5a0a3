"""The bundle of d3 that pages draw with: what its build states, no more than is used, and its
licences beside it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headwise.plots import scripts
from headwise.plots.scripts import DRAWING, NOTEBOOK, joined_script, view_file

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "tools" / "d3_bundle"


def test_the_bundle_is_what_its_build_states() -> None:
    stated = json.loads(view_file("d3/bundle.json"))
    assert hashlib.sha256(view_file("d3/d3.js").encode()).hexdigest() == stated["sha256"]
    locked = json.loads((BUILD / "package-lock.json").read_text())["packages"]
    for name, version in stated["packages"].items():
        assert locked[f"node_modules/{name}"]["version"] == version
        assert locked[f"node_modules/{name}"]["license"] == "ISC"
        assert f"{name} {version}" in view_file("d3/d3.js")
    assert locked["node_modules/esbuild"]["version"] == stated["esbuild"]
    named = re.findall(r'from "([^"]+)"', (BUILD / "entry.js").read_text())
    assert set(named) <= set(stated["packages"])


def test_its_licences_go_with_it() -> None:
    text = view_file("d3/LICENSE.md")
    heads = ", ".join(re.findall(r"(?m)^## (.*)$", text)).split(", ")
    assert sorted(heads) == sorted(json.loads(view_file("d3/bundle.json"))["packages"])
    for part in ("Mike Bostock", "Cynthia Brewer", "this permission notice appear in all copies"):
        assert part in text
        assert part in view_file("d3/d3.js")  # a page that is handed on carries it too


def test_the_entry_names_what_the_scripts_use_and_no_more() -> None:
    files = [
        *(ROOT / "src/headwise/page/assets").glob("*.js"),
        *(ROOT / "src/headwise/plots/views").glob("*.js"),
    ]
    files += (ROOT / "src/headwise/explore/static").glob("*.js")
    used = {
        name
        for path in files
        for name in re.findall(r"\bd3\.(\w+)", path.read_text(encoding="utf-8"))
    } - {"js"}
    named = re.findall(r"export \{([^}]*)\}", (BUILD / "entry.js").read_text())
    assert used == {name.strip() for names in named for name in names.split(",")}


def test_scripts_are_joined_without_imports_and_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (DRAWING, NOTEBOOK):
        assert not re.search(r"(?m)^\s*(import|export) ", joined_script(names))
    monkeypatch.setattr(scripts, "view_file", lambda name: "const end = '</script>';")
    with pytest.raises(AssertionError, match="end the script"):
        joined_script(("hostile",))


@pytest.mark.skipif(
    not (shutil.which("node") and (BUILD / "node_modules").is_dir()),
    reason="tools/d3_bundle is not installed here (npm ci)",
)
def test_the_build_makes_it_again() -> None:
    done = subprocess.run(
        ["node", "build.mjs", "--check"], cwd=BUILD, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
