"""The quickstart's task: write a few random letters in reverse order.

`python -m verl_hpc.testing.letters --out DIR --seed N` writes sft.jsonl, rl.jsonl and
evaluation.jsonl, with rows such as {"prompt": "abcde ->", "answer": "edcba"}. There are 3.2e8
problems. Those of evaluation are the same for every seed; no seed has one of them in training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase

from verl_hpc.data.split import is_held_out

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


def write(directory: Path, seed: int) -> None:
    """Write all files.

    Raises:
        FileExistsError: one of them exists.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, num_rows in ROWS.items():
        held_out = name == "evaluation"
        drawn = problems(num_rows, name if held_out else f"{name} {seed}", held_out=held_out)
        with (directory / f"{name}.jsonl").open("x", encoding="ascii") as file:
            for prompt, answer in drawn.items():
                file.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.testing.letters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0, help="of the rows of training")
    arguments = parser.parse_args(argv)
    try:
        write(arguments.out, arguments.seed)
    except FileExistsError as error:
        print(f"{error.filename} exists already; choose another --out", file=sys.stderr)
        return 1
    print(", ".join(f"{arguments.out / name}.jsonl: {rows} rows" for name, rows in ROWS.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
