"""Facts of a process of this machine, from /proc."""

from __future__ import annotations

from pathlib import Path


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's /proc/PID/stat from its state on: field 3 of proc(5) is the
    first.

    Raises:
        OSError: there is no such process.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # They follow the name, in parentheses, which may hold anything.
    return text.rpartition(")")[2].split()
