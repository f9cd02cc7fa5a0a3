"""The explorer's server: on this machine alone, for its own page alone."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of routes, whose types
# are imported late.

import asyncio
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from importlib import resources
from importlib.util import find_spec
from typing import Any

from headwise.atlas import Atlas
from headwise.core.errors import HeadwiseError, InputError, MissingExtraError, ParameterError
from headwise.core.failures import Failure
from headwise.core.loopback import (
    HEADERS,
    HOST,
    NO_SUCH_PAGE,
    POLICY,
    Guard,
    RequestRejected,
    body_length,
    content_of,
)
from headwise.explore.explorer import Explorer, question_of
from headwise.explore.request_queue import Busy, RequestQueue
from headwise.models import HeadModel

LONGEST_BODY = 40_000  # bytes: two texts of the longest, escaped, and some heads
PATIENCE = 20.0  # seconds that a request may take to arrive
MOST_CONNECTIONS = 100
FILES = {
    "": ("headwise.explore", "static/explore.html", "text/html; charset=utf-8"),
    "explore.js": ("headwise.explore", "static/explore.js", "text/javascript; charset=utf-8"),
    "explore.css": ("headwise.explore", "static/explore.css", "text/css; charset=utf-8"),
    "d3.js": ("headwise.plots", "views/d3/d3.js", "text/javascript; charset=utf-8"),
    "drawing.js": ("headwise.plots", "views/drawing.js", "text/javascript; charset=utf-8"),
    "heads.css": ("headwise.plots", "views/heads.css", "text/css; charset=utf-8"),
    "heads.js": ("headwise.plots", "views/heads.js", "text/javascript; charset=utf-8"),
}
SCRIPTS = {
    "Content-Security-Policy": f"{POLICY}script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:"
}
BUSY = "others are being served; try again in a moment"
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@cache
def _file(name: str) -> tuple[bytes, str]:
    """One of the page's few files, all known by name: no part of a request becomes a path."""
    package, path, kind = FILES[name]
    return resources.files(package).joinpath(path).read_bytes(), kind


def check_extra() -> None:
    """Refuse to go on without the packages of the extra `explore`."""
    for package in ("fastapi", "uvicorn"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "explore", "`headwise explore`")


def make_app(
    explorer: Explorer,
    guard: Guard,
    desk: RequestQueue,
    tell: Callable[[Failure], None] | None = None,
) -> Any:
    """The application (ASGI): the page, its state, and three questions.

    Parameters
    ----------
    explorer : Explorer
        Who answers.
    guard : Guard
        Who decides whether a request is answered at all.
    desk : RequestQueue
        Where questions wait.
    tell : callable, optional
        Hears what failed unexpectedly; the page is only told that it did.
    """
    check_extra()
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse

    app = FastAPI(
        title="headwise explore",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )

    async def answered(
        request: Request, answer: Callable[..., dict[str, Any]], *beside: str
    ) -> Response:
        content = content_of(await request.body())
        more = {name: content.pop(name) for name in beside if name in content}
        missing = [name for name in beside if name not in more and name != "source"]
        if missing:
            raise InputError(f"The question needs `{missing[0]}` too.")
        return JSONResponse(await desk.do(partial(answer, question_of(content), **more)))

    @app.get("/state")
    async def state() -> Response:
        return JSONResponse(explorer.state())

    @app.post("/look")
    async def look(request: Request) -> Response:
        return await answered(request, explorer.look)

    @app.post("/head")
    async def head(request: Request) -> Response:
        return await answered(request, explorer.head, "head")

    @app.post("/attribution")
    async def attribution(request: Request) -> Response:
        return await answered(request, explorer.attribution, "head", "token", "source")

    @app.get("/{name:path}")
    async def file(name: str) -> Response:
        if name not in FILES:
            raise RequestRejected(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
        content, kind = _file(name)
        return Response(content, media_type=kind)

    def refuse(status: int, why: str, **headers: str) -> Response:
        return JSONResponse({"error": why}, status, headers)

    async def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, RequestRejected):
            return refuse(error.status, error.why)
        if isinstance(error, HeadwiseError):
            return refuse(HTTPStatus.BAD_REQUEST, str(error))
        if isinstance(error, Busy):
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, BUSY, **{"Retry-After": "1"})
        return refuse(
            HTTPStatus.INTERNAL_SERVER_ERROR, "this failed unexpectedly; the terminal says more"
        )

    for kind in (RequestRejected, HeadwiseError, Busy, Exception):
        app.add_exception_handler(kind, refused)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            scope, receive = await _admitted(guard, scope, receive)
            await app(scope, receive, _with_headers(send))
        except RequestRejected as error:
            await refuse(error.status, error.why)(scope, receive, _with_headers(send))
        except Exception as error:  # the page has been told that, and nothing else
            if tell is not None:
                with suppress(HeadwiseError):
                    tell(
                        Failure.of(
                            f"The explorer's answer to {scope['path'].rpartition('/')[2]!r}", error
                        )
                    )

    return guarded


