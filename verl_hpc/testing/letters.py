"""The quickstart's task: write a few random letters in reverse order.

`python -m verl_hpc.testing.letters --out DIR --seed N` writes sft.jsonl, rl.jsonl and
evaluation.jsonl, with rows such as {"prompt": "abcde ->", "answer": "edcba"}. There are 3.2e8
problems. Those of evaluation are the same for every seed; no seed has one of them in training.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase

from verl_hpc.data.split import is_held_out
from verl_hpc.testing.task_files import task_main, write_rows

FEWEST, MOST = 4, 6
"""Least and most letters of a problem; all lengths are equally likely."""
ROWS = {"sft": 40_000, "rl": 20_000, "evaluation": 512}
"""Rows of each file."""
EVALUATION_SHARE = 0.1
"""Share of all problems that never occur in training."""


def problems(num_rows: int, seed: str, *, held_out: bool) -> dict[str, str]:
    """Draw different prompts, with their answers, in the order in which they were drawn.

    Args:
        held_out: draw problems that are held out for evaluation, or all others.
    """
    random = Random(seed)  # noqa: S311
    answers: dict[str, str] = {}
    while len(answers) < num_rows:
        letters = "".join(random.choices(ascii_lowercase, k=random.randint(FEWEST, MOST)))
        prompt = f"{letters} ->"
        if is_held_out(prompt, EVALUATION_SHARE) == held_out:
            answers[prompt] = letters[::-1]
    return answers


def write(directory: Path, seed: int) -> str:
    """Write all files; return what they hold.

    Raises:
        FileExistsError: one of them exists.
    """
    for name, num_rows in ROWS.items():
        held_out = name == "evaluation"
        drawn = problems(num_rows, name if held_out else f"{name} {seed}", held_out=held_out)
        rows = ({"prompt": prompt, "answer": answer} for prompt, answer in drawn.items())
        write_rows(directory / f"{name}.jsonl", rows)
    return ", ".join(f"{directory / name}.jsonl: {rows} rows" for name, rows in ROWS.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("python -m verl_hpc.testing.letters", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
