"""What each node does by itself: write to its disks, and keep the time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from verl_hpc.runs.verdict import Verdict, fails, listed, ok
from verl_hpc.runtime.session import Session

_CHUNK = 4 * 2**20
_CHUNKS = 16
_ROUNDS = 5


def check_writing(
    here: Session, hosts: Sequence[str], name: str, directory: Path, floor: float | None
) -> Verdict:
    """One rank of every node writes 64 MiB to stable storage, all at once; all ranks call it.

    Args:
        hosts: name of each node.
        name: what to call the directory.
        floor: GB/s; None only reports.
    """
    here.enter(f"writing to {name}")
    here.control.barrier()
    mine = write_speed(directory, here.world.rank) if here.world.local_rank == 0 else None
    said = here.control.allgather((here.world.node, mine))
    speeds = {hosts[node]: speed for node, speed in said if speed is not None}
    return judge_writing(speeds, name, str(directory), floor)


def write_speed(directory: Path, rank: int) -> float | str:
    """GB/s into a new file, until it is on disk; why not, if it cannot be written."""
    path = directory / f".preflight-{os.uname().nodename}-{rank}"
    chunks = [os.urandom(_CHUNK) for _ in range(2)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        with path.open("wb") as file:
            for index in range(_CHUNKS):
                file.write(chunks[index % 2])
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - start
    except OSError as error:
        return str(error.strerror)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return _CHUNK * _CHUNKS / seconds / 1e9


def judge_writing(
    speeds: dict[str, float | str], name: str, directory: str, floor: float | None
) -> Verdict:
    """Compare speeds by node, in GB/s or the reason why there is none, with the floor."""
    refused = {node: speed for node, speed in speeds.items() if isinstance(speed, str)}
    numbers = {node: speed for node, speed in speeds.items() if not isinstance(speed, str)}
    if refused:
        whys = listed([f"{node}: {why}" for node, why in sorted(refused.items())])
        # All alike are not to blame; the directory is.
        blamed = sorted(refused) if numbers else []
        return fails(name, f"{directory} cannot be written: {whys}", "mount it there", blamed)
    text = f"{directory}: {min(numbers.values()):.2f} to {max(numbers.values()):.2f} GB/s a node"
    if floor is None:
        return ok(name, text)
    slow = sorted(node for node, speed in numbers.items() if speed < floor)
    text += f", at least {floor:g} wanted"
    if not slow:
        return ok(name, text)
    blamed = slow if len(slow) < len(numbers) else []
    return fails(name, f"{text}; slow: {listed(slow)}", "is the file system full or busy?", blamed)


def check_clocks(here: Session, hosts: Sequence[str], most_s: float) -> Verdict:
    """Compare the clocks of all nodes with rank 0's; all ranks call it.

    Ranks read their clocks after a barrier, which they leave within milliseconds of each other.
    The round in which they were closest counts.
    """
    here.enter("clocks")
    skews = [float("inf")] * len(hosts)
    for _ in range(_ROUNDS):
        here.control.barrier()
        times = here.control.allgather(time.time())
        for rank, node in enumerate(here.world.node_of):
            skews[node] = min(skews[node], times[rank] - times[0], key=abs)
    return judge_clocks(dict(zip(hosts, skews, strict=True)), most_s)


def judge_clocks(skews: dict[str, float], most_s: float) -> Verdict:
    """`skews` are seconds ahead of the first node, by node."""
    middle = sorted(skews.values())[len(skews) // 2]
    off = sorted(node for node, skew in skews.items() if abs(skew - middle) > most_s)
    apart = max(skews.values()) - min(skews.values())
    text = f"at most {apart:.3f} s apart, {most_s:g} allowed"
    if not off:
        return ok("clocks", text)
    shown = listed([f"{node} {skews[node] - middle:+.1f} s" for node in off])
    # Of two clocks that differ, either may be right.
    blamed = off if len(skews) > 2 else []
    return fails("clocks", f"{text}; off: {shown}", "tell the administrators", blamed)
