"""Which requests a server of headwise on this machine answers: those of its own pages only."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

HOST = "127.0.0.1"
LOCAL_NAMES = (HOST, "localhost")
NOT_FOR_OTHERS = "not for other pages"
NO_SUCH_PAGE = "no such page"
JSON_TYPE = "application/json"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token in it
    "X-Content-Type-Options": "nosniff",
}
POLICY = "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "


class RequestRejected(Exception):
    """A request is rejected, with the status that says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Guard:
    """Accepts a request only if it names this server as its host, comes from no other page, and has
    the token.

    Parameters
    ----------
    port : int, default 0
        The server's port, once it is known.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.token = secrets.token_urlsafe(16)

    @property
    def address(self) -> str:
        """The address of the page, with a token in it that nobody can guess."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def requested(self, hosts: Sequence[str], origins: Sequence[str], path: str) -> str:
        """Return the path behind the token of a request from a page of this server; reject others.

        Parameters
        ----------
        hosts, origins : sequence of str
            All headers `Host` and `Origin` of the request.
        path : str
            Its path.
        """
        own_hosts = {f"{name}:{self.port}" for name in LOCAL_NAMES}
        own_origins = {f"http://{host}" for host in own_hosts}
        from_own_host = len(hosts) == 1 and hosts[0] in own_hosts
        from_own_page = len(origins) <= 1 and own_origins.issuperset(origins)
        if not from_own_host or not from_own_page:
            raise RequestRejected(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
        _, _, behind_slash = path.partition("/")
        token, slash, requested = behind_slash.partition("/")
        # In bytes, since the path may hold any character, and in constant time.
        if not slash or not hmac.compare_digest(
            token.encode("utf-8", "replace"), self.token.encode()
        ):
            raise RequestRejected(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
        return requested


def body_length(content_type: str, lengths: Sequence[str], chunked: bool, most: int) -> int:
    """Return the length of a body of JSON, as its headers say.

    Parameters
    ----------
    content_type : str
        Another site's page cannot send JSON without asking first.
    lengths : sequence of str
        All headers `Content-Length`.
    chunked : bool
        Whether there is a `Transfer-Encoding`, which says no length.
    most : int
        The most that is taken, in bytes.
    """
    if content_type.partition(";")[0].strip().lower() != JSON_TYPE:
        raise RequestRejected(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
    length = lengths[0] if len(lengths) == 1 and not chunked else ""
    if not (length.isascii() and length.isdigit()):
        raise RequestRejected(HTTPStatus.LENGTH_REQUIRED, "one Content-Length is needed")
    if len(length) > 9 or int(length) > most:
        raise RequestRejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {most} bytes")
    return int(length)


def content_of(body: bytes) -> dict[str, Any]:
    """Return the names and values in a body of JSON.

    >>> content_of(b'{"text": "a"}')
    {'text': 'a'}
    """
    try:
        content = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise RequestRejected(HTTPStatus.BAD_REQUEST, "no JSON") from error
    if not isinstance(content, dict):
        raise RequestRejected(HTTPStatus.BAD_REQUEST, "no names with values")
    return content
