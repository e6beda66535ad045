"""Read cases: directories with a case.yaml, a measure.py, and what their runs need besides."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from verl_hpc.config.explain import explain, near_or_all
from verl_hpc.config.tree import read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.section import Finite, NonNegative, PathText, Section

ROOT = Path("reproductions")
"""Directory of the cases of this package, relative to the checkout."""
CASE, MEASURE = "case.yaml", "measure.py"

Text = Annotated[str, Field(min_length=1, max_length=1000)]


class Row(Section):
    """One figure of a case."""

    name: Text
    """Name of the figure among the values that measure.py prints."""
    theirs: Text
    """The figure that others publish, in words."""
    within: tuple[Finite | None, Finite | None]
    """Least and largest value that agrees; null has no bound."""
    reason: Text | None = None
    """Why ours is not within these bounds, if it is known not to be."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Row:
        low, high = self.within
        if low is None and high is None:
            raise ValueError("within = [null, null] agrees with anything; give a bound")
        if low is not None and high is not None and low > high:
            raise ValueError(f"within = [{low:g}, {high:g}]: the least value comes first")
        return self

    def agrees(self, value: float) -> bool:
        """Whether a value is within the bounds; NaN is not."""
        low, high = self.within
        return (low is None or value >= low) and (high is None or value <= high)


class Needs(Section):
    """Things that a case does without only by not running."""

    gpus: NonNegative = 0
    """GPUs of this machine."""
    files: list[PathText] = []
    """Files or directories; {data} and {weights} stand for --data and --weights."""
    packages: list[Text] = []
    """Python packages beyond those of requirements/cpu.txt, by the names they are imported by."""


class CaseFile(Section):
    """The settings of a case.yaml."""

    title: Text
    source: Text
    """Where the figures are published."""
    minutes: NonNegative
    """About how long it takes on two cores, or on the GPUs it needs."""
    needs: Needs = Needs()
    commands: list[Text]
    """Programs to run, one after the other. {out} stands for the case's directory of results,
    {case} for that of its case.yaml, {data} and {weights} for --data and --weights."""
    rows: Annotated[list[Row], Field(min_length=1)]


class Case:
    """A case.

    Attributes:
        name: name of its directory.
        directory: absolute path of its directory.
        file: settings of its case.yaml.
        digest: hash of all its files.
        runs_digest: hash of its commands, and of its files but case.yaml and measure.py.
    """

    def __init__(self, directory: Path) -> None:
        """Read a case.

        Raises:
            ConfigError: its case.yaml is not there or malformed, or it has no measure.py.
        """
        self.directory = directory.resolve()
        self.name = self.directory.name
        path = directory / CASE
        tree = read_tree(path)
        try:
            self.file = CaseFile.model_validate(tree)
        except ValidationError as error:
            raise ConfigError(f"{path}:\n" + explain(error, CaseFile)) from None
        names = [row.name for row in self.file.rows]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{path}: rows: {twice!r} is the name of two; names tell rows apart")
        if not (directory / MEASURE).is_file():
            raise ConfigError(f"{directory / MEASURE}: no such file; it prints a case's values")
        texts = {p.name: p.read_bytes() for p in sorted(self.directory.iterdir()) if p.is_file()}
        self.digest = _hash(texts)
        others = {name: text for name, text in texts.items() if name not in (CASE, MEASURE)}
        self.runs_digest = _hash(others | {CASE: "\0".join(self.file.commands).encode()})


def _hash(texts: Mapping[str, bytes]) -> str:
    hashed = hashlib.sha256()
    for name, text in texts.items():
        hashed.update(f"{name}\0{len(text)}\0".encode() + text)
    return hashed.hexdigest()


def find_cases(words: Sequence[str]) -> list[Case]:
    """Read cases by their names below `reproductions`, or by directories.

    Args:
        words: names or directories; none of them are all cases below `reproductions`.

    Raises:
        ConfigError: there is no such case, or one is malformed.
    """
    known = {path.parent.name: path.parent for path in sorted(ROOT.glob(f"*/{CASE}"))}
    if not words and not known:
        raise ConfigError(
            f"no case is in {ROOT}/ below {Path.cwd()}; start this in the checkout, or name the "
            f"directory of a case, which has a {CASE}"
        )
    paths = {word: known.get(word, Path(word)) for word in words or known}
    for word, path in paths.items():
        if not (path / CASE).is_file():
            raise ConfigError(
                f"{word}: no such case, and no directory with a {CASE}; "
                + near_or_all(word, known, f"cases in {ROOT}/")
            )
    return [Case(path) for path in paths.values()]
