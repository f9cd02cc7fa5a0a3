"""The label server against raw sockets: who may ask, how much, and that no path of a request
reaches the disk."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwise.analyses.patterns.store import save_maps

TOOL = Path(__file__).parents[2] / "tools" / "label_maps"
sys.path.insert(0, str(TOOL))
from label_maps import LONGEST_BODY, LabelServer, LabelSession  # noqa: E402

OK, FORBIDDEN = 200, 403
JSON = "Content-Type: application/json"
LABEL = b'{"id": "m/0", "label": "block"}'
LENGTH = f"Content-Length: {len(LABEL)}"


class Served(LabelServer):
    """A server that knows the file its labels go to."""

    labels: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("label")
    save_maps(folder / "maps.npz", {"m/0": np.eye(4), "m/1": np.full((3, 3), 1 / 3)})
    with Served(LabelSession(folder / "maps.npz", folder / "labels.csv", "Ada")) as made:
        made.labels = folder / "labels.csv"
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def send(server: Served, request: bytes) -> bytes:
    """What comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        got = b""
        while block := connection.recv(1 << 16):
            got += block
    return got


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


def request(
    server: Served, line: str, *headers: str, body: bytes = b"", host: str | None = None
) -> bytes:
    """A request with the right host, but for what is given, and the right token for TOKEN in the
    line."""
    here = f"127.0.0.1:{server.server_port}" if host is None else host
    lines = [
        line.replace("TOKEN", server.token) + " HTTP/1.1",
        *([f"Host: {here}"] if here else []),
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def test_it_listens_on_this_machine_alone(server: Served) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(server.token) > 20
    got = send(server, request(server, "GET /TOKEN/"))
    assert status(got) == OK
    head = got.split(b"\r\n\r\n")[0].decode()
    for said in (
        "Content-Security-Policy: default-src 'none'",
        "Referrer-Policy: no-referrer",
        "nosniff",
    ):
        assert said in head
    assert "Python" not in head
    assert (
        status(
            send(server, request(server, "GET /TOKEN/next", host=f"localhost:{server.server_port}"))
        )
        == OK
    )


@pytest.mark.parametrize(
    ("line", "headers", "host"),
    [
        ("GET /", (), None),
        ("GET /next", (), None),
        ("GET /TOKEN", (), None),
        ("GET /TOKENx/next", (), None),
        ("GET /x/TOKEN/next", (), None),
        ("GET //next", (), None),
        ("GET next", (), None),
        ("GET /TOKEN/", (), "evil.example"),
        ("GET /TOKEN/", (), "127.0.0.1:1"),
        ("GET /TOKEN/", (), ""),
        ("GET /TOKEN/", ("Host: evil.example",), None),
        ("GET /TOKEN/next", ("Origin: http://evil.example",), None),
        ("GET /TOKEN/next", ("Origin: null",), None),
        ("GET /TOKEN/next", ("Origin: https://127.0.0.1",), None),
        ("POST /label", (JSON, LENGTH), None),
        ("POST /TOKEN/label", (JSON, LENGTH, "Origin: http://evil.example"), None),
        ("POST /TOKEN/label", (JSON, LENGTH), "evil.example"),
        ("POST /TOKEN/label", ("Content-Type: text/plain", LENGTH), None),
        ("POST /TOKEN/label", (LENGTH,), None),
    ],
)
def test_others_are_refused(
    server: Served, line: str, headers: tuple[str, ...], host: str | None
) -> None:
    assert status(send(server, request(server, line, *headers, body=LABEL, host=host))) == FORBIDDEN
    assert not server.labels.exists()


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ((f"Content-Length: {LONGEST_BODY + 1}",), b"", 413),
        (("Content-Length: " + "9" * 5000,), LABEL, 413),
        (("Content-Length: -1",), LABEL, 411),
        (("Content-Length: ²",), LABEL, 411),
        ((LENGTH, LENGTH), LABEL, 411),
        ((), LABEL, 411),
        (("Transfer-Encoding: chunked",), b"1f\r\n" + LABEL + b"\r\n0\r\n\r\n", 411),
        (("Transfer-Encoding: chunked", LENGTH), LABEL, 411),
        ((f"Content-Length: {LONGEST_BODY}",), b"[" * LONGEST_BODY, 400),
        (("Content-Length: 2",), b"[]", 400),
        (("Content-Length: 4",), b"\xff\xfe\x00\x00", 400),
        (("Content-Length: 2",), b"{}", 400),
        (("Content-Length: 40",), b'{"id": "../../etc/passwd", "label": 1}  ', 400),
        (("Content-Length: 34",), b'{"id": "\\ud800", "label": "block"}', 400),
    ],
)
def test_bodies_have_a_limit_and_must_be_whole(
    server: Served, headers: tuple[str, ...], body: bytes, code: int
) -> None:
    assert (
        status(send(server, request(server, "POST /TOKEN/label", JSON, *headers, body=body)))
        == code
    )
    assert not server.labels.exists()


@pytest.mark.parametrize(
    "path",
    [
        "../label.py",
        "..%2f..%2fetc/passwd",
        "/etc/passwd",
        "label.html",
        "next/../x",
        "\x00",
        "%00",
        "next?x",
    ],
)
def test_no_path_reaches_the_disk(
    server: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: opened.append(self))
    assert status(send(server, request(server, f"GET /TOKEN/{path}"))) in (400, 404)
    assert not opened


def test_no_bytes_make_it_fall(server: Served) -> None:
    pieces = st.sampled_from(
        [b"GET", b"POST", b"PUT", b" ", b"/", b"TOKEN", b"next", b"label", b" HTTP/1.1", b" HTTP/9.9", b"\r\n", b"\n",
         b"Host: x", b"Host: ", b"HERE", b"Content-Length: 5", b"Content-Length: x", b"Content-Type: application/json",
         b"Origin: null", b"\r\n\r\n", b"{", b"\xff", b"\0", b":", b"a" * 70_000, b"x: y\r\n" * 200]
    )  # fmt: skip

    @settings(
        max_examples=80,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(pieces, max_size=14))
    def one(parts: list[bytes]) -> None:
        here = f"127.0.0.1:{server.server_port}".encode()
        sent = b"".join(parts).replace(b"TOKEN", server.token.encode()).replace(b"HERE", here)
        try:
            got = send(server, sent)
        except OSError:  # it hangs up on what is too long
            return
        assert b"Traceback" not in got

    one()
    assert status(send(server, request(server, "GET /TOKEN/next"))) == OK
    assert not server.labels.exists()


def test_a_right_label_is_kept(server: Served) -> None:
    here = f"Origin: http://127.0.0.1:{server.server_port}"
    assert (
        status(send(server, request(server, "POST /TOKEN/label", JSON, LENGTH, here, body=LABEL)))
        == OK
    )
    assert server.labels.read_text().splitlines()[1] == "m/0,block,Ada,1"
