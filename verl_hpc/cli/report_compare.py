"""`report compare`: several runs on one page, and their figures as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_hpc.cli.output import write_file
from verl_hpc.cli.plan_runs import known_ranks
from verl_hpc.config.tree import flat, read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.comparison import Compared, best_first, outcome
from verl_hpc.metrics.comparison_view import comparison_page, comparison_table
from verl_hpc.metrics.log import read_metrics
from verl_hpc.runs.find import find_run, is_run, named_runs, short_names

PAGE = Path("compare.html")


def run_compare(words: Sequence[str], out: Path | None) -> int:
    """Print the figures of these runs, best first, and write the page about them.

    Args:
        words: run directories, names of runs, or directories of runs such as a sweep's.
        out: file of the page; None is compare.html here.

    Raises:
        ConfigError: there are fewer than two runs, or no run of a name.
        DataError: the metrics of a run cannot be read.
    """
    runs = [read_compared(name, path) for name, path in _runs_of(words).items()]
    ranked = outcome(runs)
    header, lines = comparison_table(best_first(runs, ranked) if ranked else runs, ranked)
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
    path = PAGE if out is None else out
    write_file("--out", path, comparison_page(runs))
    print(path)
    return 0


def _runs_of(words: Sequence[str]) -> Mapping[str, Path]:
    """Return run directories by names that tell them apart."""
    paths: dict[Path, None] = {}
    for word in words:
        if Path(word).is_dir() and not is_run(Path(word)):
            paths |= dict.fromkeys(named_runs(Path(word)).values())
        else:
            paths[find_run(word)] = None
    if len(paths) < 2:
        raise ConfigError(
            f"report compare {' '.join(words)}: at least two runs are needed, and there "
            f"{'is' if paths else 'are'} {len(paths) or 'none'}; name run directories, or one with "
            "runs in it, such as a sweep's"
        )
    return dict(zip(short_names([*paths]), paths, strict=True))


def read_compared(name: str, path: Path) -> Compared:
    """Read a run.

    Raises:
        ConfigError: its configuration cannot be read.
        DataError: its metrics cannot be read.
    """
    known = known_ranks(path)
    settings = dict(flat(read_tree(path / "config.yaml")))
    return Compared(name, read_metrics(path), settings, known[0] if known else None)
