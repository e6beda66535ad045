"""How long dealing a step's sequences to ranks and to micro-batches takes.

The goals: 8,192 lengths to 64 ranks in 20 ms with the largest at most 1.0002 of the mean, 32,768 to
512 in 0.2 s, 4,096 to micro-batches in 50 ms. Every rank deals before each pass over a batch. CPU
seconds of this process, collection of garbage paused as in a run.

usage: python -m benchmarks.micro_batches [--markdown FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import karmarkar_karp as rival
from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from verl_hpc.placement.balance import balance, micro_batches

NUM_SEQUENCES = 4096
BUDGET = 16384
REPEATS = 15
DICE = random.Random(0)


def _uniform(low: int, high: int) -> list[int]:
    return [DICE.randint(low, high) for _ in range(NUM_SEQUENCES)]


MIXES: Mapping[str, Sequence[int]] = {
    "lognormal, mean 900, at most 8192": [
        min(int(DICE.lognormvariate(6.5, 0.8)) + 1, 8192) for _ in range(NUM_SEQUENCES)
    ],
    "1 to 3000": _uniform(1, 3000),
    "1 to the budget": _uniform(1, BUDGET),
    "all just above half the budget": [BUDGET // 2 + 1] * NUM_SEQUENCES,
    "all just above a third": [BUDGET // 3 + 1] * NUM_SEQUENCES,
    "all just above a quarter": [BUDGET // 4 + 1] * NUM_SEQUENCES,
    "about a third: 4000 to 7000": _uniform(4000, 7000),
    "about a third: 5000 to 6000": _uniform(5000, 6000),
    "about a quarter: 2500 to 5000": _uniform(2500, 5000),
    "one giant, the rest ones": [10**6] + [1] * (NUM_SEQUENCES - 1),
    "all ones": [1] * NUM_SEQUENCES,
}


RESPONSES = [min(int(DICE.lognormvariate(6.5, 0.8)) + 1, 8192) for _ in range(32768)]
"""Lengths for the goals."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    facts = machine(("verl_hpc",))
    gc.disable()
    goals = _goals()
    record = {name: _measure(lengths) for name, lengths in MIXES.items()}
    rows = [
        (name, f"{1000 * r['seconds']['median']:.1f}", f"{1000 * r['seconds']['min']:.1f}",
         f"{1000 * r['seconds']['max']:.1f}", r["count"], r["least"])
        for name, r in record.items()
    ]  # fmt: skip
    header = ("lengths", "median ms", "min", "max", "micro-batches", "tokens / budget")
    text = "\n\n".join(
        (
            "`python -m benchmarks.micro_batches`",
            machine_markdown(facts),
            _goals_table(goals),
            f"{NUM_SEQUENCES} sequences, a budget of {BUDGET} tokens, {REPEATS} repetitions.",
            markdown_table(header, rows),
        )
    )
    report(
        text,
        {"machine": facts, "goals": goals, "mixes": record},
        arguments.markdown,
        arguments.json,
    )
    return 0


def _measure(lengths: Sequence[int]) -> dict:
    times, dealt = _timed(lambda: micro_batches(lengths, BUDGET))
    return {"seconds": spread(times), "count": len(dealt), "least": -(-sum(lengths) // BUDGET)}


def _goals() -> dict[str, dict[str, Any]]:
    """Of each goal: ours, and the rival's on the same lengths."""
    few, many, batch = RESPONSES[:8192], RESPONSES, RESPONSES[:NUM_SEQUENCES]
    ranks, packed = (balance, rival.karmarkar_karp), (micro_batches, rival.micro_batches)
    found = {}
    for name, lengths, bins, (ours, rivals) in (
        ("8,192 to 64 ranks", few, 64, ranks),
        ("32,768 to 512 ranks", many, 512, ranks),
        ("4,096 to micro-batches", batch, BUDGET, packed),
    ):
        times, dealt = _timed(partial(ours, lengths, bins))
        others, rivals_dealt = _timed(partial(rivals, lengths, bins), repeats=1)
        found[name] = {
            "seconds": spread(times),
            "imbalance": _imbalance(lengths, dealt),
            "rival_seconds": others[0],
            "rival_imbalance": _imbalance(lengths, rivals_dealt),
        }
    return found


def _timed(work: Callable[[], list[list[int]]], repeats: int = REPEATS) -> tuple[list[float], Any]:
    times, dealt = [], None
    for _ in range(repeats):
        begin = time.process_time()
        dealt = work()
        times.append(time.process_time() - begin)
    return times, dealt


def _imbalance(lengths: Sequence[int], dealt: Sequence[Sequence[int]]) -> float:
    """Largest sum by mean sum."""
    sums = [sum(lengths[i] for i in part) for part in dealt]
    return max(sums) * len(sums) / sum(sums)


def _goals_table(goals: Mapping[str, Mapping[str, Any]]) -> str:
    header = ("lengths", "median ms", "max", "largest / mean", "verl's way, ms", "its", "ratio")
    rows = [
        (
            name,
            *(f"{1000 * g['seconds'][of]:.1f}" for of in ("median", "max")),
            *(f"{g['imbalance']:.6f}", f"{1000 * g['rival_seconds']:.0f}"),
            *(f"{g['rival_imbalance']:.6f}", f"{g['rival_seconds'] / g['seconds']['median']:.0f}"),
        )
        for name, g in goals.items()
    ]
    return markdown_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
