"""Turn a public data set into Parquet files with verl's columns.

A source is one file of a release, JSONL (.jsonl), Parquet or CSV; of gsm8k and math also a
directory with train and test. docs/evaluation.md says which fields the rows of each data set have.
Options of multiple-choice questions are shuffled, by --seed and the question.

examples:
  python -m verl_hpc.data.prepare gsm8k --source raw/gsm8k --out data/gsm8k
  python -m verl_hpc.data.prepare math --source raw/math/test.jsonl --out data/math
  python -m verl_hpc.data.prepare aime --source raw/aime_2024.parquet --out data/aime
  python -m verl_hpc.data.prepare codeforces --source raw/codeforces/test.parquet --out data/cf
  python -m verl_hpc.data.prepare gpqa --source raw/gpqa_diamond.csv --out data/gpqa --seed 1
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from verl_hpc.config.explain import near_or_all
from verl_hpc.data.formats import open_rows
from verl_hpc.data.public_sets import RECIPES, Recipe, Row
from verl_hpc.data.row_files import RowFile
from verl_hpc.errors import DataError, VerlHpcError

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = ("jsonl", "parquet", "csv")
_ENDINGS = ".jsonl, .parquet or .csv"
ROWS_PER_GROUP = 1000
"""Rows that are converted, and later decoded, at a time."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
"""Suffix after the split in file names on Hugging Face."""


@dataclass(frozen=True)
class Written:
    """Counts of the rows that were written and left out."""

    num_rows: int
    left_out: Mapping[str, int]
    """Number of rows that cannot be scored, by reason."""

    def __str__(self) -> str:
        parts = [f"{number} left out: it {reason}" for reason, number in self.left_out.items()]
        return "; ".join([f"{self.num_rows} rows", *parts])


def prepare(recipe: Recipe, source: Path, out: Path, seed: int = 0) -> dict[Path, Written]:
    """Convert every split of `source`, and return the row counts of each file written.

    Files appear under their names only when all of them are complete.

    Args:
        seed: seed that shuffles options.

    Raises:
        DataError: a missing source, a malformed row, none that can be scored, or a file that
            exists already.
    """
    sources = _split_files(recipe, source)
    targets = {split: out / f"{split}.parquet" for split in sources}
    for target in targets.values():
        if target.exists():
            raise DataError(f"{target}: exists already; remove it or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    written = {}
    with TemporaryDirectory(dir=out, prefix=".prepare-") as scratch:
        for split, target in targets.items():
            draft = Path(scratch, target.name)
            written[target] = _Conversion(recipe, sources[split], split, seed).write(draft)
        for target in written:
            Path(scratch, target.name).rename(target)
    return written


def _split_files(recipe: Recipe, source: Path) -> dict[str, Path]:
    if source.is_file():
        return {_SHARD.sub("", source.stem): source}
    if not recipe.splits:
        raise DataError(
            f"{source}: no such file; of this data set --source is one file, {_ENDINGS}"
        )
    by_split = {}
    for split in recipe.splits:
        files = [source / f"{split}.{kind}" for kind in _FORMATS]
        there = [file for file in files if file.is_file()]
        if not there:
            raise DataError(
                f"{files[0]}: no such file; --source is a directory with "
                f"{' and '.join(recipe.splits)}, {_ENDINGS}, or one file"
            )
        by_split[split] = there[0]
    return by_split


@dataclass(frozen=True)
class _Conversion:
    """The conversion of one file."""

    recipe: Recipe
    source: Path
    split: str
    seed: int

    def write(self, draft: Path) -> Written:
        """Write the Parquet file."""
        import pyarrow as pa
        from pyarrow import parquet

        rows = open_rows(self.source, formats=_FORMATS)
        if not len(rows):
            raise DataError(f"{self.source}: no rows")
        schema = self._schema()
        left_out: Counter[str] = Counter()
        with parquet.ParquetWriter(draft, schema) as writer:
            for first in range(0, len(rows), ROWS_PER_GROUP):
                group = range(first, min(first + ROWS_PER_GROUP, len(rows)))
                converted = list(self._fit_rows(rows, group, left_out))
                writer.write_table(pa.Table.from_pylist(converted, schema))
        written = Written(len(rows) - left_out.total(), left_out)
        if not written.num_rows:
            raise DataError(f"{self.source}: {written}")
        return written

    def _fit_rows(
        self, rows: RowFile, group: range, left_out: Counter[str]
    ) -> Iterator[dict[str, Any]]:
        for index in group:
            raw = rows[index]
            if (reason := self.recipe.unfit(raw)) is None:
                yield self._row(raw, index, rows.where(index))
            else:
                left_out[reason] += 1

    def _row(self, raw: Row, index: int, where: str) -> dict[str, Any]:
        try:
            example = self.recipe.read(raw, self.seed)
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        labels = {
            label: str(raw[name])
            for name, label in self.recipe.labels.items()
            if raw.get(name) is not None
        }
        options = {"choices": list(example.options)} if self.recipe.has_options else {}
        return {
            "data_source": self.recipe.data_source,
            "prompt": [{"role": "user", "content": example.prompt}],
            "ability": self.recipe.ability,
            "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
            "extra_info": {
                "split": self.split,
                "index": index,
                "answer": example.answer,
                "question": example.question,
                **labels,
                **options,
            },
        }

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        text = pa.string()

        def texts(*names: str) -> list[tuple[str, pa.DataType]]:
            return [(name, text) for name in names]

        extra = [("split", text), ("index", pa.int64())]
        extra += texts("answer", "question", *dict.fromkeys(self.recipe.labels.values()))
        if self.recipe.has_options:
            extra.append(("choices", pa.list_(text)))
        return pa.schema(
            [
                ("data_source", text),
                ("prompt", pa.list_(pa.struct(texts("role", "content")))),
                ("ability", text),
                ("reward_model", pa.struct(texts("style", "ground_truth"))),
                ("extra_info", pa.struct(extra)),
            ]
        )


def _dataset(name: str) -> str:
    if name in RECIPES:
        return name
    raise argparse.ArgumentTypeError(f"{name}: {near_or_all(name, RECIPES, 'data sets')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Convert and report; return the exit status: 0 done, 1 a `VerlHpcError`, 2 bad usage."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_hpc.data.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("dataset", type=_dataset, metavar="DATASET", help=f"which it is: {', '.join(RECIPES)}")
    add("--source", required=True, type=Path, metavar="DIR_OR_FILE", help=_ENDINGS)
    add("--out", required=True, type=Path, metavar="DIR", help="for the Parquet")
    add("--seed", type=int, default=0, metavar="N", help="of the order of options (default 0)")
    arguments = parser.parse_args(argv)
    recipe = RECIPES[arguments.dataset]
    try:
        written = prepare(recipe, arguments.source, arguments.out, arguments.seed)
    except VerlHpcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for path, counts in written.items():
        print(f"{path}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
