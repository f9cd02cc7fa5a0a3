"""The explorer's application, called as a server calls it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headwise.core.loopback import Guard

PORT = 4321


@dataclass
class Client:
    """Calls the application with raw messages: what a request is, byte for byte, is up to the
    test."""

    app: Any
    guard: Guard
    failures: list[Any]

    async def send(
        self,
        path: str,
        body: bytes | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
        method: str = "",
    ) -> tuple[int, dict[str, str], bytes]:
        own = [(b"host", f"127.0.0.1:{PORT}".encode())]
        if body is not None:
            own += [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "query_string": b"",
            "method": method or ("GET" if body is None else "POST"), "path": path.replace("TOKEN", self.guard.token),
            "headers": own if headers is None else headers, "root_path": "", "client": None, "server": None,
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        try:
            await self.app(scope, receive, send)
        except Exception as error:  # a server would say 500
            self.failures.append(error)
        head = sent[0]
        found = {key.decode().lower(): value.decode() for key, value in head["headers"]}
        return head["status"], found, b"".join(part.get("body", b"") for part in sent[1:])

    async def ask(self, path: str, **content: Any) -> tuple[int, dict[str, Any]]:
        status, _, body = await self.send(f"/TOKEN/{path}", json.dumps(content).encode())
        return status, json.loads(body)
