"""How many prompts of evaluation occur in training as well.

Counts for one run, or for several that follow each other: the evaluation of each against the
training of all of them. Relative paths of data files are read from where this is started.

examples:
  python -m verl_hpc.data.overlap runs/gsm8k_sft runs/gsm8k_grpo
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.load import load_config
from verl_hpc.data.problem import Prompt
from verl_hpc.data.scan import refuse, scan
from verl_hpc.data.sources import Source, open_source
from verl_hpc.data.split import digest, plain
from verl_hpc.errors import ConfigError, DataError, VerlHpcError

KEY_BYTES = 16


@dataclass(frozen=True)
class Overlap:
    """What was counted."""

    evaluation_rows: int
    evaluation_prompts: int
    """Different prompts in them."""
    training_rows: int
    shared_prompts: int
    """Different prompts of evaluation that occur in training."""
    shared_evaluation_rows: int
    """Rows of evaluation that have one of them."""
    shared_training_rows: tuple[array[int], ...]
    """Rows of each training source that have one of them, ascending."""


def count_overlap(
    training: Sequence[Source],
    evaluation: Source,
    on_bad: Callable[[DataError], None] = refuse,
) -> Overlap:
    """Read all rows and count the prompts that occur on both sides.

    It holds 16 bytes and a set's entry for each prompt of evaluation, and 8 bytes for each row of
    training that has one.

    Args:
        on_bad: called with what is wrong with a row that cannot be used.

    Raises:
        DataError: what `on_bad` raises.
    """
    rows_with: dict[bytes, int] = {}
    for _, prompt in scan(evaluation, "data.evaluation", on_bad):
        key = prompt_key(prompt)
        rows_with[key] = rows_with.get(key, 0) + 1
    shared: set[bytes] = set()
    found = []
    for source in training:
        rows = array("q")
        for row, prompt in scan(source, "data.train", on_bad):
            key = prompt_key(prompt)
            if key in rows_with:
                rows.append(row)
                shared.add(key)
        found.append(rows)
    return Overlap(
        evaluation_rows=len(evaluation),
        evaluation_prompts=len(rows_with),
        training_rows=sum(map(len, training)),
        shared_prompts=len(shared),
        shared_evaluation_rows=sum(rows_with[key] for key in shared),
        shared_training_rows=tuple(found),
    )


def prompt_key(prompt: Prompt) -> bytes:
    """16 bytes that two prompts have in common exactly if a model reads the same.

    Text is the same as a chat of one message of the user. Runs of white space count as one space.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    # White space that no plain text contains.
    parts = [plain(part) for message in messages for part in (message["role"], message["content"])]
    return digest("\x1f".join(parts), KEY_BYTES)


def report(run_directories: Sequence[Path]) -> Iterator[str]:
    """A paragraph about each run: its evaluation against the training of all, and its accuracy.

    Raises:
        ConfigError: a directory without the config.yaml of a run, or without data.evaluation.
        DataError: data that cannot be read.
    """
    runs = [(directory, load_config(directory / "config.yaml")) for directory in run_directories]
    training = [open_source(config.data.train) for _, config in runs]
    for directory, config in runs:
        if config.data.evaluation is None:
            raise ConfigError(f"{directory}: the run has no data.evaluation to look for")
        counts = count_overlap(training, open_source(config.data.evaluation))
        yield (
            f"{directory}: evaluation has {counts.evaluation_rows} rows with "
            f"{counts.evaluation_prompts} different prompts; {counts.shared_prompts} of these "
            f"occur in the {counts.training_rows} rows of training of "
            f"{', '.join(map(str, run_directories))}"
        )
        accuracies = _accuracies(directory / "metrics.jsonl")
        if accuracies:
            (first, before), (last, after) = accuracies[0], accuracies[-1]
            yield f"  val/accuracy {before:.4f} at step {first}, {after:.4f} at step {last}"


def _accuracies(metrics: Path) -> list[tuple[int, float]]:
    found = []
    for line in metrics.read_text(encoding="ascii").splitlines() if metrics.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:  # cut short by a kill
            continue
        if row.get("val/accuracy") is not None:
            found.append((row["step"], row["val/accuracy"]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Count and report; return the exit status: 0 done, 1 a `VerlHpcError`, 2 bad usage."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.data.overlap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="has config.yaml")
    arguments = parser.parse_args(argv)
    try:
        for line in report(arguments.runs):
            print(line, flush=True)
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
