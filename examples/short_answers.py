"""Two tasks with short answers, of which a small instruct model can do a part.

`python examples/short_answers.py --out DIR --seed N` writes, below DIR/sums and DIR/left,
train.jsonl and evaluation.jsonl. Rows are like {"prompt": "What is 17 + 5? ...", "answer": "22"},
and {"prompt": "Sam has 11 coins and gives away 4. ...", "answer": "7"}. The 500 rows of an
evaluation are the same for every seed; no seed has one of their prompts in training.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from verl_hpc.data.split import is_held_out
from verl_hpc.rewards.functions.gsm8k import compute_score
from verl_hpc.testing.task_files import task_main, write_files

LARGEST = 30
NAMES = ("Ann", "Ben", "Eva", "Joe", "Kim", "Leo", "Mia", "Sam")
THINGS = ("apples", "balls", "books", "coins", "eggs", "keys", "pens", "shells")
ROWS = {"train": 800, "evaluation": 500}
"""Rows of each file."""
EVALUATION_SHARE = 0.4
"""Share of all problems that never occur in training."""


def sums(random: Random) -> tuple[str, int]:
    """Draw one of 1,457 sums and differences, and its value."""
    a, b = random.randint(0, LARGEST), random.randint(0, LARGEST)
    if random.random() < 0.5:
        return f"What is {a} + {b}?", a + b
    a, b = max(a, b), min(a, b)
    return f"What is {a} - {b}?", a - b


def left(random: Random) -> tuple[str, int]:
    """Draw a story of what is left when something is given away, and the number that is left."""
    name, things = random.choice(NAMES), random.choice(THINGS)
    given, kept = random.randint(2, 12), random.randint(2, 12)
    story = f"{name} has {given + kept} {things} and gives away {given}."
    return f"{story} How many {things} are left?", kept


TASKS: Mapping[str, Callable[[Random], tuple[str, int]]] = {"sums": sums, "left": left}


def rows(task: str, num_rows: int, seed: str, *, held_out: bool) -> Iterator[dict[str, str]]:
    """Draw rows with different prompts.

    Args:
        held_out: draw problems that are held out for evaluation, or all others.
    """
    random = Random(seed)  # noqa: S311
    drawn: set[str] = set()
    while len(drawn) < num_rows:
        question, value = TASKS[task](random)
        if question not in drawn and is_held_out(question, EVALUATION_SHARE) == held_out:
            drawn.add(question)
            prompt = f"{question} Answer with the number alone."
            yield {"prompt": prompt, "answer": str(value)}


def shuffled(solution_strs: Sequence[str], ground_truths: Sequence[str]) -> list[float]:
    """Give each response the score of another one, as a control in which nothing can be learned.

    The scores are those of the reward function `gsm8k`, so that their mean is the same.
    """
    pairs = zip(solution_strs, ground_truths, strict=True)
    scores = [compute_score(text, truth, "flexible") for text, truth in pairs]
    Random(" ".join(solution_strs)).shuffle(scores)  # noqa: S311
    return scores


def write(directory: Path, seed: int) -> str:
    """Write the files of both tasks; see `write_files`."""

    def drawn(task: str) -> Callable[..., Iterator[dict[str, str]]]:
        return lambda *arguments, **held_out: rows(task, *arguments, **held_out)

    return "\n".join(write_files(directory / task, seed, ROWS, drawn(task)) for task in TASKS)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    return task_main("python examples/short_answers.py", __doc__, write, argv)


if __name__ == "__main__":
    sys.exit(main())
