"""The kernel's limits of ranks, as they stand after they were raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verl_hpc.runs.verdict import Verdict, fails, listed, ok
from verl_hpc.runtime.device import gpu_bytes
from verl_hpc.runtime.limits import PAGE, limit_of, trouble
from verl_hpc.runtime.session import Session

_FEWEST_FILES = 4096
"""Sockets and files of a rank in a world of some hundred."""


def check_limits(here: Session, hosts: Sequence[str], wanted: int | None) -> Verdict:
    """The limits of one rank of each node, as a run judges them; all ranks call it.

    Args:
        hosts: name of each node.
        wanted: GPUs that a node should have; limits may be why its ranks have none.
    """
    mine = None
    if here.world.local_rank == 0:
        why = None
        if wanted or here.world.device != "cpu":
            with_infiniband = here.infiniband is not None
            why = trouble(with_infiniband=with_infiniband, gpu_bytes=gpu_bytes())
        mine = (limit_of("NOFILE"), limit_of("MEMLOCK"), why)
    said = here.control.allgather((here.world.node, mine))
    return judge_limits({hosts[node]: answer for node, answer in said if answer is not None})


def judge_limits(by_node: Mapping[str, tuple[float, float, str | None]]) -> Verdict:
    """Judge open files, bytes of locked memory and what is in the way of GPUs, by node."""
    troubles = [f"{node}: {why}" for node, (_, _, why) in sorted(by_node.items()) if why]
    if troubles:
        return fails("limits", listed(troubles, 4), f"see {PAGE}")
    files = min(files for files, _, _ in by_node.values())
    locked = min(locked for _, locked, _ in by_node.values())
    text = f"{files:.0f} open files, {_bytes(locked)} locked memory"
    if files < _FEWEST_FILES:
        return fails("limits", text, f"ask for a hard limit of {_FEWEST_FILES} open files or more")
    return ok("limits", text)


def _bytes(number: float) -> str:
    return "any" if number == float("inf") else f"{number / 2**20:.0f} MiB of"
