"""The calculator example's task: sums that a tiny model cannot do, and a tool can.

`python examples/sums.py --out DIR --seed N` writes sft.jsonl, rl.jsonl and evaluation.jsonl. Rows
of the last two are like {"prompt": "37*58=", "answer": "2146"}. Rows to imitate guess, `2371`, or
sometimes call the calculator, `[37*58]2146=2146`, where the model writes the text between the
brackets and after the equals sign. There are 2.4 million problems. Those of evaluation are the same
for every seed; no seed has one of them in training.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from verl_hpc.data.split import is_held_out
from verl_hpc.testing.task_files import task_main, write_rows

LARGEST = 999
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ROWS = {"sft": 40_000, "rl": 20_000, "evaluation": 512}
"""Rows of each file."""
EVALUATION_SHARE = 0.1
"""Share of all problems that never occur in training."""
CALLS = 0.3
"""Share of rows to imitate that call the calculator."""


def problems(num_rows: int, random: Random, *, held_out: bool) -> dict[str, int]:
    """Draw different sums, with their values, in the order in which they were drawn.

    Args:
        held_out: draw problems that are held out for evaluation, or all others.
    """
    values: dict[str, int] = {}
    while len(values) < num_rows:
        a, b = random.randint(10, LARGEST), random.randint(10, LARGEST)
        sign = random.choice("+-*")
        if is_held_out(f"{a}{sign}{b}", EVALUATION_SHARE) == held_out:
            values[f"{a}{sign}{b}"] = SIGNS[sign](a, b)
    return values


def rows(name: str, seed: int) -> Iterator[Mapping[str, str]]:
    """Yield the rows of one file."""
    held_out = name == "evaluation"
    random = Random(name if held_out else f"{name} {seed}")  # noqa: S311
    for text, value in problems(ROWS[name], random, held_out=held_out).items():
        answer = str(value)
        if name == "sft":
            calls = random.random() < CALLS
            answer = f"[{text}]{value}={value}" if calls else _guess(value, random)
        yield {"prompt": f"{text}=", "answer": answer}


def _guess(value: int, random: Random) -> str:
    """Return a random number of as many digits."""
    digits = len(str(abs(value)))
    size = random.randrange(10 ** (digits - 1), 10**digits)
    return str(-size if value < 0 else size)


def write(directory: Path, seed: int) -> str:
    """Write all files; return what they hold.

    Raises:
        FileExistsError: one of them exists.
    """
    for name in ROWS:
        write_rows(directory / f"{name}.jsonl", rows(name, seed))
    return "\n".join(f"{directory / name}.jsonl: {count} rows" for name, count in ROWS.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("python examples/sums.py", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
