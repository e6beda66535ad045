"""How long dealing a step's sequences to micro-batches takes; the goal is 50 ms for 4,096.

Every rank does it before each pass over a batch. CPU seconds of this process, collection of garbage
paused as in a run.

usage: python -m benchmarks.micro_batches [--markdown FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from verl_hpc.planner.balance import micro_batches

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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    facts = machine(("verl_hpc",))
    gc.disable()
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
            f"{NUM_SEQUENCES} sequences, a budget of {BUDGET} tokens, {REPEATS} repetitions.",
            markdown_table(header, rows),
        )
    )
    report(text, {"machine": facts, "mixes": record}, arguments.markdown, arguments.json)
    return 0


def _measure(lengths: Sequence[int]) -> dict:
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        dealt = micro_batches(lengths, BUDGET)
        times.append(time.process_time() - begin)
    return {
        "seconds": spread(times),
        "count": len(dealt),
        "least": -(-sum(lengths) // BUDGET),
    }


if __name__ == "__main__":
    sys.exit(main())
