"""A page that grows, in a real browser: it reloads itself when there is more, the reader's place stays,
and the finished page asks for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from site_of import samples, small_atlas

from browsing import needs_browser
from headwise import Atlas
from headwise.explore.folder import FolderServer, serve_folder
from headwise.page.report import write_quick_page, write_report

pytestmark = needs_browser


def unfinished(done: int, stopped: str = "") -> Atlas:
    """A small atlas as it is before it is finished."""
    whole = small_atlas()
    about = {
        "round": 1,
        "done": 0.25,
        "examples": {"made up": [done, 40]},
        "partial": {"surface": [done, 40]},
        "to_come": {"distance": "Families of heads"},
        "first_parts": {},
        "without_random_models": ["roles"],
        "seconds_left": 130,
        "stopped": stopped,
    }
    return Atlas(dict(whole), {**whole.provenance, "unfinished": about})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderServer]:
    with serve_folder(tmp_path / "atlas") as server:
        yield server


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    tab = context.new_page()
    tab.set_default_timeout(20_000)
    said: list[str] = []
    tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: said.append(f"error: {error}"))
    yield tab
    context.close()
    assert said == []


def show(server: FolderServer, atlas: Atlas) -> None:
    """A round ends."""
    write_quick_page(atlas, server.folder, live=True)
    server.version = atlas.digest


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_page_waits_grows_and_is_finished(server: FolderServer, tab: Any) -> None:
    tab.goto(server.address)
    assert "as soon as the first round is done" in tab.inner_text("body")

    show(server, unfinished(10))
    tab.wait_for_selector("#unfinished")  # by itself
    tab.wait_for_selector("html[data-ready]")
    banner = tab.inner_text("#unfinished")
    assert "10 of 40 examples of made up" in banner
    assert "Still to come: Families of heads." in banner
    assert "Not yet compared with random-weights models" in banner
    assert "2 minutes" in banner
    assert "This page reloads itself when there is more." in banner
    assert "10 of 40 so far" in tab.inner_text("header")

    # What the reader has chosen, and where on the page they are, stays.
    tab.click("td[data-head='L1H2'] a")
    tab.fill("#filter", "layer = 1")  # the next round waits until the reader is done
    until(lambda: "filter" in tab.evaluate("location.hash"))
    tab.set_viewport_size({"width": 1400, "height": 300})
    tab.evaluate("window.scrollTo(0, 250)")
    before = tab.evaluate("window.scrollY")
    assert before > 100
    show(server, unfinished(20))
    tab.wait_for_selector("#unfinished:has-text('20 of 40 examples')")
    tab.wait_for_selector("html[data-ready]")
    assert tab.evaluate("location.hash").startswith("#L1H2&")
    assert tab.input_value("#filter") == "layer = 1"
    assert "L1H2" in tab.inner_text("#card")
    until(lambda: abs(tab.evaluate("window.scrollY") - before) < 60)

    # The finished page takes its place, and asks for nothing any more.
    whole = small_atlas()
    write_report(whole, server.folder, samples())
    server.version = f"{whole.digest} with figures"
    tab.wait_for_selector("#unfinished", state="detached")
    tab.wait_for_selector("html[data-ready]")
    assert tab.input_value("#filter") == "layer = 1"
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.wait_for_timeout(5000)
    assert asked == []


def test_it_is_not_replaced_under_the_hands_of_a_reader(server: FolderServer, tab: Any) -> None:
    show(server, unfinished(10))
    tab.goto(server.address)
    tab.wait_for_selector("html[data-ready]")
    tab.click("#filter")
    show(server, unfinished(20))
    for _ in range(5):
        tab.keyboard.type("a")
        tab.wait_for_timeout(1000)
        assert "10 of 40" in tab.inner_text("#unfinished")
    tab.wait_for_selector("#unfinished:has-text('20 of 40 examples')")


def test_it_says_when_its_command_has_ended(tmp_path: Path, chromium: Any) -> None:
    context = chromium.new_context()
    tab = context.new_page()
    with serve_folder(tmp_path / "atlas") as server:
        show(server, unfinished(10))
        tab.goto(server.address)
        tab.wait_for_selector("html[data-ready]")
    tab.wait_for_selector("#unfinished:has-text('Its command has ended')")
    context.close()


def test_from_the_disk_it_says_how_to_see_more(tmp_path: Path, tab: Any) -> None:
    for name, live in (("plain", False), ("live", True)):
        write_quick_page(unfinished(10), tmp_path / name, live=live)
        tab.goto((tmp_path / name / "index.html").as_uri())
        tab.wait_for_selector("html[data-ready]")
        assert "reload the page to see more" in tab.inner_text("#unfinished")
        tab.wait_for_timeout(2500)  # it does not ask, which would be an error here
    write_quick_page(unfinished(10, stopped="after 5 minutes"), tmp_path / "stopped")
    tab.goto((tmp_path / "stopped" / "index.html").as_uri())
    assert "The run was stopped after 5 minutes: repeat its command" in tab.inner_text(
        "#unfinished"
    )


def test_the_numbers_are_final_while_figures_are_drawn(server: FolderServer, tab: Any) -> None:
    show(server, small_atlas())
    tab.goto(server.address)
    tab.wait_for_selector("html[data-ready]")
    assert "all numbers on this page are final" in tab.inner_text("#unfinished")
    until(lambda: "This page reloads itself" in tab.inner_text("#unfinished"))
