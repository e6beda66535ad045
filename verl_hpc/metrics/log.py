"""metrics.jsonl: the record of a run from which all other views are made."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from verl_hpc.config.regular_file import open_regular, replace_file
from verl_hpc.errors import DataError
from verl_hpc.metrics.names import STEP_SECONDS

FILE_NAME = "metrics.jsonl"

Row = dict[str, Any]


class MetricsLog(AbstractContextManager["MetricsLog"]):
    """Writes metrics.jsonl. Belongs to rank 0.

    A line is one flat object: `step`, `time` (Unix seconds), then the values by name. NaN and
    infinities, which JSON lacks, are null, and `not_finite` has their names::

        {"step": 7, "time": 1790000000.0, "actor/lr": 1e-06, "actor/grad_norm": null,
         "not_finite": {"actor/grad_norm": "nan"}}
    """

    def __init__(self, run_directory: Path, resumed_from: int | None = None) -> None:
        """Open the file, keeping the lines that are still valid.

        Args:
            run_directory: an existing directory.
            resumed_from: step of the checkpoint that training resumes from; later lines, whose work
                is done again, are dropped. None starts over.
        """
        path = run_directory / FILE_NAME
        self.newest: dict[str, int] = {}
        """Newest step with a value, by the value's name."""
        last = -1 if resumed_from is None else resumed_from
        # A kill leaves the old file.
        self._file = replace_file(path, self._kept(path, last), durable=True)

    def _kept(self, path: Path, last_step: int) -> Iterator[str]:
        """Yield the whole lines up to `last_step`."""
        for row in _rows(path) if path.exists() else ():
            if row["step"] <= last_step:
                self.newest |= {name: max(row["step"], self.newest.get(name, -1)) for name in row}
                yield json.dumps(row) + "\n"

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append a line and hand it to the operating system.

        A step has one line, and a second one if a later start evaluates it afterwards.
        """
        row: Row = {"step": step, "time": round(time.time(), 3), **values}
        not_finite = {name: str(v) for name, v in values.items() if not math.isfinite(v)}
        if not_finite:
            row |= dict.fromkeys(not_finite) | {"not_finite": not_finite}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        self.newest |= dict.fromkeys(row, step)

    def close(self) -> None:
        self._file.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(run_directory: str | Path) -> list[Row]:
    """Return the lines of a run's metrics.jsonl, in order. A line cut short by a kill is left out.

    Raises:
        DataError: the directory has no metrics.jsonl, or none that can be read.
    """
    path = Path(run_directory) / FILE_NAME
    try:
        return list(_rows(path))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path}: no such file; give the directory of a run that has started"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a regular file ({error})") from None


def seconds_after(rows: Iterable[Row], step: int) -> float:
    """Sum the seconds of the steps after this one, as far as they are recorded."""
    return sum(row.get(STEP_SECONDS) or 0.0 for row in rows if row["step"] > step)


def _rows(path: Path) -> Iterator[Row]:
    with io.TextIOWrapper(open_regular(path), encoding="ascii", errors="replace") as lines:
        yield from filter(None, map(parse_row, lines))


def parse_row(line: str | bytes) -> Row | None:
    """Parse a line of a metrics.jsonl; None if it is cut short."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None
