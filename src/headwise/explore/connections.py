"""Connections of the explorer's server that cannot lock others out: a silent one is closed after a
while, and at once where a new one needs its place."""

from __future__ import annotations

import asyncio
from typing import Any

from headwise.explore.limits import MOST_CONNECTIONS, REQUEST_TIMEOUT


def timed_connection() -> type:
    """Return the class of such connections; uvicorn is imported only here, since it is an extra."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedConnection(H11Protocol):
        """A connection of uvicorn with a limit on the time in which a request arrives.

        uvicorn itself closes a connection that is silent after a response, but waits forever for the
        first request and for the rest of a header. The body of a request has its limit in
        `server._read_body`.
        """

        _arrival_timer: asyncio.TimerHandle | None = None
        _waits_since = 0.0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_waiting()
            self._make_room()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._has_request():
                self._stop_waiting()
            elif self._arrival_timer is None:
                # The first bytes of the next request. Later ones do not start the time anew, or a
                # header sent byte by byte would never end.
                self._start_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _has_request(self) -> bool:
            """Whether a request has arrived that is not answered yet."""
            return self.cycle is not None and not self.cycle.response_complete

        def _start_waiting(self) -> None:
            self._waits_since = self.loop.time()
            self._arrival_timer = self.loop.call_later(REQUEST_TIMEOUT, self._close_if_silent)

        def _stop_waiting(self) -> None:
            if self._arrival_timer is not None:
                self._arrival_timer.cancel()
                self._arrival_timer = None

        def _close_if_silent(self) -> None:
            self._arrival_timer = None
            if not self._has_request():
                self.transport.close()

        def _make_room(self) -> None:
            """Close the connection that has waited longest for its request, where there are too many.

            A request is answered with status 503 from `MOST_CONNECTIONS` connections on: one fewer may
            be open.
            """
            while len(self.connections) >= MOST_CONNECTIONS:
                silent: list[TimedConnection] = []
                for connection in self.connections:
                    if isinstance(connection, TimedConnection) and not connection._has_request():
                        silent.append(connection)
                if silent == [self]:
                    return
                # Those that never asked anything go before browsers that may ask again.
                oldest = min(
                    silent, key=lambda other: (other.cycle is not None, other._waits_since)
                )
                # `connection_lost` is called later, but the place is free now.
                self.connections.discard(oldest)
                oldest._stop_waiting()
                oldest.transport.abort()

    return TimedConnection
