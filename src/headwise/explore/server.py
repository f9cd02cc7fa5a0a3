"""The explorer's web server: reachable from this machine only, and by its own page only."""

# No `from __future__ import annotations` here: FastAPI evaluates the annotations of routes, and
# their types are imported inside `make_app`.

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
from headwise.explore.limits import MOST_CONNECTIONS, REQUEST_TIMEOUT
from headwise.explore.request_queue import Busy, RequestQueue
from headwise.models import HeadModel

LONGEST_BODY = 40_000  # bytes: two texts of the greatest length, escaped, and some heads
FILES = {
    "": ("headwise.explore", "static/explore.html", "text/html; charset=utf-8"),
    "explore.js": ("headwise.explore", "static/explore.js", "text/javascript; charset=utf-8"),
    "pane.js": ("headwise.explore", "static/pane.js", "text/javascript; charset=utf-8"),
    "asking.js": ("headwise.explore", "static/asking.js", "text/javascript; charset=utf-8"),
    "explore.css": ("headwise.explore", "static/explore.css", "text/css; charset=utf-8"),
    "d3.js": ("headwise.plots", "views/d3/d3.js", "text/javascript; charset=utf-8"),
    "drawing.js": ("headwise.plots", "views/drawing.js", "text/javascript; charset=utf-8"),
    "export.js": ("headwise.plots", "views/export.js", "text/javascript; charset=utf-8"),
    "tokens.css": ("headwise.plots", "views/tokens.css", "text/css; charset=utf-8"),
    "design.css": ("headwise.plots", "views/design.css", "text/css; charset=utf-8"),
    "heads.css": ("headwise.plots", "views/heads.css", "text/css; charset=utf-8"),
    "heads.js": ("headwise.plots", "views/heads.js", "text/javascript; charset=utf-8"),
}
# Pictures of maps that are saved pass through an address of the page's own (`blob:`).
SCRIPT_POLICY = "script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:"
OPTIONAL_PARAMETERS = ("source", "tokens")
BUSY = "other requests are being served; try again in a moment"
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@cache
def _file(name: str) -> tuple[bytes, str]:
    """Return the content and media type of one of the page's files.

    The names are fixed, so that no part of a request becomes a path.
    """
    package, path, media_type = FILES[name]
    return resources.files(package).joinpath(path).read_bytes(), media_type


def check_extra() -> None:
    """Raise `MissingExtraError` where the packages of the extra `explore` are not installed."""
    for package in ("fastapi", "uvicorn"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "explore", "`headwise explore`")


