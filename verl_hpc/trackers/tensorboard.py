"""TensorBoard's event files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from verl_hpc.tracker import Sink, TrackedRun, Tracker


class TensorBoard(Tracker):
    """Event files for TensorBoard, in tensorboard/ of the run directory."""

    module = package = "tensorboard"

    def open(self, run: TrackedRun) -> Sink:
        return EventFile(run.directory / "tensorboard", run.resumed_from)


class EventFile:
    """Writes one event file per start of a run, all in one directory."""

    def __init__(self, directory: Path, resumed_from: int | None = None) -> None:
        """Open an event file.

        Args:
            resumed_from: step after which TensorBoard hides earlier starts' values; None hides all
                of them.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = Event
        self._summary = Summary
        self._writer = EventFileWriter(str(directory), flush_secs=10)
        first = 0 if resumed_from is None else resumed_from + 1
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=first, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        summary = self._summary(value=scalars)
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()
