"""When to stop: signals, the end of the allocation and request files become one flag that all
ranks agree on.

Ranks never act on a signal alone, since one that leaves a collective early leaves the
others waiting: each notes its request, and at the next boundary all take the strongest.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from verl_hpc.config.requests import KINDS, Request, read_requests, withdraw
from verl_hpc.errors import ConfigError
from verl_hpc.flow import StepCancelled
from verl_hpc.runs.contract import END_TIME
from verl_hpc.runtime import environment
from verl_hpc.runtime.log_lines import stamped

if TYPE_CHECKING:
    from verl_hpc.runtime.control import Control

_FILE_EVERY_S = 5.0
ONE_SIGNAL_S = 5.0
"""Slurm and a container's runtime may both deliver what was sent once."""
_ONE_PRESS_S = 1.0
"""A terminal and a container's runtime may both deliver one press of Ctrl-C within this time."""
_TOLD = "verl_hpc: Ctrl-C: the run saves and leaves as soon as it can; Ctrl-C again ends at once\n"
MARGIN_S = 30.0
"""Left over for leaving, after a step, a save and evaluations as long as the longest so far."""


class StopRequest(IntEnum):
    """What a rank asks for; the largest of all ranks' requests counts."""

    CONTINUE = 0
    SAVE = 1
    """Save after this step and continue."""
    RESTART = 2
    """Finish this step, save, and leave to be started again."""
    STOP = 3
    """Finish this step, save, and leave for good."""
    RESTART_NOW = 4
    """Drop this step if it has changed no weights yet, save, and leave to be started again."""
    STOP_NOW = 5
    """Drop this step if it has changed no weights yet, save, and leave for good."""

    @property
    def leaves(self) -> bool:
        return self >= StopRequest.RESTART

    @property
    def at_once(self) -> bool:
        return self >= StopRequest.RESTART_NOW

    @property
    def for_good(self) -> bool:
        return self in (StopRequest.STOP, StopRequest.STOP_NOW)


class StepDropped(StepCancelled):
    """All ranks leave the step under way, which has changed nothing yet."""


@dataclass
class _Pace:
    """Longest durations so far, seconds."""

    step: float = 0.0
    save: float = 0.0
    evaluation: float = 0.0


