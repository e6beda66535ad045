"""Errors a user can meet.

Every message names the field or file, the value found, what is allowed, and what to do next.
Broken invariants of our own code are `assert`s, never one of these.
"""

from __future__ import annotations

from typing import TypeVar

_LONGEST = 4000
"""Characters of a message; what a file or a user's code puts into one has no bounds."""


class VerlHpcError(Exception):
    """Base of every error that verl_hpc raises for its users."""

    agreed = False
    """True once every rank of the job has raised the same error: no rank waits for another."""
    elsewhere = False
    """True where another rank met it: this one's calls tell nothing about it."""

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST - 500]} ... ({len(text)} characters) ... {text[-300:]}"


_Error = TypeVar("_Error", bound=VerlHpcError)


def agreed(error: _Error) -> _Error:
    """Mark an error that every rank is about to raise alike."""
    error.agreed = True
    return error


class ConfigError(VerlHpcError):
    """A setting, or a combination of settings, that cannot be honoured."""


class InUseError(ConfigError):
    """Another process holds the run directory."""


class LayoutError(VerlHpcError):
    """A model, or a pair of layouts, that cannot be sharded or resharded as asked."""


class ModelError(VerlHpcError):
    """A model directory that is missing, incomplete, or of a family that is not mapped."""


class DataError(VerlHpcError):
    """A data set that is missing, empty, or malformed."""


class RewardError(VerlHpcError):
    """A reward function that cannot be found, raised, or returned a non-number."""


class ScoreNotFiniteError(RewardError):
    """A reward function returned NaN or infinity."""


class SandboxError(VerlHpcError):
    """A program could not be run in its sandbox, which says nothing about the program."""


class EnvironmentStepError(VerlHpcError):
    """A step of an environment failed, and rollout.environment.on_error is stop."""


class FlowError(VerlHpcError):
    """A data flow that does not hang together: unknown inputs, cycles, duplicate names."""


class ClusterError(VerlHpcError):
    """The machine does not match the job: ranks, nodes or GPUs are not what was asked for."""


class LaunchError(VerlHpcError):
    """The processes started, but do not form one MPI world."""


class TransferError(VerlHpcError):
    """Bytes arrived that are not the bytes that were sent, or a peer is gone."""


class CheckpointError(VerlHpcError):
    """A step could not be written, or what is on disk cannot be trusted."""


class DamageError(CheckpointError):
    """What is on disk is not what was written; the step before it may be whole."""


class TrainingError(VerlHpcError):
    """Training cannot continue: a loss or gradient is not finite, or new weights did not take."""


class NotFiniteError(TrainingError):
    """A logit, loss or gradient is NaN or infinite; the weights are as they were."""
