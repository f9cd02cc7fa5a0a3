"""Hooks of mkdocs: pages made from the code, the places they have among the others, and files
outside docs/ that pages link to."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]

from mkdocs.structure.files import File, Files  # noqa: E402

from docs_site import analyses, api, architectures, commands, gallery, labels  # noqa: E402

WHOLE = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages of the site too


def on_config(config: Any) -> Any:
    """Fill the sections of the navigation whose pages are made from the code or found in docs/."""
    docs = Path(config.docs_dir)

    def pages_in(folder: str) -> list[str]:
        pages = (docs / folder).rglob("*.md")  # reports of other models lie in folders below
        return sorted(path.relative_to(docs).as_posix() for path in pages)

    further_pages = {
        "Analyses": [{name: f"analyses/{name}.md"} for name in analyses.own_analyses()],
        "Python API": [f"reference/api/{name}.md" for name in api.PARTS],
        "Results": [page for page in pages_in("results") if page != "results/index.md"],
        "Reproduce a paper": pages_in("reproductions"),
    }
    _fill(config.nav, further_pages)
    return config


def _fill(entries: list[Any], further_pages: Mapping[str, list[Any]]) -> None:
    """Append pages to the sections of these titles, at any depth."""
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        for title, children in entry.items():
            if isinstance(children, list):
                children += further_pages.get(title, [])
                _fill(children, further_pages)


def on_files(files: Files, config: Any) -> Files:
    """Add what is made, and what lies beside docs/."""
    made = {
        **analyses.pages(),
        **api.pages(),
        "reference/commands.md": commands.page(),
        "reference/architectures.md": architectures.page(),
        "reference/labels.md": labels.page(),
        "gallery.md": gallery.page(),
    }
    for address, text in made.items():
        files.append(File.generated(config, address, content=text))
    for name, path in gallery.pictures_of().items():
        files.append(File.generated(config, f"gallery/{name}.png", abs_src_path=str(path)))
    for name in WHOLE:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to where the site has the file, or leave the bare name where it has
    none."""
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(
        r"\]\((?:\.\./)+(examples/[^)]*|(?:CONTRIBUTING|CHANGELOG)\.md[^)]*)\)",
        rf"]({up}\1)",
        markdown,
    )
    return re.sub(
        r"\[([^\]]*)\]\((?:\.\./)+((?:data|tools|benchmarks|src|tests|demo-model|README)[^)]*)\)",
        r"\1 (`\2`)",
        markdown,
    )
