"""The explorer in a real browser: typing, picking, disabling, two models, hostile text; nothing
leaves the page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from browsing import needs_browser
from headwise import HeadModel
from headwise.core.loopback import Guard
from headwise.explore import Explorer, Question
from headwise.explore.request_queue import RequestQueue
from headwise.explore.server import listening, make_app

MARK = "document.documentElement.setAttribute('data-ran', 'yes')"
HOSTILE = f'the <script>{MARK}</script> <img src=x onerror="{MARK}"> cat \u202e saw 𝒳 {"x" * 1500}'
pytestmark = needs_browser


@pytest.fixture(scope="module")
def address(encoder: HeadModel, decoder: HeadModel) -> Iterator[str]:
    """A server of two models, in a thread."""
    guard = Guard()
    requests = RequestQueue()
    failures: list[Any] = []
    app = make_app(Explorer([encoder, decoder]), guard, requests, failures.append)
    with listening(0) as listener:
        guard.port = listener.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="critical")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield guard.address
        server.should_exit = True
        thread.join(20)
    requests.close()
    assert not failures


@pytest.fixture
def tab(chromium: Any, address: str) -> Iterator[Any]:
    """The page, loaded; in the end nothing has left this machine and nothing was said on the
    console."""
    said: list[str] = []
    asked: list[str] = []
    page = chromium.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(15_000)
    # That small maps are read back, by these tests, is no fault of the page.
    page.on(
        "console",
        lambda message: None if "getImageData" in message.text else said.append(message.text),
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}#text=the+cat+saw+the+dog")
    page.wait_for_selector("[data-model='1'] .hw-lines")
    yield page
    page.close()
    assert said == []
    assert [url for url in asked if not url.startswith((address, "data:"))] == []


def eventually(found: Any) -> None:
    """Wait for something to become true; the page's policy allows no scripts from outside, so it is
    asked from here."""
    for _ in range(300):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come true")


def painted(tab: Any, pane: int, head: str) -> list[int]:
    """The darkness of every cell of a small map."""
    script = (
        "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"
        ".filter((_, i) => i % 4 === 3)"
    )
    found: list[int] = tab.eval_on_selector(
        f"[data-model='{pane}'] [data-head={head}] canvas", script
    )
    return found


def test_what_is_typed_is_drawn_of_both_models(
    tab: Any, encoder: HeadModel, decoder: HeadModel
) -> None:
    for pane, model in enumerate((encoder, decoder)):
        true = model.attention("the cat saw the dog", "L1H1").values
        small = painted(tab, pane, "L1H1")
        assert len(small) == true.size
        assert (
            max(
                abs((code / 255) ** 2 - weight)
                for code, weight in zip(small, true.flat, strict=True)
            )
            < 0.01
        )
    tab.fill("#text", "the dog saw a cat")
    eventually(lambda: "a" in tab.inner_text("[data-model='0'] .large").split())
    assert "text=the+dog+saw+a+cat" in tab.url
    tab.fill("#pair", "the cat")
    eventually(lambda: tab.inner_text("[data-model='0'] .large").split().count("[SEP]") == 4)


def test_a_head_is_picked_by_keys_and_its_token_asked(tab: Any, encoder: HeadModel) -> None:
    pane = "[data-model='0']"
    tab.focus(f"{pane} [data-head=L0H0]")
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        tab.keyboard.press(key)
    eventually(lambda: tab.inner_text(f"{pane} .picked").startswith("L1H1"))
    assert tab.get_attribute(f"{pane} [data-head=L1H1]", "aria-pressed") == "true"
    tab.click(f"{pane} .large [data-token='3']")
    tab.wait_for_selector(f"{pane} .gathers p[data-seconds]")
    told = Explorer([encoder]).attribution(Question("the cat saw the dog"), "L1H1", 3)
    cells = tab.eval_on_selector_all(
        f"{pane} .gathers td.bar", "all => all.map(td => parseFloat(td.textContent))"
    )
    assert cells[0::2] == [pytest.approx(value, abs=6e-4) for value in told["attention"]]
    assert cells[1::2] == [pytest.approx(value, abs=6e-4) for value in told["contribution"]]
    tab.click(f"{pane} >> text=mask this token")
    eventually(lambda: "expects at the mask" in tab.inner_text(f"{pane} .predictions"))
    tab.check("#hide")
    assert "[CLS]" not in tab.inner_text(f"{pane} .large")
    tab.click("text=matrix")
    assert tab.is_visible(f"{pane} .hw-matrix")


def test_a_disabled_head_changes_what_is_said_and_what_later_heads_see(tab: Any) -> None:
    pane = "[data-model='1']"
    before = {head: painted(tab, 1, head) for head in ("L0H0", "L1H0")}
    tab.focus(f"{pane} [data-head=L0H1]")
    tab.keyboard.press("d")
    tab.wait_for_selector(f"{pane} [data-head=L0H1].disabled")
    eventually(lambda: "all heads" in tab.inner_text(f"{pane} .predictions"))
    assert "disabled: L0H1" in tab.inner_text(pane)
    assert "disabled" in (tab.get_attribute(f"{pane} [data-head=L0H1]", "aria-label") or "")
    assert painted(tab, 1, "L0H0") == before["L0H0"]
    assert painted(tab, 1, "L1H0") != before["L1H0"]
    assert not tab.is_visible("[data-model='0'] .disabled")
    tab.reload()  # the address keeps it
    tab.wait_for_selector(f"{pane} [data-head=L0H1].disabled")
    tab.click(f"{pane} >> text=enable all")
    eventually(lambda: not tab.is_visible(f"{pane} .disabled"))
    assert painted(tab, 1, "L1H0") == before["L1H0"]


def test_hostile_text_is_text(tab: Any) -> None:
    tab.fill("#text", HOSTILE)
    eventually(lambda: tab.inner_text("[data-model='0'] .large").count("[UNK]") > 2)
    assert tab.get_attribute("html", "data-ran") is None
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1300
    tab.fill("#text", "   ")
    eventually(lambda: "Type a sentence" in tab.inner_text("#said"))
