"""Quotas on a directory, as the tools of its file system tell them: Lustre's lfs, else quota(1)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.slurm.programs import run_program

_TIMEOUT_S = 15.0
_KIB = 1024
_NUMBER = re.compile(r"\[?(\d+)\*?\]?")
"""Number of a column: a star marks one over its limit, brackets one that is incomplete."""


@dataclass(frozen=True)
class Quota:
    """What somebody may use of a file system, and does; None is no limit."""

    whose: str
    used_bytes: int
    limit_bytes: int | None
    used_files: int
    limit_files: int | None

    @property
    def free_bytes(self) -> float:
        return _left(self.used_bytes, self.limit_bytes)

    @property
    def free_files(self) -> float:
        return _left(self.used_files, self.limit_files)


def _left(used: int, limit: int | None) -> float:
    return float("inf") if limit is None else max(limit - used, 0)


def read_quotas(directory: Path) -> list[Quota]:
    """The quotas that count in a directory; those without any limit are left out.

    Raises:
        ClusterError: the file system's tool is not here, fails or does not answer.
    """
    kind = _output(["stat", "--file-system", "--format=%T", str(directory)]).strip()
    found = _of_lustre(directory) if kind == "lustre" else _of_others(directory)
    return [q for q in found if (q.limit_bytes, q.limit_files) != (None, None)]


def _of_lustre(directory: Path) -> Iterator[Quota]:
    owners = [(whose, f"-{whose[0]}", number) for whose, number in _owners(directory)]
    project = int(_output(["lfs", "project", "-d", str(directory)]).split()[0])
    if project:
        owners.append(("project", "-p", project))
    for whose, option, number in owners:
        words = ["lfs", "quota", "-q", option, str(number), str(directory)]
        yield from parse_quotas(_output(words), f"{whose} {number}")


def _of_others(directory: Path) -> Iterator[Quota]:
    for whose, number in _owners(directory):
        words = ["quota", f"--{whose}", "--no-wrap", "--raw-grace", f"--filesystem={directory}"]
        # Its status is 1 where a limit is exceeded, too.
        text = _output([*words, str(number)], statuses=(0, 1))
        yield from parse_quotas(text, f"{whose} {number}")


def _owners(directory: Path) -> Iterator[tuple[str, int]]:
    """Who will own files that are made in the directory, as far as this user may ask."""
    yield "user", os.getuid()
    status = directory.stat()
    group = status.st_gid if status.st_mode & stat.S_ISGID else os.getgid()
    if group in {os.getgid(), *os.getgroups()}:
        yield "group", group


def parse_quotas(text: str, whose: str) -> Iterator[Quota]:
    """Rows of `NAME kbytes quota limit grace files quota limit grace`, which both tools print.

    Below a long name, lfs puts the columns on a line of their own.
    """
    for line in text.splitlines():
        columns = line.split()[-8:]
        if len(columns) < 8:
            continue
        numbers = [_NUMBER.fullmatch(columns[index]) for index in (0, 1, 2, 4, 5, 6)]
        if all(numbers):
            used, soft, hard, files, soft_files, hard_files = (int(n[1]) for n in numbers if n)
            limit = (hard or soft) * _KIB or None
            yield Quota(whose, used * _KIB, limit, files, hard_files or soft_files or None)


def _output(words: Sequence[str], statuses: Sequence[int] = (0,)) -> str:
    return run_program(words, _TIMEOUT_S, statuses=statuses)
