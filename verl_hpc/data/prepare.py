"""Turn a public data set into Parquet files with verl's columns.

The source is a directory with train.jsonl and test.jsonl, or one JSONL file. Rows of gsm8k have
the fields question and answer; rows of math have problem and solution, and may have level and
type.

examples:
  python -m verl_hpc.data.prepare gsm8k --source raw/gsm8k --out data/gsm8k
  python -m verl_hpc.data.prepare math --source raw/math --out data/math
  python -m verl_hpc.data.prepare math --source raw/math/test.jsonl --out data/math
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from verl_hpc.data.jsonl import JsonlRows
from verl_hpc.errors import DataError, VerlHpcError

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "test")
ROWS_PER_GROUP = 1000
"""Rows that are converted, and later decoded, at a time."""


@dataclass(frozen=True)
class Recipe:
    """How the rows of one data set become verl's."""

    data_source: str
    instruction: str
    question_key: str
    answer_key: str
    ground_truth: Callable[[str], str | None]
    marker: str
    """What an answer must hold for its ground truth to be found."""
    labels: tuple[str, ...] = ()
    """Fields that are kept in extra_info where a row has them."""


def number_after_hashes(answer: str) -> str | None:
    """The final number of a GSM8K answer, without commas: '... #### 1,200' gives '1200'."""
    found = re.search(r"#### (-?[0-9.,]+)", answer)
    return found[1].replace(",", "") if found else None


def last_boxed(solution: str) -> str | None:
    r"""What the last \boxed{} or \fbox{} holds, its braces balanced; also `\boxed 7`."""
    found = re.search(r".*\\(?:boxed|fbox)\s*(.*)", solution, re.DOTALL)
    if found is None:
        return None
    body = found[1]
    if not body.startswith("{"):
        return body.partition("$")[0].strip() or None
    depth = 0
    for end, character in enumerate(body):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return body[1:end]
    return None


RECIPES = {
    "gsm8k": Recipe(
        data_source="openai/gsm8k",
        instruction='Let\'s think step by step and output the final answer after "####".',
        question_key="question",
        answer_key="answer",
        ground_truth=number_after_hashes,
        marker="#### NUMBER",
    ),
    "math": Recipe(
        data_source="DigitalLearningGmbH/MATH-lighteval",
        instruction="Let's think step by step and output the final answer within \\boxed{}.",
        question_key="problem",
        answer_key="solution",
        ground_truth=last_boxed,
        marker="\\boxed{...}",
        labels=("level", "type"),
    ),
}


def prepare(recipe: Recipe, source: Path, out: Path) -> dict[Path, int]:
    """Convert every split of `source`; returns the number of rows of each file written.

    Files appear under their names only when all of them are complete.

    Raises:
        DataError: a missing source, a malformed row, or a file that exists already.
    """
    sources = _split_files(source)
    targets = {split: out / f"{split}.parquet" for split in sources}
    for target in targets.values():
        if target.exists():
            raise DataError(f"{target}: exists already; remove it or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    written = {}
    with TemporaryDirectory(dir=out, prefix=".prepare-") as scratch:
        for split, target in targets.items():
            draft = Path(scratch, target.name)
            written[target] = _convert(recipe, sources[split], split, draft)
        for target in written:
            Path(scratch, target.name).rename(target)
    return written


def _split_files(source: Path) -> dict[str, Path]:
    if source.is_file():
        return {source.stem: source}
    files = {split: source / f"{split}.jsonl" for split in SPLITS}
    for file in files.values():
        if not file.is_file():
            raise DataError(
                f"{file}: no such file; --source is a directory with train.jsonl and test.jsonl, "
                "or one JSONL file"
            )
    return files


def _convert(recipe: Recipe, source: Path, split: str, draft: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    rows = JsonlRows(source)
    if not len(rows):
        raise DataError(f"{source}: no rows")
    schema = _schema(recipe)
    with parquet.ParquetWriter(draft, schema) as writer:
        for first in range(0, len(rows), ROWS_PER_GROUP):
            group = range(first, min(first + ROWS_PER_GROUP, len(rows)))
            converted = [_row(recipe, rows, index, split) for index in group]
            writer.write_table(pa.Table.from_pylist(converted, schema))
    return len(rows)


def _row(recipe: Recipe, rows: JsonlRows, index: int, split: str) -> dict[str, Any]:
    raw = rows[index]
    for key in (recipe.question_key, recipe.answer_key):
        if not isinstance(raw.get(key), str):
            raise DataError(
                f"{rows.where(index)}: needs a text {key!r}; fields are {', '.join(raw)}"
            )
    question, answer = raw[recipe.question_key], raw[recipe.answer_key]
    ground_truth = recipe.ground_truth(answer)
    if ground_truth is None:
        raise DataError(f"{rows.where(index)}: {recipe.answer_key} holds no {recipe.marker}")
    labels = {label: str(raw[label]) for label in recipe.labels if label in raw}
    return {
        "data_source": recipe.data_source,
        "prompt": [{"role": "user", "content": f"{question} {recipe.instruction}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {
            "split": split,
            "index": index,
            "answer": answer,
            "question": question,
            **labels,
        },
    }


def _schema(recipe: Recipe) -> pa.Schema:
    import pyarrow as pa

    text = pa.string()

    def texts(*names: str) -> list[tuple[str, pa.DataType]]:
        return [(name, text) for name in names]

    extra = [("split", text), ("index", pa.int64())]
    return pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(pa.struct(texts("role", "content")))),
            ("ability", text),
            ("reward_model", pa.struct(texts("style", "ground_truth"))),
            ("extra_info", pa.struct(extra + texts("answer", "question", *recipe.labels))),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Convert and report; return the exit status: 0 done, 1 a `VerlHpcError`, 2 bad usage."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.data.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dataset", choices=RECIPES, help="which data set the source is")
    parser.add_argument("--source", required=True, type=Path, metavar="DIR_OR_FILE", help="JSONL")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="for the Parquet")
    arguments = parser.parse_args(argv)
    try:
        written = prepare(RECIPES[arguments.dataset], arguments.source, arguments.out)
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for path, num_rows in written.items():
        print(f"{path}: {num_rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
