"""Read the answers that a run's evaluations have saved (evaluation.save_generations).

Without --step, those of the newest evaluation; a line at the top says which steps there are.
RUN is a run directory, or the name of one below runs/.

examples:
  python -m verl_hpc generations aime_run
  python -m verl_hpc generations aime_run --step 40 --set aime24 --wrong
  python -m verl_hpc generations aime_run --row 17 --all
  python -m verl_hpc generations aime_run --right --all --json | jq .response
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from verl_hpc.errors import ConfigError
from verl_hpc.metrics.generations import Generation, generation_steps, line_of, read_generations
from verl_hpc.metrics.names import RIGHT
from verl_hpc.metrics.text import number, visible
from verl_hpc.runs.find import find_run

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, or its name below runs/")
    add("--step", type=int, metavar="N", help="of the evaluation (default: the newest)")
    add("--set", metavar="NAME", help="only answers to this set")
    add("--row", type=int, metavar="N", help="only answers to this row")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--right", action="store_true", help="only answers that score 1 or more")
    which.add_argument("--wrong", action="store_true", help="only answers that score less")
    add("--all", action="store_true", help=f"more than the first {_SHOWN}")
    add("--json", action="store_true", help="one JSON object a line, as in the file")


def run(arguments: argparse.Namespace) -> int:
    directory = find_run(arguments.run)
    step = _step(directory, arguments.step)
    answers = _wanted(directory, step, arguments)
    if arguments.json:
        for generation in answers if arguments.all else islice(answers, _SHOWN):
            print(line_of(generation), end="")
    else:
        _print(directory, step, answers, None if arguments.all else _SHOWN)
    return 0


def _step(directory: Path, asked: int | None) -> int:
    steps = generation_steps(directory)
    if not steps:
        raise ConfigError(
            f"{directory}: no evaluation has saved answers; set evaluation.save_generations: true"
        )
    if asked is not None and asked not in steps:
        raise ConfigError(f"--step {asked}: there are answers of {_few(steps)}; choose one")
    return steps[-1] if asked is None else asked


def _few(steps: list[int]) -> str:
    shown = [str(step) for step in steps]
    if len(shown) > 12:
        shown = [*shown[:6], "...", *shown[-5:]]
    return f"step{'s' * (len(steps) > 1)} {', '.join(shown)}"


def _wanted(directory: Path, step: int, arguments: argparse.Namespace) -> Iterator[Generation]:
    sets: dict[str, None] = {}
    chosen = 0
    for generation in read_generations(directory, step):
        sets[generation.set] = None
        right = generation.score >= RIGHT
        if (
            arguments.set in (None, generation.set)
            and arguments.row in (None, generation.row)
            and not (arguments.right and not right)
            and not (arguments.wrong and right)
        ):
            chosen += 1
            yield generation
    if not chosen and arguments.set is not None and arguments.set not in sets:
        raise ConfigError(f"--set {arguments.set}: step {step} has {', '.join(sets)}; choose one")


def _print(directory: Path, step: int, answers: Iterator[Generation], limit: int | None) -> None:
    print(f"{directory}: answers of step {step}; there are {_few(generation_steps(directory))}")
    count = 0
    for count, generation in enumerate(answers, 1):
        if limit is None or count <= limit:
            _print_one(generation)
    if not count:
        print("\nno answer is like that")
    elif limit is not None and count > limit:
        print(f"\n{count - limit:,} more; --all shows them")


def _print_one(generation: Generation) -> None:
    figures = {"score": generation.score, **generation.extra}
    words = [
        f"{visible(generation.set)} row {generation.row}, answer {generation.sample}",
        *(f"{visible(name)} {number(value)}" for name, value in figures.items()),
        f"{generation.num_tokens} tokens{_end(generation)}",
    ]
    print(f"\n== {'; '.join(words)}")
    print(f"-- prompt\n{visible(generation.prompt)}")
    print(f"-- ground truth\n{visible(generation.ground_truth)}")
    print(f"-- answer\n{visible(generation.response)}")


def _end(generation: Generation) -> str:
    if generation.truncated:
        return ", cut"
    return f", ended by {visible(generation.stop_reason)}" if generation.stop_reason else ""
