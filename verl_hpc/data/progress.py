"""How far a long pass is, now and then in the log."""

from __future__ import annotations

import logging
import time

TOLD_EVERY_S = 10.0
"""How often a long pass says how far it is."""

_logger = logging.getLogger(__name__)


class Progress:
    """Says how far a pass is, at most every `TOLD_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def tell(self, name: str, done: int, total: int, what: str) -> None:
        """`name: done of total what`, if it is time to say something."""
        if time.monotonic() - self._told >= TOLD_EVERY_S:
            self._told = time.monotonic()
            _logger.warning("%s: %s of %s %s", name, f"{done:,}", f"{total:,}", what)