def make_app(
    explorer: Explorer,
    guard: Guard,
    requests: RequestQueue,
    on_failure: Callable[[Failure], None] | None = None,
) -> Any:
    """Return the ASGI application: the page's files, its state, and five kinds of requests.

    Parameters
    ----------
    explorer : Explorer
        Computes the answers.
    guard : Guard
        Decides whether a request is answered at all.
    requests : RequestQueue
        Runs the requests one after another.
    on_failure : callable, optional
        Called with every unexpected failure. The page only learns that something failed.
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

    async def respond(
        request: Request, answer: Callable[..., dict[str, Any]], *parameter_names: str
    ) -> Response:
        """Queue `answer(question, **parameters)`, read from the body, and return its result."""
        content = content_of(await request.body())
        parameters = {}
        for name in parameter_names:
            if name in content:
                parameters[name] = content.pop(name)
            elif name not in OPTIONAL_PARAMETERS:
                raise InputError(f"The question needs `{name}` too.")
        answer_question = partial(answer, question_of(content), **parameters)
        return JSONResponse(await requests.run(answer_question))

    @app.get("/state")
    async def state() -> Response:
        return JSONResponse(explorer.state())

    @app.post("/look")
    async def all_heads(request: Request) -> Response:
        return await respond(request, explorer.all_heads)

    @app.post("/head")
    async def head(request: Request) -> Response:
        return await respond(request, explorer.head, "head")

    @app.post("/attribution")
    async def attribution(request: Request) -> Response:
        return await respond(request, explorer.attribution, "head", "token", "source")

    @app.post("/logit")
    async def logit(request: Request) -> Response:
        return await respond(request, explorer.logit, "answer")

    @app.post("/write")
    async def write(request: Request) -> Response:
        return await respond(request, explorer.write, "tokens")

    @app.get("/{name:path}")
    async def file(name: str) -> Response:
        if name not in FILES:
            raise RequestRejected(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)
        content, media_type = _file(name)
        return Response(content, media_type=media_type)

    def error_response(status: int, why: str, **headers: str) -> Response:
        return JSONResponse({"error": why}, status, headers)

    async def handle_error(_: Request, error: Exception) -> Response:
        if isinstance(error, RequestRejected):
            return error_response(error.status, error.why)
        if isinstance(error, HeadwiseError):
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        if isinstance(error, Busy):
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, BUSY, **{"Retry-After": "1"})
        return error_response(
            HTTPStatus.INTERNAL_SERVER_ERROR, "this failed unexpectedly; the terminal says more"
        )

    for error_type in (RequestRejected, HeadwiseError, Busy, Exception):
        app.add_exception_handler(error_type, handle_error)

    async def guarded_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            scope, receive = await _admitted(guard, scope, receive)
            await app(scope, receive, _with_headers(send))
        except RequestRejected as error:
            await error_response(error.status, error.why)(scope, receive, _with_headers(send))
        except Exception as error:  # FastAPI has already sent the response of `handle_error`
            if on_failure is not None:
                request_name = scope["path"].rpartition("/")[2]
                with suppress(HeadwiseError):
                    on_failure(Failure.of(f"The explorer's answer to {request_name!r}", error))

    return guarded_app


async def _admitted(guard: Guard, scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
    """Check a request and return it without the token in its path and with its body read.

    Raises `RequestRejected` where the request does not come from our page or is too long.
    """

    def headers(name: bytes) -> list[str]:
        return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]

    requested_name = guard.requested(headers(b"host"), headers(b"origin"), scope["path"])
    body = b""
    if scope["method"] == "POST":
        content_types = headers(b"content-type")
        content_type = content_types[0] if len(content_types) == 1 else ""
        is_chunked = bool(headers(b"transfer-encoding"))
        length = body_length(content_type, headers(b"content-length"), is_chunked, LONGEST_BODY)
        body = await _read_body(receive, length)
    elif scope["method"] != "GET":
        raise RequestRejected(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or POST")
    sent = False

    async def replay() -> Any:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    path = f"/{requested_name}"
    return {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}, replay


async def _read_body(receive: Receive, length: int) -> bytes:
    """Read a body of at most `length` bytes within the time limit."""
    body = b""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise RequestRejected(HTTPStatus.BAD_REQUEST, "the request was interrupted")
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
    """Add the security headers to every response, so that only our own page can use it."""
    security_headers = {**HEADERS, "Content-Security-Policy": POLICY + SCRIPT_POLICY}
    encoded_headers = []
    for name, value in security_headers.items():
        encoded_headers.append((name.lower().encode(), value.encode()))

    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *encoded_headers]}
        await send(message)

    return send_with_headers


@contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """Open a listening socket that only this machine can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
            # Connections that arrive before the server is ready wait in the backlog.
            listener.listen(MOST_CONNECTIONS)
        except (OSError, OverflowError) as error:
            raise ParameterError(
                f"Port {port} cannot be used ({str(error).rstrip('.')}); choose another or 0 for any."
            ) from error
        yield listener


def serve(
    models: Sequence[HeadModel],
    atlas: Atlas | None = None,
    *,
    port: int = 0,
    open_browser: bool = True,
    say: Callable[[str], None] = print,
    on_failure: Callable[[Failure], None] | None = None,
) -> None:
    """Serve the explorer until it is interrupted.

    Parameters
    ----------
    models : sequence of HeadModel
        One model, or two to compare side by side.
    atlas : Atlas, optional
        The source of the labels of the first model's heads.
    port : int, default 0
        Port on 127.0.0.1; 0 takes any free one.
    open_browser : bool, default True
        Whether to open the page at once.
    say : callable, default print
        Prints the notes and the address.
    on_failure : callable, optional
        Called with every unexpected failure.
    """
    check_extra()
    import uvicorn

    from headwise.explore.connections import timed_connection

    explorer = Explorer(models, atlas)
    guard = Guard()
    requests = RequestQueue()
    app = make_app(explorer, guard, requests, on_failure)
    with listening(port) as listener:
        guard.port = listener.getsockname()[1]
        for note in explorer.notes:
            say(note)
        names = " and ".join(model.name for model in models)
        say(f"Exploring {names} at {guard.address} (this machine only); stop with Ctrl-C.")
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=timed_connection(),
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
            requests.close()
