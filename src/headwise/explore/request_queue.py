"""One worker thread for all requests to the models, with a short queue in front of it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

WAITING = 8


class Busy(Exception):
    """The queue is full."""


class RequestQueue:
    """Runs one request at a time, in a thread that ends with the process.

    Parameters
    ----------
    waiting : int, default 8
        How many requests may wait while one is served.
    """

    def __init__(self, waiting: int = WAITING) -> None:
        self._queue: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue(
            waiting
        )
        self._thread = threading.Thread(target=self._work, name="headwise-explore", daemon=True)
        self._thread.start()

    async def run(self, request: Callable[[], Any]) -> Any:
        """Queue a request and return its result; raise `Busy` where the queue is full.

        A request whose client disconnects before its turn is not run.
        """
        future: Future[Any] = Future()
        self._drop_cancelled()
        try:
            self._queue.put_nowait((future, request))
        except queue.Full:
            raise Busy from None
        return await asyncio.wrap_future(future)

    def close(self, timeout: float = 2.0) -> None:
        """Cancel the waiting requests and wait for the current one, at most `timeout` seconds."""
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                future, _ = item
                future.cancel()
        self._queue.put(None)
        self._thread.join(timeout)

    def _drop_cancelled(self) -> None:
        """Remove requests whose client has disconnected: they must not fill the queue."""
        with self._queue.mutex:
            waiting = self._queue.queue
            active = [item for item in waiting if item is None or not item[0].cancelled()]
            waiting.clear()
            waiting.extend(active)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            future, request = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(request())
            except BaseException as error:  # raised again where the result is awaited
                future.set_exception(error)
            # A result is large, and the next request may be far away: free it now.
            del item, future, request
