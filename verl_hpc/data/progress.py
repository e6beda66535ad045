"""Log the progress of long passes."""

from __future__ import annotations

import logging
import time

TOLD_EVERY_S = 10.0
"""Least seconds between two lines."""

_logger = logging.getLogger(__name__)


class Progress:
    """Logs the progress of a pass, at most every `TOLD_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def tell(self, name: str, done: int, total: int, what: str) -> None:
        """Log `name: done of total what` if the last line is old enough."""
        if time.monotonic() - self._told >= TOLD_EVERY_S:
            self._told = time.monotonic()
            _logger.warning("%s: %s of %s %s", name, f"{done:,}", f"{total:,}", what)
