"""Reports the ranks that are late, and what they are in.

Each rank counts the operators it has entered; all ranks of a placement enter the same ones in the
same order. A thread publishes the count in the job's store; rank 0's thread compares them. It
only reports: what ends a hung job is the collective timeout.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_KEY = "verl_hpc/progress/{}"


@dataclass(frozen=True)
class Progress:
    """Where one rank is: the `count`-th operator it entered, `seconds` ago."""

    rank: int
    count: int
    operator: str
    seconds: float
    host: str = ""


def late_ranks(progress: Sequence[Progress], late_after_s: float) -> list[Progress]:
    """Ranks that hold up the others, the furthest behind first.

    A rank is late when others have entered a later operator and it has been in its own for longer
    than `late_after_s`. When all are equally far, nobody is.
    """
    ahead = max(p.count for p in progress)
    late = [p for p in progress if p.count < ahead and p.seconds > late_after_s]
    return sorted(late, key=lambda p: (p.count, p.rank))


def describe(late: Sequence[Progress], progress: Sequence[Progress], most: int = 8) -> str:
    """One line a late rank, and where the ranks are that wait for them."""
    ahead = max(progress, key=lambda p: p.count)
    waiting = sum(p.count == ahead.count for p in progress)
    lines = [
        f"  rank {p.rank} on {p.host}: in {p.operator!r} for {p.seconds:.0f} s" for p in late[:most]
    ]
    if len(late) > most:
        lines.append(f"  and {len(late) - most} more")
    lines.append(f"  {waiting} of {len(progress)} ranks wait in {ahead.operator!r}")
    return "verl_hpc: late ranks:\n" + "\n".join(lines) + "\n"


class Watchdog:
    """Publishes this rank's progress; on rank 0, reports late ranks.

    `enter` is what the main thread calls at each operator; it takes no lock and no message.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        host: str,
        late_after_s: float,
        write: Callable[[str], object] = sys.stderr.write,
    ) -> None:
        self.rank, self.size, self.host = rank, size, host
        self.late_after_s = late_after_s
        self._write = write
        self._now = (0, "start-up", time.monotonic())
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: frozenset[tuple[int, int]] = frozenset()

    def enter(self, operator: str) -> None:
        """Say that this rank starts `operator`."""
        self._now = (self._now[0] + 1, operator, time.monotonic())

    @property
    def operator(self) -> str:
        return self._now[1]

    def start(self, store: TCPStore) -> None:
        """Publish and watch through `store`, a connection that no other thread uses."""
        interval = min(self.late_after_s / 4, 10.0)
        self._thread = threading.Thread(
            target=self._run, args=(store, interval), name="verl_hpc-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self, store: TCPStore, interval: float) -> None:
        store.set_timeout(timedelta(seconds=max(interval, 1.0)))
        while not self._stop.wait(interval):
            try:
                self._publish(store)
                if self.rank == 0:
                    self._watch(store)
            except RuntimeError:
                # The store is gone or slow: the job is ending, or ranks have not published yet.
                continue

    def _publish(self, store: TCPStore) -> None:
        count, operator, since = self._now
        state = [count, operator, time.monotonic() - since, self.host]
        store.set(_KEY.format(self.rank), json.dumps(state))

    def _watch(self, store: TCPStore) -> None:
        found = store.multi_get([_KEY.format(rank) for rank in range(self.size)])
        progress = [Progress(rank, *json.loads(text)) for rank, text in enumerate(found)]
        late = late_ranks(progress, self.late_after_s)
        episode = frozenset((p.rank, p.count) for p in late)
        if episode - self._reported:
            self._write(describe(late, progress))
        self._reported = episode
