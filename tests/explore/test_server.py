"""The explorer's server: who is answered, how much is taken, that a full queue is polite."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from exploring import PORT, Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headwise.cli import app as command
from headwise.core.errors import MissingExtraError
from headwise.explore.limits import MOST_CONNECTIONS
from headwise.explore.request_queue import WAITING, Busy, RequestQueue
from headwise.explore.server import FILES, LONGEST_BODY, check_extra, serve

TEXT = "the cat saw the dog"
HOST = (b"host", f"127.0.0.1:{PORT}".encode())
JSON = (b"content-type", b"application/json")


def test_the_page_and_its_questions(client: Client) -> None:
    async def session() -> None:
        for name, (_, _, kind) in FILES.items():
            status, headers, body = await client.send(f"/TOKEN/{name}")
            assert (status, headers["content-type"]) == (200, kind)
            assert body
            for said in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
                assert said in headers["content-security-policy"]
            assert headers["cache-control"] == "no-store"
        status, _, body = await client.send("/TOKEN/state")
        assert [model["layers"] for model in json.loads(body)["models"]] == [2, 2]
        status, seen = await client.ask("look", text=TEXT)
        assert (status, seen["shape"]) == (200, [2, 3, 7, 7])
        status, head = await client.ask("head", text=TEXT, head="L1H0")
        assert (status, head["shape"]) == (200, [7, 7])
        status, got = await client.ask(
            "attribution", text=TEXT, head="L1H0", token=2, source="previous_layer"
        )
        assert status == 200
        assert sum(got["contribution"]) == pytest.approx(1)

    asyncio.run(session())


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", [HOST]),
        ("/TOKEN", [HOST]),
        ("/TOKENx/state", [HOST]),
        ("/state", [HOST]),
        ("/TOKEN/state", []),
        ("/TOKEN/state", [HOST, HOST]),
        ("/TOKEN/state", [(b"host", b"evil.example")]),
        ("/TOKEN/state", [(b"host", b"127.0.0.1:1")]),
        ("/TOKEN/state", [HOST, (b"origin", b"http://evil.example")]),
        ("/TOKEN/state", [HOST, (b"origin", b"null")]),
    ],
)
def test_others_are_refused(client: Client, path: str, headers: list[tuple[bytes, bytes]]) -> None:
    status, _, body = asyncio.run(client.send(path, headers=headers))
    assert status == 403
    assert b"not for other pages" in body


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"{}", [HOST], 403),
        (b"{}", [HOST, (b"content-type", b"text/plain"), (b"content-length", b"2")], 403),
        (b"{}", [HOST, JSON], 411),
        (b"{}", [HOST, JSON, (b"transfer-encoding", b"chunked")], 411),
        (b"{}", [HOST, JSON, (b"content-length", str(LONGEST_BODY + 1).encode())], 413),
        (b"{}" * 40, [HOST, JSON, (b"content-length", b"2")], 413),
        (b"[]", [HOST, JSON, (b"content-length", b"2")], 400),
        (b"[" * 9_000, [HOST, JSON, (b"content-length", b"9000")], 400),
    ],
)
def test_bodies_have_limits(
    client: Client, body: bytes, headers: list[tuple[bytes, bytes]], code: int
) -> None:
    assert asyncio.run(client.send("/TOKEN/look", body, headers))[0] == code


@pytest.mark.parametrize(
    "path",
    ["../serve.py", "static/explore.html", "%2e%2e/x", "explore.js/..", "\x00", "/etc/passwd"],
)
def test_no_path_reaches_the_disk(
    client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("a file was opened"))
    assert asyncio.run(client.send(f"/TOKEN/{path}"))[0] == 404


def test_other_methods_and_websockets_get_nothing(client: Client) -> None:
    async def session() -> None:
        for method in ("PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"):
            assert (await client.send("/TOKEN/state", method=method))[0] == 405
        assert (await client.send("/TOKEN/state", b"{}"))[0] == 405
        sent: list[Any] = []
        await client.app({"type": "websocket", "path": "/"}, None, sent.append)
        assert not sent

    asyncio.run(session())


def test_what_fails_unexpectedly_is_told_in_the_terminal_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import headwise.explore.explorer as explorer

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of this machine")

    monkeypatch.setattr(explorer.Explorer, "_forward_pass", broken)
    status, got = asyncio.run(client.ask("look", text=TEXT))
    assert status == 500
    assert "secret" not in json.dumps(got)
    (failure,) = client.failures
    assert "a secret of this machine" in failure.sentence
    client.failures.clear()


def test_a_full_queue_is_polite_and_empties_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import headwise.explore.explorer as explorer

    free = threading.Event()
    forward_pass = explorer.Explorer._forward_pass

    def slow(*arguments: Any) -> Any:
        free.wait(20)
        return forward_pass(*arguments)

    monkeypatch.setattr(explorer.Explorer, "_forward_pass", slow)

    async def session() -> list[int]:
        asked = [
            asyncio.create_task(client.ask("look", text=f"cat {i}", top=3))
            for i in range(WAITING + 6)
        ]
        while sum(task.done() for task in asked) < 5:
            await asyncio.sleep(0.01)
        refused = [task.result() for task in asked if task.done()]
        assert all(status == 503 and "try again" in got["error"] for status, got in refused)
        free.set()
        answered = [status for status, _ in await asyncio.gather(*asked)]
        assert (await client.ask("look", text="cat"))[0] == 200
        return answered

    answered = asyncio.run(session())
    assert set(answered) == {200, 503}
    assert answered.count(200) in (WAITING, WAITING + 1)


def test_the_desk_tells_errors_and_forgets_who_went_away() -> None:
    requests = RequestQueue(1)
    begun = threading.Event()
    free = threading.Event()
    finished: list[int] = []

    async def session() -> None:
        first = asyncio.create_task(requests.run(lambda: begun.set() or free.wait(20)))
        assert await asyncio.to_thread(begun.wait, 20)
        second = asyncio.create_task(requests.run(lambda: finished.append(2)))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await requests.run(lambda: finished.append(3))
        second.cancel()
        await asyncio.sleep(0.05)
        failing = asyncio.create_task(
            requests.run(lambda: {}["x"])
        )  # takes the place of the disconnected client at once
        await asyncio.sleep(0)
        free.set()
        await first
        with pytest.raises(KeyError):
            await failing

    asyncio.run(session())
    requests.close()
    assert not finished


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
    | st.sampled_from([TEXT, "L0H0", "L1H1", "L9H9", "zero", "mean", "input", "[MASK]", "\ud800", "\0", 3, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
NAMES = st.sampled_from(
    [
        "text",
        "pair",
        "model",
        "disabled",
        "how",
        "mask",
        "position",
        "top",
        "written",
        "head",
        "token",
        "source",
        "answer",
        "tokens",
        "x",
    ]
)


def test_no_question_makes_it_fall(client: Client) -> None:
    answers: dict[int, int] = {}

    beside: dict[str, Any] = {
        "look": {},
        "head": {"head": "L1H0"},
        "attribution": {"head": "L1H0", "token": 1},
        "logit": {"answer": 3, "model": 1},
        "write": {"tokens": 3, "model": 1},
    }
    good = st.fixed_dictionaries(
        {"text": st.text(max_size=20).map(lambda text: f"{TEXT} {text}")},
        optional={
            "model": st.integers(0, 1),
            "disabled": st.lists(st.sampled_from(["L0H0", "L1H1", "L0H2", "L7H0"]), max_size=3),
            "how": st.sampled_from(["zero", "uniform", "mean"]),
            "top": st.integers(1, 60),
        },
    )

    @settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.sampled_from(list(beside)),
        good,
        st.dictionaries(NAMES, VALUES, max_size=2),
        st.none() | st.binary(),
    )
    def fuzz(
        path: str, sound: dict[str, Any], strange: dict[str, Any], noise: bytes | None
    ) -> None:
        content = json.dumps({**sound, **beside[path], **strange}).encode()
        body = (
            content
            if noise is None
            else content[: len(noise)] + noise
            if len(noise) > 4
            else content
        )
        status, headers, said = asyncio.run(client.send(f"/TOKEN/{path}", body))
        answers[status] = answers.get(status, 0) + 1
        assert status in (200, 400), said
        assert headers["x-content-type-options"] == "nosniff"
        json.loads(said)

    fuzz()
    assert answers[200] > 5
    assert answers[400] > 20
    assert not client.failures


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.explore.server.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'headwise[explore]'")):
        check_extra()
    assert "explore" in str(CliRunner().invoke(command, ["explore"]).exception)


# Two servers in forks of one process, which has imported all that is large; it says who they are
# and how each ended.
SERVERS = """
import gc, json, os, runpy, sys

