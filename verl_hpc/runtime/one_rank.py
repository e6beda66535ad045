"""A job of one process, without MPI: its control plane, and a session that nothing watches."""

from __future__ import annotations

import socket
from typing import Any, cast

from verl_hpc.runtime.channel import Messages, Pending
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.session import Session
from verl_hpc.runtime.world import World


class LocalChannel:
    """A channel of one rank."""

    rank, size = 0, 1

    def split(self, group: int) -> LocalChannel:
        del group
        return LocalChannel()

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        assert not sends and not receives, "there is nobody else"
        return lambda: True


class LocalControl(Control):
    """The control plane of one rank, without MPI."""

    def __init__(self) -> None:
        super().__init__(LocalChannel())


class _Quiet:
    """Watches and reports nothing."""

    def enter(self, operator: str) -> None:
        del operator


def local_session(control: Control | None = None, device: str = "cpu") -> Session:
    """A rank that nothing watches.

    Args:
        control: of all ranks; this one alone if None.
        device: of its tensors, as `World.device`.
    """
    control = control or LocalControl()
    rank, size = control.rank, control.size
    world = World(rank, size, rank, size, 0, (0,) * size, socket.gethostname(), device)
    watchdog, reporter, job = (cast(Any, _Quiet()) for _ in range(3))
    return Session(world, control, watchdog, reporter, job)
