"""Reports the ranks that are late, and what they are in.

Each rank counts the operators it has entered, and its waits for other ranks; all ranks of a
placement enter the same ones in the same order. A thread publishes the counts in the job's store;
rank 0's thread compares them and leaves ranks.json for `hang` and the dashboard. It only reports:
what ends a hung job is the collective timeout.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.config.spans import spans
from verl_hpc.runs.ranks import Progress, Ranks, last_wrote, write_ranks
from verl_hpc.runtime.debug.debugger import hide_from_debugger

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from verl_hpc.runtime.control import Control

_KEY = "verl_hpc/progress/{}"
_MOST_LINES = 8


def describe(
    late: Sequence[Progress], progress: Sequence[Progress], patience_s: float = math.inf
) -> str:
    """One line a late rank, and where the ranks are that wait for them.

    Args:
        late: ranks that hold up others.
        progress: all ranks.
        patience_s: seconds after which a rank that has written nothing may be elsewhere.
    """
    behind = {p.rank for p in late}
    others = [p for p in progress if p.rank not in behind]
    ahead = max((p.count for p in others), default=0)
    # A rank may wait in torch, too, of which only its operator tells.
    waiting = [p for p in others if p.waited_s] or [p for p in others if p.count == ahead]

    def where(p: Progress) -> str:
        if p.silent_s > patience_s:
            return last_wrote([repr(p.operator)], f"{p.silent_s:.0f} s")
        return f"in {p.operator!r} for {p.seconds:.0f} s"

    lines = [f"  rank {p.rank} on {p.host}: {where(p)}" for p in late[:_MOST_LINES]]
    if len(late) > _MOST_LINES:
        lines.append(f"  and {len(late) - _MOST_LINES} more")
    for operator, number in Counter(p.operator for p in waiting).most_common(_MOST_LINES):
        lines.append(f"  {number} of {len(progress)} ranks wait in {operator!r}")
    return "verl_hpc: late ranks:\n" + "\n".join(lines) + "\n"


class Watchdog:
    """Publishes this rank's progress; on rank 0, reports late ranks.

    `enter` is what the main thread calls at each operator; it takes no lock and no message.

    Args:
        control: of all ranks; it says whether this rank waits for others.
    """

    def __init__(
        self,
        control: Control,
        host: str,
        late_after_s: float,
        write: Callable[[str], object] = sys.stderr.write,
    ) -> None:
        self._control, self.host = control, host
        self.late_after_s = late_after_s
        self.interval_s = min(late_after_s / 4, 10.0)
        self.errands: list[Callable[[TCPStore], object]] = []
        """What else to do each time, on every rank."""
        self.places = ""
        """Names of the placements that this rank belongs to, once it is known."""
        self._write = write
        self._run_directory: Path | None = None
        self._longest: dict[str, float] = {}
        """Seconds, by operator."""
        # Times of the system's clock: rank 0 counts on where a rank has fallen silent.
        self._now = (0, "start-up", time.time())
        self._is_stopping = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: frozenset[tuple[int, int]] = frozenset()

    def enter(self, operator: str) -> None:
        """Say that this rank starts `operator`."""
        now, (count, last, since) = time.time(), self._now
        self._longest[last] = max(self._longest.get(last, 0.0), now - since)
        self._now = (count + 1, operator, now)

    def write_into(self, run_directory: Path) -> None:
        """Leave ranks.json in `run_directory`, on rank 0: now, and at each beat from now on."""
        self._run_directory = run_directory
        self._wake.set()

    def start(self, store: TCPStore) -> None:
        """Publish and watch through `store`, a connection that no other thread uses."""
        self._thread = threading.Thread(
            target=self._run, args=(store,), name="verl_hpc-watchdog", daemon=True
        )
        hide_from_debugger(self._thread)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns after 5 seconds at the latest, also while the store hangs."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self, store: TCPStore) -> None:
        store.set_timeout(timedelta(seconds=max(self.interval_s, 1.0)))
        while not self._is_stopping:
            try:
                self._publish(store)
                for errand in self.errands:
                    errand(store)
                if self._control.rank == 0:
                    self._watch(store)
            except (RuntimeError, OSError):
                # The store is gone or slow: the job is ending, or ranks have not published yet.
                # Or the run directory cannot be written, of which the heartbeat tells.
                pass
            self._wake.wait(self.interval_s)
            self._wake.clear()

    def _publish(self, store: TCPStore) -> None:
        (count, operator, entered), control = self._now, self._control
        since, ranks = control.waiting_since, control.waiting_for
        in_part = since is not None and len(ranks) < control.size
        facts = {
            "rank": control.rank,
            "count": count,
            "operator": operator,
            "usual_s": self._longest.get(operator, 0.0),
            "places": self.places,
            "host": self.host,
            "pid": os.getpid(),
            "num_waits": control.num_waits,
            "waits_for": spans(ranks) if in_part else "",
        }
        times = {"seconds": entered, "silent_s": time.time()}
        times |= {} if since is None else {"waited_s": since}
        store.set(_KEY.format(control.rank), json.dumps([facts, times]))

    def _watch(self, store: TCPStore) -> None:
        beats = store.multi_get([_KEY.format(rank) for rank in range(self._control.size)])
        now = time.time()
        progress = [_progress(text, now) for text in beats]
        job = os.environ.get("SLURM_JOB_ID")
        ranks = Ranks(now, self.interval_s, self.late_after_s, job, tuple(progress))
        late = ranks.late
        episode = frozenset((p.rank, p.count) for p in late)
        if episode - self._reported:
            self._write(describe(late, progress, patience_s=ranks.patience_s))
        self._reported = episode
        if self._run_directory is not None:
            write_ranks(self._run_directory, ranks)


def _progress(text: bytes, now: float) -> Progress:
    """What a rank has published; its times have become the seconds since."""
    facts, times = json.loads(text)
    seconds = {name: max(now - then, 0.0) for name, then in times.items()}
    return Progress(**facts, **seconds)