gc.disable()  # nothing here lives long enough to need it
import headwise.atlas, headwise.cli, headwise.explore.explorer, headwise.explore.server, headwise.models.headmodel
import uvicorn
from typer.testing import CliRunner

CliRunner().invoke(headwise.cli.app, ["--version"])  # what every command imports on its way
gc.freeze()
folder, *arguments = sys.argv[1:]
servers = {}
for name in ("SIGINT", "SIGTERM"):
    process = os.fork()
    if process == 0:
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}.{stream}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["headwise", *arguments]
        runpy.run_module("headwise", run_name="__main__", alter_sys=True)
    servers[process] = name
print(json.dumps({name: process for process, name in servers.items()}), flush=True)
while servers:
    process, status = os.wait()
    print(json.dumps([servers.pop(process), os.waitstatus_to_exitcode(status)]), flush=True)
"""


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """However the test ends, the process and its children do too."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def first_line(path: Path, process: subprocess.Popen[str]) -> str:
    """What a server says first, into a file."""
    deadline = time.monotonic() + 120
    while (
        not (path.exists() and "\n" in path.read_text())
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    return path.read_text() if path.exists() else ""


@contextmanager
def serving(encoder: Any) -> Iterator[str]:
    """A server as `serve` runs it, in a thread; its address."""
    addresses: list[str] = []

    def run() -> None:
        with suppress(asyncio.CancelledError):
            serve([encoder], open_browser=False, say=addresses.append)

    servers: list[Any] = []
    begin = uvicorn.Server.__init__

    def remember(self: Any, config: Any) -> None:
        servers.append(self)
        begin(self, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "__init__", remember)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while not (servers and servers[0].started):
            time.sleep(0.02)
        address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", addresses[-1])
        assert address
        yield address[0]
        servers[0].should_exit = True
        thread.join(20)


def silent_connections(address: str, count: int, first_bytes: bytes = b"") -> list[socket.socket]:
    port = int(address.split(":")[2].split("/")[0])
    connections = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        if first_bytes:
            connection.sendall(first_bytes)
        connections.append(connection)
    return connections


@pytest.mark.parametrize("first_bytes", [b"", b"GET /"])
def test_silent_connections_lock_nobody_out(encoder: Any, first_bytes: bytes) -> None:
    with serving(encoder) as address:
        connections = silent_connections(address, MOST_CONNECTIONS + 60, first_bytes)
        for _ in range(3):
            with urllib.request.urlopen(f"{address}state", timeout=20) as answer:
                assert answer.status == 200
        # The oldest made room; the newest still may ask.
        # Closed with a request half sent, a connection may be reset instead of ended.
        with suppress(ConnectionResetError):
            assert connections[0].recv(10) == b""
        host = address.split("/")[2]
        rest = address.split(host)[1] + "state"
        start = "" if first_bytes else "GET /"
        request = f"{start}{rest[1:]} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        connections[-1].sendall(request.encode())
        assert connections[-1].recv(12) == b"HTTP/1.1 200"
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("first_bytes", [b"", b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_silent_connection_is_closed_after_a_while(
    encoder: Any, first_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.explore.connections.REQUEST_TIMEOUT", 0.5)
    with serving(encoder) as address:
        begun = time.monotonic()
        (connection,) = silent_connections(address, 1, first_bytes)
        assert connection.recv(10) == b""
        assert 0.3 < time.monotonic() - begun < 10
        # Byte by byte is too slow as well: the time does not start anew with each of them.
        (connection,) = silent_connections(address, 1, b"GET /")
        connection.settimeout(0.1)
        for _ in range(100):
            with suppress(TimeoutError):
                # Closed: the end of the stream, or a reset for what was sent after it.
                with suppress(ConnectionResetError):
                    assert connection.recv(10) == b""
                break
            connection.sendall(b"x")
        else:
            pytest.fail("the connection was never closed")


@pytest.mark.slow
def test_it_serves_on_loopback_and_stops_cleanly(little_bert: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-c",
        SERVERS,
        str(tmp_path),
        "explore",
        str(little_bert),
        "--no-browser",
    ]
    pipe: Any = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with (
        subprocess.Popen(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipe) as process,
        killed(process),
    ):
        assert process.stdout is not None
        servers = json.loads(process.stdout.readline())
        for sign, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            errors = tmp_path / f"{sign.name}.err"
            line = first_line(tmp_path / f"{sign.name}.out", process)
            address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", line)
            assert address, (line, errors.read_text())
            with urllib.request.urlopen(address[0], timeout=30) as page:
                assert b"headwise explore" in page.read()
                assert page.headers["Server"] is None
            question = urllib.request.Request(
                f"{address[0]}look",
                json.dumps({"text": TEXT}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(question, timeout=60) as answer:
                assert json.loads(answer.read())["shape"][0] == 2
            begun = time.monotonic()
            os.kill(servers[sign.name], sign)
            assert json.loads(process.stdout.readline()) == [sign.name, code]
            assert time.monotonic() - begun < 15
            said = errors.read_text()
            assert said.count("\n") == 1
            assert "Interrupted by" in said
