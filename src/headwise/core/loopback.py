"""Who may ask a server of headwise on this machine: pages of its own, and nobody else."""

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


class Refused(Exception):
    """A request that is not answered, with the status that says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Guard:
    """Lets a request through only if it names this server as its host, comes from no other page,
    and has the token.

    Parameters
    ----------
    port : int, default 0
        The server's port, once it is known.
    """

    def __init__(self, port: int = 0) -> None:
        self.port, self.token = port, secrets.token_urlsafe(16)

    @property
    def address(self) -> str:
        """Where the page is: the address has a token in it that nobody can guess."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def asked(self, hosts: Sequence[str], origins: Sequence[str], path: str) -> str:
        """What is asked for behind the token, once it is clear that a page of this server asks.

        Parameters
        ----------
        hosts, origins : sequence of str
            All headers `Host` and `Origin` of the request.
        path : str
            Its path.
        """
        mine = {f"{name}:{self.port}" for name in LOCAL_NAMES}
        known = {f"http://{name}" for name in mine}
        if (
            len(hosts) != 1
            or hosts[0] not in mine
            or len(origins) > 1
            or not known.issuperset(origins)
        ):
            raise Refused(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
        _, _, rest = path.partition("/")
        token, slash, asked = rest.partition("/")
        # In bytes, since the path may hold any character, and in constant time.
        if not slash or not hmac.compare_digest(
            token.encode("utf-8", "replace"), self.token.encode()
        ):
            raise Refused(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
        return asked


def body_length(kind: str, lengths: Sequence[str], chunked: bool, most: int) -> int:
    """How long a body of JSON is, as its headers say.

    Parameters
    ----------
    kind : str
        Its content type; a page of another site can send no JSON unasked.
    lengths : sequence of str
        All headers `Content-Length`.
    chunked : bool
        Whether there is a `Transfer-Encoding`, which says no length.
    most : int
        The most that is taken, in bytes.
    """
    if kind.partition(";")[0].strip().lower() != JSON_TYPE:
        raise Refused(HTTPStatus.FORBIDDEN, NOT_FOR_OTHERS)
    length = lengths[0] if len(lengths) == 1 and not chunked else ""
    if not (length.isascii() and length.isdigit()):
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "one Content-Length is needed")
    if len(length) > 9 or int(length) > most:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {most} bytes")
    return int(length)


def content_of(body: bytes) -> dict[str, Any]:
    """The names and values in a body of JSON.

    >>> content_of(b'{"text": "a"}')
    {'text': 'a'}
    """
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "no JSON") from error
    if not isinstance(found, dict):
        raise Refused(HTTPStatus.BAD_REQUEST, "no names with values")
    return found
