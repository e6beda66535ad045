"""Where every rank of a run is: stacks of all ranks, those that hold up the others first.

Ranks in the same place are shown once. Ranks write their stacks themselves at a signal, and the run
continues. Ranks on other nodes are reached by a short step of their job (srun --overlap). RUN is
a run directory or the name of one below runs/; without it, the run last at work. The exit status
is 1 if no rank could be reached.

examples:
  python -m verl_hpc hang
  python -m verl_hpc hang ppo_lab --full
  python -m verl_hpc hang ppo_lab --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from verl_hpc.config.spans import spans
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.metrics.text import duration
from verl_hpc.runs.find import find_run, newest_run, no_runs_yet
from verl_hpc.runs.queue import Answer
from verl_hpc.runs.ranks import Ranks, last_wrote, read_ranks
from verl_hpc.runs.stacks.stack import Frame, Stack, group
from verl_hpc.runs.stacks.take import gather_stacks
from verl_hpc.runs.status import conclude, look
from verl_hpc.runs.verdict import counted

_MOST_CALLS = 12
_MOST_LATE = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="run directory or name (default: the last at work)")
    add("--full", action="store_true", help="all calls of all threads")
    add("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace) -> int:
    directory = find_run(arguments.run) if arguments.run else newest_run()
    if directory is None:
        raise ConfigError(no_runs_yet())
    ranks = ranks_under_way(directory, "look at")
    stacks = gather_stacks(directory, ranks)
    now = time.time()
    if arguments.json:
        print(as_json(directory, ranks, stacks, now))
    else:
        print(as_text(directory, ranks, stacks, now, full=arguments.full))
    return 0 if any(stack.threads for stack in stacks) else 1


def ranks_under_way(directory: Path, action: str) -> Ranks:
    """Return the ranks of a run that has not ended.

    Args:
        directory: run directory.
        action: what the caller wants to do with a rank, for the message.

    Raises:
        ClusterError: the run is over, or has no ranks.json yet.
    """
    state = conclude(look(directory, time.time()), Answer())
    if state.is_over:
        detail = f": {state.detail}" if state.detail else ""
        raise ClusterError(
            f"{directory} is not under way ({state.name}{detail}): no rank to {action}"
        )
    ranks = read_ranks(directory)
    if ranks is None:
        raise ClusterError(
            f"{directory} has no ranks.json: its ranks have not found each other yet, or rank 0 "
            f"cannot write there; `python -m verl_hpc logs {directory} -f` shows what they say"
        )
    return ranks


def as_text(
    run: Path, ranks: Ranks, stacks: Sequence[Stack], now: float, *, full: bool = False
) -> str:
    """Return the late ranks, and each group of ranks with its calls, as lines.

    Args:
        run: run directory.
        ranks: content of ranks.json from before the stacks were taken.
        stacks: one per rank.
        now: seconds since the epoch.
        full: show all calls of all threads.
    """
    lines = [f"{run}: {_size(ranks)}, as of {duration(max(now - ranks.time, 0.0))} ago"]
    lines += _silence(ranks, now)
    lines += _late(ranks, now)
    for stacks_of_group in group(stacks, [late.rank for late in ranks.late]):
        lines += ["", *_group(stacks_of_group, ranks, now, full)]
    return "\n".join(lines)


def as_json(run: Path, ranks: Ranks, stacks: Sequence[Stack], now: float) -> str:
    """Return the ranks with their stacks as JSON; times are in seconds.

    A rank's `operator` is the one that it published `told_s` seconds before.
    """
    late = {progress.rank for progress in ranks.late}
    by_rank = {progress.rank: progress for progress in ranks.ranks}
    tree = {
        "run": str(run),
        "age_s": round(now - ranks.time, 1),
        "ranks": [
            {
                "rank": s.rank,
                "host": s.host,
                "pid": s.pid,
                "late": s.rank in late,
                "operator": by_rank[s.rank].operator,
                "seconds": by_rank[s.rank].seconds,
                "told_s": round(ranks.age_s(by_rank[s.rank], now), 1),
                "waits": s.waits,
                "problem": s.problem,
                "threads": [
                    {"name": t.name, "calls": [[f.function, f.file, f.line] for f in t.frames]}
                    for t in s.threads
                ],
            }
            for s in stacks
        ],
    }
    return json.dumps(tree, indent=1)


def _size(ranks: Ranks) -> str:
    nodes = len({progress.host for progress in ranks.ranks})
    return f"{counted(len(ranks.ranks), 'rank')} on {counted(nodes, 'node')}"


def _silence(ranks: Ranks, now: float) -> Iterator[str]:
    """Yield lines about ranks whose watchdog thread does not run, because something holds Python's
    lock or they are gone."""
    if now - ranks.time > ranks.patience_s:
        yield (
            f"operators below are those of {duration(now - ranks.time)} ago, when rank 0 last "
            "heard from all ranks; stacks are of now"
        )
    silent = [progress.rank for progress in ranks.ranks if progress.silent_s > ranks.patience_s]
    if silent:
        yield f"silent, no Python code runs in them: {_named(silent)}"


def _late(ranks: Ranks, now: float) -> Iterator[str]:
    late = ranks.late
    if not late:
        yield "no rank is late: all are equally far, or none for long enough"
        return
    for progress in late[:_MOST_LATE]:
        age = ranks.age_s(progress, now)
        if age > ranks.patience_s:
            where = f"which {last_wrote([repr(progress.operator)], duration(age))}"
        else:
            where = f"in {progress.operator!r} for {duration(progress.seconds)}"
        yield f"late: rank {progress.rank} on {progress.host}, {where}"
    if len(late) > _MOST_LATE:
        yield f"late: {len(late) - _MOST_LATE} more"


def _where(stacks: Sequence[Stack], ranks: Ranks, now: float) -> str:
    """Return the operators of ranks, as last published if some are not live and may have
    advanced."""
    by_rank = {progress.rank: progress for progress in ranks.ranks}
    told = [by_rank[stack.rank] for stack in stacks]
    operators = [progress.operator for progress in told]
    oldest = max(ranks.age_s(progress, now) for progress in told)
    if oldest <= ranks.patience_s and all(stack.is_live for stack in stacks):
        return f"in {', '.join(sorted(set(operators)))}"
    return last_wrote(operators, duration(oldest))


def _group(stacks: Sequence[Stack], ranks: Ranks, now: float, full: bool) -> Iterator[str]:
    first = stacks[0]
    waits = ", waiting for other ranks" if first.waits else ""
    place = f" on {first.host}" if len(stacks) == 1 else ""
    yield f"{_named([s.rank for s in stacks])}{place}: {_where(stacks, ranks, now)}{waits}"
    for problem in dict.fromkeys(stack.problem for stack in stacks if stack.problem):
        yield f"  ({problem})"
    for index, thread in enumerate(first.threads):
        if index and not full:
            break
        if index or full:
            yield f"  {thread.name} of rank {first.rank}"
        yield from _calls(thread.frames, full)


def _calls(frames: Sequence[Frame], full: bool) -> Iterator[str]:
    most = len(frames) if full else _MOST_CALLS
    width = max((len(frame.function) for frame in frames[:most]), default=0)
    for frame in frames[:most]:
        yield f"    {frame.function:<{width}}  {frame.file}:{frame.line}"
    if len(frames) > most:
        yield f"    ... and {len(frames) - most} outer calls; --full shows them"


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks)}"
