"""The server of a folder: only what lies in it, only for this machine, only for who has its
address."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwise.explore.folder import FolderServer, serve_folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderServer]:
    folder = tmp_path / "atlas"
    (folder / "figures").mkdir(parents=True)
    (folder / ".run").mkdir()
    (folder / "index.html").write_text("a page")
    (folder / "figures" / "a.svg").write_text("<svg/>")
    (folder / ".run" / "run.json").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    with serve_folder(folder) as server:
        server.version = "one"
        yield server


def ask(
    server: FolderServer, path: str, method: str = "GET", token: bool = True, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Ask as bytes on a line: no client tidies the path up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.guard.port, timeout=10)
    start = f"/{server.guard.token}" if token else ""
    connection.putrequest(method, start + path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, {key.lower(): value for key, value in answer.getheaders()}


def test_files_of_the_folder_and_the_status(server: FolderServer) -> None:
    status, content, headers = ask(server, "/")
    assert (status, content) == (200, b"a page")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert ask(server, "/figures/a.svg")[2]["content-type"] == "image/svg+xml"
    assert json.loads(ask(server, "/status.json")[1]) == {"version": "one"}
    server.version = "two"
    assert json.loads(ask(server, "/status.json?x=1")[1]) == {"version": "two"}


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/figures/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "//etc/passwd",
        "/.run/run.json",
        "/figures/../.run/run.json",
        "/link.txt",
        "/..\\secret.txt",
        "/%00",
        "/figures",
        "/missing",
    ],
)
def test_nothing_else_is_served(server: FolderServer, path: str) -> None:
    status, content, _ = ask(server, path)
    assert status == 404
    assert b"secret" not in content


def test_only_for_who_has_the_address(server: FolderServer) -> None:
    assert ask(server, "/index.html", token=False)[0] == 403
    assert ask(server, "/", Host="evil.example")[0] == 403
    assert ask(server, "/", Origin="http://evil.example")[0] == 403
    assert ask(server, "/", method="POST")[0] == 501
    assert ask(server, "/", method="DELETE")[0] == 501


def test_no_icon_is_no_error(server: FolderServer) -> None:
    assert ask(server, "/favicon.ico", token=False)[:2] == (204, b"")


def test_before_the_first_page_it_waits(server: FolderServer) -> None:
    """The page of an earlier atlas, which never asks for more, is not shown."""
    server.version = ""
    content = ask(server, "/")[1]
    assert b"as soon as the first round is done" in content
    assert b'http-equiv="refresh"' in content
    assert ask(server, "/index.html")[1] == content
