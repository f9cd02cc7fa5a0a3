"""The server behind `headwise label`: for pages of its own on this machine, and for nobody else."""

from __future__ import annotations

import hmac
import json
import secrets
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Protocol

from headwise.core.errors import HeadwiseError, ParameterError

HOST = "127.0.0.1"
PAGE = "label.html"
LONGEST_BODY = 10_000  # bytes; the page sends a hundred
PATIENCE = 20.0  # seconds that a request may take to arrive
NOT_FOR_OTHERS = "not for other pages"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token in it
    "X-Content-Type-Options": "nosniff",
}


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
        self.token = secrets.token_urlsafe(16)
        try:
            super().__init__((HOST, port), partial(_Handler, session))
        except (OSError, OverflowError) as error:
            raise ParameterError(f"Port {port} cannot be used ({error}); choose another or 0 for any.") from error

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that breaks off is no news."""


class _Refused(Exception):
    """A request that is not answered, with the status that says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


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
                raise _Refused(HTTPStatus.NOT_FOUND, "no such page")
        except _Refused as refused:
            self._refuse(refused)

    def do_POST(self) -> None:
        try:
            asked = self._asked()
            if self.headers.get_content_type() != "application/json":
                raise _Refused(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
            content = self._content()
            if asked == "label":
                self.session.say(str(content.get("id")), str(content.get("label")))
            elif asked == "undo":
                self.session.undo()
            else:
                raise _Refused(HTTPStatus.NOT_FOUND, "no such page")
            self._json(HTTPStatus.OK, self.session.next())
        except _Refused as refused:
            self._refuse(refused)
        except HeadwiseError as error:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except OSError as error:
            self._json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"The label could not be written ({error})."})

    def _asked(self) -> str:
        """What is asked for, once it is clear that a page of this server asks."""
        mine = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        known = {f"http://{name}" for name in mine}
        if len(hosts) != 1 or hosts[0] not in mine or len(origins) > 1 or not known.issuperset(origins):
            raise _Refused(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
        _, _, rest = self.path.partition("/")
        token, slash, asked = rest.partition("/")
        # In bytes, since the path may hold any character, and in constant time.
        if not slash or not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            raise _Refused(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
        return asked

    def _content(self) -> dict[str, Any]:
        lengths = self.headers.get_all("Content-Length", [])
        length = lengths[0] if len(lengths) == 1 and "Transfer-Encoding" not in self.headers else ""
        if not (length.isascii() and length.isdigit()):
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "one Content-Length is needed")
        if len(length) > 9 or int(length) > LONGEST_BODY:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LONGEST_BODY} bytes")
        try:
            found = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError) as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, "no JSON") from error
        if not isinstance(found, dict):
            raise _Refused(HTTPStatus.BAD_REQUEST, "no names with values")
        return found

    def _refuse(self, refused: _Refused) -> None:
        self._json(refused.status, {"error": refused.why})

    def _json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(content).encode())

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """No versions for strangers."""
        return "headwise"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is for the address and the agreement."""
