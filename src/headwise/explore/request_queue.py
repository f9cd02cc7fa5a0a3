"""One worker for a model, and a short queue before it: who comes when it is full is told to come
again."""

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
    """Does one thing at a time, in a thread that ends with the process.

    Parameters
    ----------
    waiting : int, default 8
        How many may wait while one is served.
    """

    def __init__(self, waiting: int = WAITING) -> None:
        self._queue: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue(
            waiting
        )
        self._thread = threading.Thread(target=self._work, name="headwise-explore", daemon=True)
        self._thread.start()

    async def do(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, in its turn; `Busy` where too many wait. Who goes away before his turn
        is not served."""
        future: Future[Any] = Future()
        self._forget()
        try:
            self._queue.put_nowait((future, work))
        except queue.Full:
            raise Busy from None
        return await asyncio.wrap_future(future)

    def close(self, patience: float = 2.0) -> None:
        """Let the last one finish, for so many seconds, and send the others away."""
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        self._queue.put(None)
        self._thread.join(patience)

    def _forget(self) -> None:
        """Take those who went away out of the queue: they hold no place."""
        with self._queue.mutex:
            waiting = self._queue.queue
            kept = [item for item in waiting if item is None or not item[0].cancelled()]
            waiting.clear()
            waiting.extend(kept)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # whoever waits for it is told
                future.set_exception(error)
            del item, future, work  # an answer is large, and the next question may be far away
