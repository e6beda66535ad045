"""Work beside the main thread, whose outcome the main thread asks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Background:
    """A function that runs in a thread of its own from now on.

    The thread does not keep a process alive: one that fails ends at once.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self.seconds = 0.0
        """That it took; known once it is over."""
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Return once it is over; raises what it raised."""
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
