"""Act as an ordinary user in a process started as root, except where a lab needs root.

Slurm's slurmd and slurmctld start as root; submitters need not be root. A process that keeps root
as its saved user can become root again, but programs that it starts cannot, after `exec`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def may_be_root() -> bool:
    """Whether `as_root` makes this process root."""
    return os.geteuid() == 0 or os.getresuid()[2] == 0


def act_as(user: int, group: int) -> None:
    """Make this process, which is root, an ordinary user's; `as_root` goes back.

    Args:
        user: number of the user.
        group: number of the only group that the process keeps.
    """
    os.setgroups([])
    os.setresgid(group, group, 0)
    os.setresuid(user, user, 0)


@contextmanager
def as_root() -> Iterator[None]:
    """Be root for the block and the programs it starts, if `may_be_root`; this affects all
    threads."""
    users, groups = os.getresuid(), os.getresgid()
    if users[2] == 0:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
    try:
        yield
    finally:
        os.setresgid(*groups)
        os.setresuid(*users)
