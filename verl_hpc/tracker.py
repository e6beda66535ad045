"""What a tracker is: a section of `metrics`, the package that it needs, and the sink that it opens.

A file of `verl_hpc.trackers` adds its class by being there; the file's name is that of the section.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from verl_hpc.section import Section

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$", max_length=128)]
"""Name of a project or a job: letters, digits, space, '.', '_' and '-'."""


class Sink(Protocol):
    """A destination of a run's metrics besides metrics.jsonl. Values may be NaN or infinite.

    It may also have `stage(name)`, which is called when an operator begins, many times a second,
    and `rewards(values, task)`, which gets the scores of all responses of a step, or of a task in
    it, before its `write`.
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a finished step."""

    def close(self) -> None:
        """Release all resources; no call follows."""


@dataclass(frozen=True)
class TrackedRun:
    """The run, as trackers see it."""

    directory: Path
    """The run directory, whose name is the run's."""
    resumed_from: int | None = None
    """Step of the checkpoint that training resumes from."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the whole run, to keep with its metrics."""


class Tracker(Section):
    """Settings of a tracker. One without fields is switched on by `true`."""

    module: ClassVar[str]
    """Module that `open` imports; this file must not, because login nodes read settings."""
    package: ClassVar[str]
    """Package to install."""

    def open(self, run: TrackedRun) -> Sink:
        """Begin to track a start of the run. Belongs to rank 0.

        Raises:
            ImportError: the package, or one that it needs, is not installed.
        """
        raise NotImplementedError


class OfflineRun:
    """A sink that logs to an offline run of its own package.

    Args:
        run: object with `log(values, step=...)` and `finish()`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def set_defaults(**variables: str) -> None:
    """Set variables of the environment that are not set, before a package reads them."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
