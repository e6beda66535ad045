"""Run work in a background thread, and report its outcome to the main thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Background:
    """A function that starts running in its own thread.

    The thread is a daemon: a failing process ends at once.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self.seconds = 0.0
        """Duration of the work, set when it is over."""
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the work is over; raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._work()
        except BaseException as error:  # `wait` raises it
            self._error = error
        self.seconds = time.monotonic() - begin