async def _admitted(guard: Guard, scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
    """The request without its token, its body read and short; `RequestRejected` for what is not for us."""

    def headers(name: bytes) -> list[str]:
        return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]

    asked = guard.requested(headers(b"host"), headers(b"origin"), scope["path"])
    body = b""
    if scope["method"] == "POST":
        kinds, chunked = headers(b"content-type"), bool(headers(b"transfer-encoding"))
        length = body_length(
            kinds[0] if len(kinds) == 1 else "", headers(b"content-length"), chunked, LONGEST_BODY
        )
        body = await _body(receive, length)
    elif scope["method"] != "GET":
        raise RequestRejected(HTTPStatus.METHOD_NOT_ALLOWED, "GET and POST alone")
    sent = False

    async def replay() -> Any:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    path = f"/{asked}"
    return {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}, replay


async def _body(receive: Receive, length: int) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise RequestRejected(HTTPStatus.BAD_REQUEST, "the request broke off")
                body += bytes(message.get("body", b""))
                if len(body) > length:
                    raise RequestRejected(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LONGEST_BODY} bytes"
                    )
                if not message.get("more_body"):
                    return body
    except TimeoutError as error:
        raise RequestRejected(
            HTTPStatus.REQUEST_TIMEOUT, "the request took too long to arrive"
        ) from error


def _with_headers(send: Send) -> Send:
    """Every answer says that it is for this page alone."""
    extra = [
        (name.lower().encode(), value.encode()) for name, value in {**HEADERS, **SCRIPTS}.items()
    ]

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending


@contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A socket on this machine alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
            listener.listen(MOST_CONNECTIONS)  # who comes before the first answer waits
        except (OSError, OverflowError) as error:
            raise ParameterError(
                f"Port {port} cannot be used ({error}); choose another or 0 for any."
            ) from error
        yield listener


def serve(
    models: Sequence[HeadModel],
    atlas: Atlas | None = None,
    *,
    port: int = 0,
    open_browser: bool = True,
    say: Callable[[str], None] = print,
    tell: Callable[[Failure], None] | None = None,
) -> None:
    """Serve the explorer until it is interrupted.

    Parameters
    ----------
    models : sequence of HeadModel
        One model, or two to stand side by side.
    atlas : Atlas, optional
        What is known of the heads of the first.
    port : int, default 0
        Port on 127.0.0.1; 0 takes any free one.
    open_browser : bool, default True
        Whether to open the page at once.
    say : callable, default print
        Where the address is printed.
    tell : callable, optional
        Hears what failed unexpectedly.
    """
    check_extra()
    import uvicorn

    explorer, guard = Explorer(models, atlas), Guard()
    desk = RequestQueue()
    app = make_app(explorer, guard, desk, tell)
    with listening(port) as listener:
        guard.port = listener.getsockname()[1]
        for note in explorer.notes:
            say(note)
        names = " and ".join(model.name for model in models)
        say(f"Exploring {names} at {guard.address} (this machine alone); stop with Ctrl-C.")
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="critical",
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        if open_browser:
            opener = threading.Timer(0.5, webbrowser.open, [guard.address])
            opener.daemon = True
            opener.start()
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            desk.close()
