"""The quickstart's task: write a few random letters in reverse order.

`python -m verl_hpc.testing.letters --out DIR --seed N` writes sft.jsonl, rl.jsonl and
evaluation.jsonl, with rows such as {"prompt": "abcde ->", "answer": "edcba"}. There are 3.2e8
problems. Those of evaluation are the same for every seed; no seed has one of them in training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase

from verl_hpc.data.split import is_held_out
from verl_hpc.testing.task_files import task_main, write_files

FEWEST, MOST = 4, 6
"""Least and most letters of a problem; all lengths are equally likely."""
ROWS = {"sft": 40_000, "rl": 20_000, "evaluation": 512}
"""Rows of each file."""
EVALUATION_SHARE = 0.1
"""Share of all problems that never occur in training."""


def rows(num_rows: int, seed: str, *, held_out: bool) -> Iterator[dict[str, str]]:
    """Draw rows with different prompts.

    Args:
        held_out: draw problems that are held out for evaluation, or all others.
    """
    random = Random(seed)  # noqa: S311
    prompts: set[str] = set()
    while len(prompts) < num_rows:
        letters = "".join(random.choices(ascii_lowercase, k=random.randint(FEWEST, MOST)))
        prompt = f"{letters} ->"
        if prompt not in prompts and is_held_out(prompt, EVALUATION_SHARE) == held_out:
            prompts.add(prompt)
            yield {"prompt": prompt, "answer": letters[::-1]}


def write(directory: Path, seed: int) -> str:
    """Write all files; see `write_files`."""
    return write_files(directory, seed, ROWS, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("python -m verl_hpc.testing.letters", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
