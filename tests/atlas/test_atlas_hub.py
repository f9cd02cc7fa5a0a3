"""Atlases on the hub, against a stand-in on this machine that keeps commits as the hub does."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import xarray as xr

from headwise import Atlas
from headwise.atlas import hub as hub_module
from headwise.core.errors import AtlasError, ParameterError

COMMIT = "a" * 40


class StandIn(BaseHTTPRequestHandler):
    """The few requests of the hub that uploading and downloading a file need."""

    repos: dict[str, dict[str, bytes]]
    requests: list[str]
    private: list[Any]

    def log_message(self, *_: object) -> None:
        pass

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(
        self, content: bytes, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        self._answer(json.dumps(value).encode(), status, headers)

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        self.requests.append(f"POST {path}")
        body = self._body()
        if path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "me"
            self.repos.setdefault(f"{owner}/{asked['name']}", {})
            self.private.append(asked.get("private") or asked.get("visibility") == "private")
            self._json({"url": f"https://huggingface.co/datasets/{owner}/{asked['name']}"})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in files
            ]
            self._json({"files": modes})
        elif "/commit/" in path:
            repo = path.split("/api/datasets/")[1].split("/commit/")[0]
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    self.repos[repo][entry["value"]["path"]] = content
            self._json(
                {
                    "commitUrl": f"https://huggingface.co/datasets/{repo}/commit/{COMMIT}",
                    "commitOid": COMMIT,
                }
            )
        else:
            self._json({"error": path}, 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.requests.append(f"{self.command} {path}")
        if not path.startswith("/datasets/"):
            self._json({}, 404)
            return
        repo, _, rest = path.removeprefix("/datasets/").partition("/resolve/")
        _, _, file = rest.partition("/")
        if repo not in self.repos:
            self._json({"error": "no"}, 404, **{"X-Error-Code": "RepoNotFound"})
        elif file not in self.repos[repo]:
            self._json({"error": "no"}, 404, **{"X-Error-Code": "EntryNotFound"})
        else:
            content = self.repos[repo][file]
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            self._answer(content, headers={"ETag": etag, "X-Repo-Commit": COMMIT})


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StandIn]]:
    StandIn.repos = {}
    StandIn.requests = []
    StandIn.private = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    import huggingface_hub
    from huggingface_hub import constants, file_download, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    cache = str(tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    api = huggingface_hub.HfApi(endpoint=address)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda token=None: api)
    download = file_download.hf_hub_download
    monkeypatch.setattr(
        huggingface_hub,
        "hf_hub_download",
        lambda *args, **options: download(*args, endpoint=address, cache_dir=cache, **options),
    )
    assert hf_api is not None
    yield StandIn
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def atlas() -> Atlas:
    entropy = xr.DataArray(np.array([[0.5, 2.0]]), dims=("layer", "head"))
    about = {"model": {"name": "tiny"}, "corpus": {"name": "toy", "examples": 3}}
    return Atlas({"surface": xr.Dataset({"entropy": entropy})}, about)


def test_an_atlas_comes_back_as_it_went(standin: type[StandIn], atlas: Atlas) -> None:
    address = atlas.push_to_hub("me/tiny-atlas", private=True, token="hf_x")
    assert address == f"https://huggingface.co/datasets/me/tiny-atlas/commit/{COMMIT}"
    assert standin.private == [True]
    assert standin.repos["me/tiny-atlas"]["atlas.nc"] == atlas.to_bytes()
    loaded = Atlas.load("hf://me/tiny-atlas")
    assert loaded.digest == atlas.digest
    assert Atlas.load("hf://datasets/me/tiny-atlas@main/atlas.nc").digest == atlas.digest


def test_the_card_says_how_to_load_it_and_one_that_is_there_stays(
    standin: type[StandIn], atlas: Atlas
) -> None:
    atlas.push_to_hub("me/atlases", path_in_repo="bert/atlas.nc")
    files = standin.repos["me/atlases"]
    card = files["README.md"].decode()
    assert card.startswith("---\ntags:\n- headwise\n")
    assert 'Atlas.load("hf://me/atlases/bert/atlas.nc")' in card
    files["README.md"] = b"mine"
    atlas.push_to_hub("me/atlases", path_in_repo="gpt2/atlas.nc")
    assert files["README.md"] == b"mine"
    assert Atlas.load("hf://me/atlases/gpt2").digest == atlas.digest


def test_what_is_not_there_is_said(standin: type[StandIn], atlas: Atlas) -> None:
    with pytest.raises(AtlasError, match="There is no dataset 'me/nothing' on the hub"):
        Atlas.load("hf://me/nothing")
    atlas.push_to_hub("me/tiny")
    with pytest.raises(AtlasError, match=r"'me/tiny' on the hub has no file 'other\.nc'"):
        Atlas.load("hf://me/tiny/other.nc")
    standin.repos["me/tiny"]["atlas.nc"] = b"no atlas"
    with pytest.raises(AtlasError):
        Atlas.load("hf://me/tiny@v2")


def test_addresses_that_are_none_are_rejected_before_anything_is_sent(
    standin: type[StandIn], atlas: Atlas
) -> None:
    for address in ("hf://tiny", "hf://", "hf:///x", "hf://a b/c"):
        with pytest.raises(ParameterError, match="no address of an atlas"):
            Atlas.load(address)
    with pytest.raises(ParameterError, match="no address of an atlas"):
        atlas.push_to_hub("tiny")
    with pytest.raises(ParameterError, match=r"must end with \.nc"):
        atlas.push_to_hub("me/tiny", path_in_repo="atlas")
    assert standin.requests == []


def test_errors_of_the_network_are_one_sentence(
    atlas: Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("the line is dead\nmore\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(AtlasError) as caught:
        Atlas.load("hf://me/tiny")
    assert (
        str(caught.value) == "hf://me/tiny cannot be fetched (ConnectionError: the line is dead)."
    )
    assert hub_module.is_hub_address(Path("hf://x/y")) is False
