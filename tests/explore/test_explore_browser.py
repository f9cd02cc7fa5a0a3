"""The explorer in a real browser, by keyboard, pointer and touch: typing, picking, disabling,
stepping through what a model writes, two models, hostile text; nothing leaves the page."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
import xarray as xr

from browsing import needs_browser
from headwise import Atlas, HeadModel
from headwise.core.loopback import Guard
from headwise.explore import Explorer, Question
from headwise.explore.request_queue import RequestQueue
from headwise.explore.server import listening, make_app

MARK = "document.documentElement.setAttribute('data-ran', 'yes')"
HOSTILE = f'the <script>{MARK}</script> <img src=x onerror="{MARK}"> cat \u202e saw 𝒳 {"x" * 1500}'
pytestmark = needs_browser


@contextmanager
def served(explorer: Explorer) -> Iterator[str]:
    """A server in a thread; its address."""
    guard = Guard()
    requests = RequestQueue()
    failures: list[Any] = []
    app = make_app(explorer, guard, requests, failures.append)
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


@contextmanager
def opened(chromium: Any, address: str, **context_options: Any) -> Iterator[Any]:
    """The page, loaded; in the end nothing has left this machine and nothing was said on the
    console."""
    messages: list[str] = []
    urls: list[str] = []
    context = chromium.new_context(viewport={"width": 1300, "height": 1000}, **context_options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    # That small maps are read back, by these tests, is no fault of the page.
    page.on(
        "console",
        lambda message: None if "getImageData" in message.text else messages.append(message.text),
    )
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    page.goto(f"{address}#text=the+cat+saw+the+dog")
    page.wait_for_selector("[data-model] >> nth=-1 >> .hw-matrix")
    yield page
    context.close()
    assert messages == []
    own = (address, "data:", f"blob:{address.split('/', 3)[0]}//{address.split('/')[2]}")
    assert [url for url in urls if not url.startswith(own)] == []


@pytest.fixture(scope="module")
def address(encoder: HeadModel, decoder: HeadModel) -> Iterator[str]:
    """A server of two models."""
    with served(Explorer([encoder, decoder])) as address:
        yield address


@pytest.fixture
def tab(chromium: Any, address: str) -> Iterator[Any]:
    with opened(chromium, address) as page:
        yield page


@pytest.fixture(scope="module")
def labelled_address(decoder: HeadModel) -> Iterator[str]:
    """A server of a decoder with an atlas of it."""
    entropy = xr.DataArray(np.ones((2, 3)), dims=("layer", "head"))
    atlas = Atlas({"surface": xr.Dataset({"entropy": entropy})}, {"model": decoder.identity()})
    with served(Explorer([decoder], atlas)) as address:
        yield address


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


def test_enter_shows_and_shift_enter_breaks_the_line(tab: Any) -> None:
    tab.focus("#text")
    tab.keyboard.press("Control+A")
    tab.keyboard.type("the dog")
    tab.keyboard.press("Enter")
    assert tab.input_value("#text") == "the dog"
    assert tab.url.endswith("text=the+dog&head=L0H0&off=&head=L0H0&off=")  # at once
    eventually(lambda: tab.inner_text("[data-model='0'] .large").split().count("dog") == 2)
    tab.keyboard.press("Shift+Enter")
    tab.keyboard.type("saw")
    assert tab.input_value("#text") == "the dog\nsaw"
    tab.click("text=Show >> nth=0")
    eventually(lambda: "saw" in tab.inner_text("[data-model='0'] .large"))


def test_a_head_is_picked_by_keys_and_its_token_asked(tab: Any, encoder: HeadModel) -> None:
    pane = "[data-model='0']"
    tab.focus(f"{pane} [data-head=L0H0]")
    for key in ("ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    eventually(lambda: tab.inner_text(f"{pane} .picked").startswith("L1H1"))
    assert tab.get_attribute(f"{pane} [data-head=L1H1]", "aria-pressed") == "true"
    tab.click(f"{pane} .large [data-token='3']")
    tab.wait_for_selector(f"{pane} .collected p[data-seconds]")
    told = Explorer([encoder]).attribution(Question("the cat saw the dog"), "L1H1", 3)
    cells = tab.eval_on_selector_all(
        f"{pane} .collected td.share", "all => all.map(td => parseFloat(td.textContent))"
    )
    assert cells[0::2] == [pytest.approx(value, abs=6e-4) for value in told["attention"]]
    assert cells[1::2] == [pytest.approx(value, abs=6e-4) for value in told["contribution"]]
    tab.click(f"{pane} .mask")
    eventually(lambda: "At the mask" in tab.inner_text(f"{pane} .predictions"))
    tab.check(f"{pane} [name=special]")
    eventually(lambda: "[CLS]" not in tab.inner_text(f"{pane} .large"))
    tab.check(f"{pane} [name=lines]")
    assert tab.is_visible(f"{pane} .hw-lines")
    with tab.expect_download() as saved:
        tab.click(f"{pane} .save-png")
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_disabled_head_changes_what_is_said_and_what_later_heads_see(tab: Any) -> None:
    pane = "[data-model='1']"
    before = {head: painted(tab, 1, head) for head in ("L0H0", "L1H0")}
    tab.focus(f"{pane} [data-head=L0H1]")
    tab.keyboard.press("d")
    tab.wait_for_selector(f"{pane} [data-head=L0H1].disabled")
    eventually(lambda: "all heads" in tab.inner_text(f"{pane} .predictions"))
    assert "Disabled: L0H1" in tab.inner_text(pane)
    assert "disabled" in (tab.get_attribute(f"{pane} [data-head=L0H1]", "aria-label") or "")
    assert painted(tab, 1, "L0H0") == before["L0H0"]
    assert painted(tab, 1, "L1H0") != before["L1H0"]
    assert not tab.is_visible("[data-model='0'] .disabled")
    tab.check(f"{pane} [name=signed]")
    eventually(lambda: "difference from the intact model" in tab.inner_text(f"{pane} .large"))
    tab.reload()  # the address keeps it
    tab.wait_for_selector(f"{pane} [data-head=L0H1].disabled")
    tab.click(f"{pane} .enable")
    eventually(lambda: not tab.is_visible(f"{pane} .disabled"))
    assert painted(tab, 1, "L1H0") == before["L1H0"]


def test_a_tap_picks_a_head_and_the_panel_disables_it(chromium: Any, address: str) -> None:
    with opened(chromium, address, has_touch=True, is_mobile=True) as tab:
        tab.set_viewport_size({"width": 390, "height": 844})
        pane = "[data-model='1']"
        tab.tap(f"{pane} [data-head=L1H2]")  # in the middle of the cell
        eventually(lambda: tab.inner_text(f"{pane} .picked").startswith("L1H2"))
        assert not tab.is_visible(f"{pane} .disabled")
        tab.tap(f"{pane} .disable")
        tab.wait_for_selector(f"{pane} [data-head=L1H2].disabled")
        eventually(lambda: tab.inner_text(f"{pane} .disable") == "Enable this head")
        tab.tap(f"{pane} .disable")
        eventually(lambda: not tab.is_visible(f"{pane} .disabled"))
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_notice_of_truncation_stays(tab: Any) -> None:
    tab.fill("#text", "the cat " * 300)
    notice = "[data-model='0'] .notice"
    tab.wait_for_selector(notice)
    tab.click("[data-model='0'] [data-head=L1H1]")
    eventually(lambda: tab.inner_text("[data-model='0'] .picked").startswith("L1H1"))
    tab.wait_for_timeout(300)
    assert "its end was left out" in tab.inner_text(notice)
    tab.fill("#text", "the cat")
    eventually(lambda: not tab.is_visible(notice))


def test_what_heads_add_to_the_logit_of_a_chosen_token(
    tab: Any, encoder: HeadModel, decoder: HeadModel
) -> None:
    pane = "[data-model='1']"
    tab.wait_for_selector(f"{pane} .contributions .bars")
    second = tab.locator(f"{pane} .predictions .bars button").nth(1)
    token = int(second.get_attribute("data-id") or -1)
    second.click()
    parts = Explorer([encoder, decoder]).logit(Question("the cat saw the dog", model=1), token)
    expected = f"logit {parts['logit']:.2f} above".replace("-", "−")
    eventually(lambda: expected in tab.inner_text(f"{pane} .sum"))
    tab.click(f"{pane} .in-grid")
    for layer in range(2):
        for head in range(3):
            shown = tab.inner_text(f"{pane} [data-head=L{layer}H{head}] .value")
            added = float(shown.replace("−", "-"))
            assert added == pytest.approx(parts["heads"][layer][head], abs=0.051)
    assert tab.is_hidden("[data-model='0'] .contributions")


@pytest.mark.parametrize("disabled", [(), ("L0H2",)])
def test_steps_through_what_the_model_writes(
    tab: Any, encoder: HeadModel, decoder: HeadModel, disabled: tuple[str, ...]
) -> None:
    pane = "[data-model='1']"
    explorer = Explorer([encoder, decoder])
    question = Question("the cat", model=1, disabled=disabled)
    written = explorer.write(question, 3)
    assert len(written["ids"]) == 3
    tab.fill("#text", "the cat")
    eventually(lambda: "saw" not in tab.inner_text(f"{pane} .large"))
    for head in disabled:
        tab.focus(f"{pane} [data-head={head}]")
        tab.keyboard.press("d")
        tab.wait_for_selector(f"{pane} [data-head={head}].disabled")
    tab.fill(f"{pane} .writing input", "3")
    tab.click(f"{pane} .write")
    tab.wait_for_selector(f"{pane} .steps [data-step='{len(written['ids']) - 1}']")

    def wait_for_tokens(count: int) -> None:
        eventually(lambda: tab.locator(f"{pane} .large [data-token]").count() == count)

    def wait_for_text(selector: str, text: str) -> None:
        eventually(lambda: tab.inner_text(selector).strip() == text.strip())

    for step, token in enumerate(written["ids"]):
        if step:
            tab.click(f"{pane} .next")
        before = tuple(written["ids"][:step])
        answer = explorer.all_heads(replace(question, written=before))
        n_tokens = len(answer["tokens"])
        wait_for_tokens(n_tokens)
        row_of_written = tab.get_attribute(f"{pane} .predictions .written button", "data-id")
        assert row_of_written == str(token)
        # The grid says where the last token looks: the key with the largest weight, of sinks
        # excluding the first token.
        weights = maps_of(answer)
        for head in range(3):
            first_key = int(answer["sinks"][1][head])
            looked_at = answer["tokens"][first_key + int(weights[1, head, -1, first_key:].argmax())]
            wait_for_text(f"{pane} [data-head=L1H{head}] .value", looked_at)
    by = "without L0H2" if disabled else "by the intact model"
    assert f"Written {by}" in tab.inner_text(pane)
    tab.click(f"{pane} .whole")
    wait_for_tokens(n_tokens + 1)
    tab.focus(f"{pane} .whole")
    tab.keyboard.press("ArrowLeft")
    wait_for_tokens(n_tokens)
    tab.click(f"{pane} .clear")
    eventually(lambda: tab.locator(f"{pane} .steps button").count() == 0)


def pick(tab: Any, head: str) -> None:
    tab.click(f"[data-head={head}]")
    eventually(lambda: tab.inner_text(".picked").startswith(head))


def maps_of(answer: dict[str, Any]) -> np.ndarray:
    """The small maps of an answer, as codes."""
    return np.frombuffer(base64.b64decode(answer["maps"]), np.uint8).reshape(answer["shape"])


def test_the_first_token_is_hidden_where_a_head_is_a_sink(
    chromium: Any, decoder: HeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.explore.explorer.MIN_SHARE", 0.2)  # of a random model's heads
    explorer = Explorer([decoder])
    answer = explorer.all_heads(Question("the cat saw the dog"))
    sinks = np.array(answer["sinks"])
    assert 0 < sinks.sum() < sinks.size
    with served(explorer) as address, opened(chromium, address) as tab:
        for layer, head in np.argwhere(sinks | ~sinks):
            name = f"L{layer}H{head}"
            weights = decoder.attention("the cat saw the dog", name).values
            if sinks[layer, head]:
                weights = weights[1:, 1:]
                weights = weights / weights.sum(-1, keepdims=True)
            codes = np.array(painted(tab, 0, name))
            np.testing.assert_allclose((codes / 255) ** 2, weights.ravel(), atol=0.03)
            pick(tab, name)
            assert tab.is_checked("[name=first]") == sinks[layer, head]
            n_tokens = len(answer["tokens"]) - sinks[layer, head]
            assert tab.locator(".large [data-token]").count() == n_tokens
        tab.set_checked("[name=first]", not sinks[-1, -1])  # the reader's choice holds for all
        pick(tab, "L0H0")
        assert tab.is_checked("[name=first]") != sinks[-1, -1]


def test_labels_of_an_atlas_stand_in_the_grid_and_on_the_card(
    chromium: Any, labelled_address: str
) -> None:
    with opened(chromium, labelled_address) as tab:
        assert tab.locator(".heads .hw-word").count() == 6
        category = tab.evaluate("document.querySelector('[data-head=L1H1]').parentNode.className")
        assert category.startswith("kind-")
        tab.click("[data-head=L1H1]")
        eventually(lambda: tab.inner_text(".picked").startswith("L1H1"))
        assert tab.is_visible(f".picked .does.{category}")


def test_hostile_text_is_text(tab: Any) -> None:
    tab.fill("#text", HOSTILE)
    eventually(lambda: tab.inner_text("[data-model='0'] .large").count("[UNK]") > 2)
    assert tab.get_attribute("html", "data-ran") is None
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1300
    tab.fill("#text", "   ")
    eventually(lambda: "Type a sentence" in tab.inner_text("#said"))


AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core")) / "axe.min.js"


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (npm install axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(chromium: Any, labelled_address: str, scheme: str) -> None:
    with opened(chromium, labelled_address, color_scheme=scheme, bypass_csp=True) as tab:
        tab.click(".disable")
        tab.wait_for_selector(".hw-cell.disabled")
        tab.click(".large [data-token='2']")
        tab.wait_for_selector(".collected p[data-seconds]")
        states = {"maps": "[name=shows]", "looks": ".write", "logit": ".in-grid"}
        tab.evaluate(AXE.read_text())
        for shows, control in states.items():
            if shows != "maps":
                tab.click(control)
                tab.wait_for_selector(".value:visible")
                tab.wait_for_timeout(300)
            result = tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            serious = [
                (violation["id"], violation["nodes"][0]["html"])
                for violation in result["violations"]
                if violation["impact"] in ("serious", "critical")
            ]
            assert serious == [], shows
