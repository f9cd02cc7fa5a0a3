"""Serve a folder to the browser of this machine while its page grows: read-only, with a status that
the page asks for."""

from __future__ import annotations

import json
import mimetypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headwise.core.errors import ParameterError
from headwise.core.loopback import HEADERS, HOST, NO_SUCH_PAGE, Guard, RequestRejected
from headwise.explore.limits import MOST_CONNECTIONS, REQUEST_TIMEOUT

PAGE = "index.html"
STATUS = "status.json"
ICON = "/favicon.ico"
# Until the first page is there, the browser asks for it again by itself.
WAITING = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>headwise</title></head>
<body><p>The first page comes as soon as the first round is done. This one asks for it every two
seconds.</p></body></html>
"""
HTML = "text/html; charset=utf-8"
# A page may not be shown within another one; what else it may do it says itself.
FRAME_POLICY = "frame-ancestors 'none'"


class FolderServer:
    """A server of one folder on this machine.

    Attributes
    ----------
    version : str
        Of the page that is there now: a page of another version reloads itself. Whoever writes a
        page sets it afterwards; "" as long as there is none.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.version = ""
        self.guard = Guard()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            self._server = _Server((HOST, port), self)
        except (OSError, OverflowError) as error:
            raise ParameterError(
                f"Port {port} cannot be used ({str(error).rstrip('.')}); choose another or 0 for any."
            ) from error
        self.guard.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address of the page."""
        return self.guard.address

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def content(self, name: str) -> tuple[bytes, str]:
        """Return the bytes and the media type of a file of the folder, by its path within it.

        Nothing outside the folder is served, nor anything whose name begins with a dot
        (checkpoints)."""
        if name == STATUS:
            return json.dumps({"version": self.version}).encode(), "application/json"
        name = name or PAGE
        if name == PAGE and not self.version:
            # What may lie there is the page of an earlier atlas, which never asks for more.
            return WAITING, HTML
        parts = name.split("/")
        if any(not part or part.startswith(".") or "\\" in part for part in parts):
            raise RequestRejected(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
        try:
            path = self.folder.joinpath(*parts).resolve()
            if not path.is_relative_to(self.folder.resolve()):
                raise RequestRejected(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
            content = path.read_bytes()
        except (OSError, ValueError):
            raise RequestRejected(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE) from None
        if path.suffix == ".html":
            return content, HTML
        return content, mimetypes.guess_type(path.name)[0] or "application/octet-stream"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A browser that keeps its connection open does not keep the command from ending.
    block_on_close = False

    def __init__(self, address: tuple[str, int], served: FolderServer) -> None:
        self.served = served
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.served._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.served._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that goes away is no failure."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT
    server: _Server

    def do_GET(self) -> None:
        served = self.server.served
        hosts = self.headers.get_all("Host", [])
        origins = self.headers.get_all("Origin", [])
        try:
            path = unquote(urlsplit(self.path).path)
            if path == ICON:
                # Every browser asks for it by itself; an error would stand in its console.
                self.send_response(HTTPStatus.NO_CONTENT)
                self.end_headers()
                return
            content, media_type = served.content(served.guard.requested(hosts, origins, path))
            status = HTTPStatus.OK
        except RequestRejected as error:
            status = error.status
            content, media_type = error.why.encode(), "text/plain; charset=utf-8"
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", FRAME_POLICY)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def version_string(self) -> str:
        """Return what the header `Server` says: nothing of versions."""
        return "headwise"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal shows the progress of the work."""


@contextmanager
def serve_folder(folder: Path, port: int = 0) -> Iterator[FolderServer]:
    """Serve a folder on this machine for the time of a block.

    Parameters
    ----------
    folder : Path
        It need not exist yet.
    port : int, default 0
        Port on 127.0.0.1; 0 takes any free one.
    """
    server = FolderServer(folder, port)
    try:
        yield server
    finally:
        server.close()
