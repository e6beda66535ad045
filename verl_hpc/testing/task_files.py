"""Write the files of an example's task: the command line that these programs share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as JSON, one a line, into a new file.

    Raises:
        FileExistsError: it exists.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="ascii") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_files(
    directory: Path,
    seed: int,
    num_rows: Mapping[str, int],
    draw: Callable[..., Iterable[Mapping[str, object]]],
    phrases: Sequence[str] = (),
) -> str:
    """Write the files of a task by their names; return what they hold.

    Args:
        directory: where the files go.
        seed: seed of the training files; those of evaluation are the same for every seed.
        num_rows: rows of each file.
        draw: makes rows from their number, the text of a seed, and whether they are held out.
        phrases: texts for phrases.json, for `verl_hpc.testing.tiny --phrases`, if there are any.

    Raises:
        FileExistsError: one of them exists.
    """
    for name, count in num_rows.items():
        held_out = name == "evaluation"
        drawn = draw(count, name if held_out else f"{name} {seed}", held_out=held_out)
        write_rows(directory / f"{name}.jsonl", drawn)
    if phrases:
        (directory / "phrases.json").write_text(json.dumps(phrases))
    return ", ".join(f"{directory / name}.jsonl: {count} rows" for name, count in num_rows.items())


def task_main(
    program: str,
    description: str | None,
    write: Callable[[Path, int], str],
    argv: Sequence[str] | None,
) -> int:
    """Run the command line of a task's program; return the exit status.

    Args:
        program: how it is called.
        description: its docstring.
        write: writes the files into a directory, by a seed; returns what it has written.
        argv: words of the command line; those of this process if None.
    """
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0, help="seed of the rows")
    arguments = parser.parse_args(argv)
    try:
        print(write(arguments.out, arguments.seed))
    except FileExistsError as error:
        print(f"{error.filename} exists already; choose another --out", file=sys.stderr)
        return 1
    return 0
