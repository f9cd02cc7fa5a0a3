"""Hostile text in a real browser: on the page, in figures, in an SVG opened by itself, none of it runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from test_page import page

from headwise.atlas.representation import html_card
from headwise.page import HeadGrid, PageFigure, PageHead, PageTable, Section
from headwise.plots import save_figure

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MARK = "document.documentElement.setAttribute('data-ran', 'yes')"
HOSTILE = (
    f'<script>{MARK}</script><img src=x onerror="{MARK}"><svg onload="{MARK}"></svg>'
    f"\"><iframe srcdoc='<script>parent.{MARK}</script>'></iframe>' onmouseover='{MARK}' ]]>--><style>x</style>"
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")


def shown(folder: Path, html: str) -> str:
    """The document as it stands once the browser has loaded it and run what runs."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--virtual-time-budget=3000", f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert "</html>" in done.stdout
    return done.stdout


def test_no_text_runs_in_a_browser(tmp_path: Path) -> None:
    assert "data-ran" in shown(tmp_path, f"<html><body>{HOSTILE}</body></html>").split(">")[0]  # this is how it looks
    drawn, axes = plt.subplots()
    axes.set_title(HOSTILE.replace("$", ""))
    axes.set_xlabel(HOSTILE)
    axes.text(0, 0, HOSTILE, url=f"javascript:{MARK}")
    path = next(p for p in save_figure(drawn, tmp_path, "hostile") if p.suffix == ".svg")
    svg = path.read_text(encoding="utf-8")
    plt.close(drawn)
    figure = PageFigure(HOSTILE, HOSTILE, svg, (), HOSTILE)
    table = PageTable(HOSTILE, [HOSTILE], [[HOSTILE]])
    section = Section("a", HOSTILE, HOSTILE, f"{HOSTILE} `{HOSTILE}`", [figure], [table], HOSTILE, [HOSTILE])
    head = PageHead(HOSTILE, 0, HOSTILE, "other", HOSTILE, False, [HOSTILE])
    html = page(
        grid=HeadGrid([head], [HOSTILE], {"other": HOSTILE}),
        title=HOSTILE, subtitle=HOSTILE, facts=[(HOSTILE, HOSTILE)], notes=[HOSTILE], highlights=[(HOSTILE, HOSTILE)],
        sections=[section], provenance={HOSTILE: [HOSTILE]}, citations=[f"{HOSTILE} https://a.example/{HOSTILE}"],
        files=[(HOSTILE, "atlas.nc")],
    )  # fmt: skip
    inline = svg[svg.index("<svg") :] + html_card(HOSTILE, [(HOSTILE, HOSTILE)])
    got = shown(tmp_path, html.replace("</body>", f"{inline}</body>"))
    assert "data-ran" not in got.split("<head")[0]
    assert "<iframe" not in got
    assert got.count("document.documentElement") > 10  # the text is there, as text