class Signals:
    """What signals asked of this rank.

    USR2 (Slurm's warning before the time limit) finishes the step; TERM (preemption, scancel), or
    any later one, leaves at the next boundary. The first Ctrl-C is as TERM, the second ends this
    process. A start takes minutes for a large model, and a
    rank that a signal ends in it would end the run: listen before anything else.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stop_request = StopRequest.CONTINUE
        self.reason = ""
        self._clock = clock
        self._first: float | None = None
        self._pressed: float | None = None

    def listen(self) -> None:
        """Install the handlers, replacing any a library installed; only the main thread may."""
        signal.signal(signal.SIGUSR2, self._note)
        signal.signal(signal.SIGTERM, self._note)
        # A shell script starts what it runs in the background with SIGINT ignored.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._press)

    @staticmethod
    def ignore() -> None:
        """Take no more: Python forgets its handlers at its end, and a late signal would be the
        rank's exit status."""
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _press(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if self._pressed is None:
            self._pressed = now
            self._note(number, frame)
            if environment.launcher_rank() == 0:
                os.write(2, stamped(_TOLD).encode())
        elif now > self._pressed + _ONE_PRESS_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = self._clock()
        self._first = now if self._first is None else self._first
        at_once = number != signal.SIGUSR2 or now > self._first + ONE_SIGNAL_S
        self.stop_request = max(
            self.stop_request, StopRequest.RESTART_NOW if at_once else StopRequest.RESTART
        )
        self.reason = f"signal {signal.Signals(number).name}"


class StopFlag:
    """This rank's request, and the agreement of all.

    The allocation's end is read from SLURM_JOB_END_TIME and VERL_HPC_END_TIME: a step that would
    not be over in time is not begun. Nor is one that would pass the ceiling of the run's hours.

    Args:
        control: of the whole world.
        run_directory: where requests are left by `stop` and `save`.
        signals: noted so far, and from now on.
        clock: seconds since the epoch.
        ceiling: when the run has used runtime.max_gpu_hours, in seconds since the epoch.

    Raises:
        ConfigError: VERL_HPC_END_TIME is not a number of seconds.
    """

    def __init__(
        self,
        control: Control,
        run_directory: Path,
        signals: Signals,
        clock: Callable[[], float] = time.time,
        ceiling: float = math.inf,
    ) -> None:
        self._control = control
        self._directory = run_directory
        self._signals = signals
        self._clock = clock
        self._end = _end_of_allocation()
        self._ceiling = ceiling
        self._pace = _Pace()
        self._file_due = 0.0
        self._asked = StopRequest.CONTINUE
        self._done = 0
        self.reads_requests = control.rank == 0
        """Whether this rank looks for requests; one of those that generate must see `stop --now`
        before the step's end."""
        self.reason = ""
        """Why this rank asks to leave, for people."""

    def took(self, *, step: float = 0.0, save: float = 0.0, evaluation: float = 0.0) -> None:
        """Tell how long a step, a save or an evaluation was, in seconds."""
        pace = self._pace
        self._pace = _Pace(
            max(pace.step, step), max(pace.save, save), max(pace.evaluation, evaluation)
        )

    def stop_request(
        self, num_steps_done: int | None = None, num_evaluations: int = 0
    ) -> StopRequest:
        """This rank's own request; cheap, without communication.

        Args:
            num_steps_done: at a step's end; requests that wait for a step are due by it.
            num_evaluations: that are due now and after the next step.
        """
        if num_steps_done is not None:
            self._done = num_steps_done
            self._file_due = 0.0
        if self._signals.stop_request.leaves:
            self.reason = self._signals.reason
        stop_requests = [self._signals.stop_request, self._file_request()]
        if num_steps_done is not None:
            stop_requests.append(self._time_request(num_evaluations))
        return max(stop_requests)

    def agree(self, num_steps_done: int | None = None, num_evaluations: int = 0) -> StopRequest:
        """The strongest request of all ranks; every rank calls it at the same boundary.

        Takes what `stop_request` takes.
        """
        mine = self.stop_request(num_steps_done, num_evaluations)
        agreed = StopRequest(self._control.max(int(mine)))
        if agreed.leaves and not self.reason:
            self.reason = "another rank was asked to stop"
        return agreed

    def agree_to_begin(self) -> StopRequest:
        """Before the first step: whether its start has used up the run's hours."""
        if self._ceiling == math.inf:
            return StopRequest.CONTINUE
        return StopRequest(self._control.max(int(self._ceiling_request(0.0))))

    def honoured(self, stop_request: StopRequest = StopRequest.STOP_NOW) -> None:
        """Requests have been acted on: forget them, so that the next start does not meet them.

        Args:
            stop_request: what was done; a save leaves a stop that waits for its step where it is.
        """
        self._asked = StopRequest.CONTINUE
        if self._control.rank == 0:
            for kind in ("save",) if stop_request is StopRequest.SAVE else KINDS:
                withdraw(self._directory, kind)

    def _time_request(self, num_evaluations: int) -> StopRequest:
        pace = self._pace
        needed = pace.step + pace.save + num_evaluations * pace.evaluation + MARGIN_S
        if (stop_request := self._ceiling_request(needed)).leaves:
            return stop_request
        if self._end - self._clock() > needed:
            return StopRequest.CONTINUE
        self.reason = f"the allocation ends before another step of {self._pace.step:.0f} s would"
        return StopRequest.RESTART

    def _ceiling_request(self, needed_s: float) -> StopRequest:
        if self._ceiling - self._clock() > needed_s:
            return StopRequest.CONTINUE
        self.reason = (
            f"another step of {self._pace.step:.0f} s would pass runtime.max_gpu_hours; set it "
            "higher and start again to go on"
        )
        return StopRequest.STOP

    def _file_request(self) -> StopRequest:
        """The strongest of the requests that are due; few ranks look, and not more often than a
        file system of many users likes."""
        now = self._clock()
        # Ranks may have given up their step for a request that says now: it is taken back too late.
        if self._asked.at_once or not self.reads_requests or now < self._file_due:
            return self._asked
        self._file_due = now + _FILE_EVERY_S
        due = [r for r in read_requests(self._directory) if self._done >= r.after_step]
        self._asked = StopRequest.CONTINUE
        if due:
            strongest = max(due, key=_stop_request_of)
            self._asked = _stop_request_of(strongest)
            self.reason = f"asked to {strongest.kind} by {strongest.by}"
        return self._asked


def _end_of_allocation() -> float:
    """Seconds since the epoch; infinite where no variable says."""
    by_slurm, by_site = (os.environ.get(name, "inf") for name in ("SLURM_JOB_END_TIME", END_TIME))
    try:
        return min(float(by_slurm), float(by_site))
    except ValueError:
        raise ConfigError(
            f"{END_TIME}={by_site}: expected the end of the allocation in seconds since the epoch, "
            'as `date +%s -d "+12 hours"` prints it; set it so, or unset it'
        ) from None


def _stop_request_of(request: Request) -> StopRequest:
    if request.kind == "save":
        return StopRequest.SAVE
    return StopRequest.STOP_NOW if request.now else StopRequest.STOP
