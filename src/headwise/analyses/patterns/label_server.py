"""The server behind `headwise label`: for pages of its own on this machine, and for nobody else."""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Protocol

from headwise.core.errors import HeadwiseError, ParameterError
from headwise.core.loopback import (
    HEADERS,
    HOST,
    JSON_TYPE,
    NO_SUCH_PAGE,
    POLICY,
    Guard,
    Refused,
    body_length,
    content_of,
)

PAGE = "label.html"
LONGEST_BODY = 10_000  # bytes; the page sends a hundred
PATIENCE = 20.0  # seconds that a request may take to arrive
INLINE = {"Content-Security-Policy": f"{POLICY}script-src 'unsafe-inline'; style-src 'unsafe-inline'"}


class Session(Protocol):
    """What the page asks of a labelling."""

    def next(self) -> dict[str, Any]: ...
    def say(self, name: str, label: str) -> None: ...
    def undo(self) -> str | None: ...


class LabelServer(ThreadingHTTPServer):
    """A server on this machine alone, whose address has a token in it that nobody can guess.

    A request is answered only if it names this server as its host, comes from no other page, has the token, and is
    short. Requests name maps by their id among those loaded: no part of one ever becomes a path.

    Parameters
    ----------
    session : LabelSession
        The labelling.
    port : int, default 0
        The port; 0 takes any free one.
    """

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        self.guard = Guard()
        try:
            super().__init__((HOST, port), partial(_Handler, session))
        except (OSError, OverflowError) as error:
            raise ParameterError(f"Port {port} cannot be used ({error}); choose another or 0 for any.") from error
        self.guard.port = self.server_port

    @property
    def token(self) -> str:
        """What nobody else can guess."""
        return self.guard.token

    @property
    def address(self) -> str:
        """Where the page is."""
        return self.guard.address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that breaks off is no news."""


class _Handler(BaseHTTPRequestHandler):
    """Answers the page's few requests."""

    timeout = PATIENCE
    server: LabelServer

    def __init__(self, session: Session, *args: Any) -> None:
        self.session = session
        super().__init__(*args)

    def do_GET(self) -> None:
        try:
            asked = self._asked()
            if asked == "":
                page = resources.files("headwise.analyses.patterns").joinpath(PAGE).read_bytes()
                self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page)
            elif asked == "next":
                self._json(HTTPStatus.OK, self.session.next())
            else:
                raise Refused(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
        except Refused as refused:
            self._refuse(refused)

    def do_POST(self) -> None:
        try:
            asked = self._asked()
            content = self._content()
            if asked == "label":
                self.session.say(str(content.get("id")), str(content.get("label")))
            elif asked == "undo":
                self.session.undo()
            else:
                raise Refused(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
            self._json(HTTPStatus.OK, self.session.next())
        except Refused as refused:
            self._refuse(refused)
        except HeadwiseError as error:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except OSError as error:
            self._json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"The label could not be written ({error})."})

    def _asked(self) -> str:
        headers = self.headers
        return self.server.guard.asked(headers.get_all("Host", []), headers.get_all("Origin", []), self.path)

    def _content(self) -> dict[str, Any]:
        lengths, chunked = self.headers.get_all("Content-Length", []), "Transfer-Encoding" in self.headers
        return content_of(self.rfile.read(body_length(self.headers.get_content_type(), lengths, chunked, LONGEST_BODY)))

    def _refuse(self, refused: Refused) -> None:
        self._json(refused.status, {"error": refused.why})

    def _json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._answer(status, JSON_TYPE, json.dumps(content).encode())

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS, **INLINE}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """No versions for strangers."""
        return "headwise"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is for the address and the agreement."""
