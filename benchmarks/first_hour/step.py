"""What a step is, and what it is told of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Here:
    """One use of the steps."""

    out: Path
    """Directory of records, logs and the page."""
    rehearse: bool
    """Tiny shapes on the CPU."""
    wheels: Path | None = None
    """Directory of packages, for a machine without a network."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the step `environment` has written."""

    def has(self, package: str) -> bool:
        """Whether a package is installed, by its name on the index."""
        return package in self.facts.get("packages", {})

    @property
    def transformer_engine(self) -> Path | None:
        """Where the step `te_build` has installed Transformer Engine."""
        built = self.out / "te"
        return built if (built / "imports").exists() else None


def nothing(here: Here) -> None:
    """A step that lacks nothing."""
    del here


def no_variables(here: Here) -> Mapping[str, str]:
    """A step without variables of its own."""
    del here
    return {}


@dataclass(frozen=True)
class Step:
    """A command that proves something, in a time of its own."""

    name: str
    claim: str
    """What it proves if it succeeds."""
    limit_s: float
    words: Callable[[Here], Sequence[str]]
    """Command line; it may write `{name}.result.json` and `{name}.result.md` into `out`."""
    lacks: Callable[[Here], str | None] = nothing
    """Why it cannot be run here."""
    variables: Callable[[Here], Mapping[str, str]] = no_variables
    """Added to its environment."""
    always: bool = False
    """Whether it is run also if it is done: the machine may be another."""
    in_background: bool = False
    after: str | None = None
    """A step in the background that must have ended before."""
