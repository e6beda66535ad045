"""Find run directories: all of them, or the one that a word on the command line means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from verl_hpc.config.regular_file import read_regular
from verl_hpc.errors import ConfigError

RUNS = Path("runs")
"""Default directory of runs."""
_DEPTH = 3


def is_run(path: Path) -> bool:
    """Whether a directory is a run's: it has started, or has been submitted."""
    if (path / "manifest.json").is_file():  # a checkpoint keeps its run's configuration, too
        return False
    return (path / "config.yaml").is_file() or (path / "job" / "config.yaml").is_file()


def runs_below(directory: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yield run directories in `directory`, at most `depth` levels down; a run has none inside."""
    try:
        directories = sorted(path for path in directory.iterdir() if path.is_dir())
    except OSError:
        return
    for path in directories:
        if path.is_symlink():
            continue
        if is_run(path):
            yield path
        elif depth > 1:
            yield from runs_below(path, depth - 1)


def named_runs(directory: Path) -> dict[str, Path]:
    """Return run directories by their paths below a directory; for a run, itself alone."""
    if is_run(directory):
        return {directory.resolve().name: directory}
    return {str(path.relative_to(directory)): path for path in runs_below(directory)}


def find_run(word: str) -> Path:
    """Return the run that a word means: a run directory, or the name of one in runs/.

    The doctor's directory, which has logs and a job but no run, is found by its name alone.

    Raises:
        ConfigError: there is none; the nearest names are given.
    """
    for path in (Path(word), RUNS / word):
        if is_run(path) or (path / "job" / "site.yaml").is_file():
            return path
    raise ConfigError(f"{word}: {_reason(word)}")


def short_names(directories: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, or the whole paths if some of those are equal."""
    short = [path.resolve().name for path in directories]
    return short if len(set(short)) == len(short) else list(map(str, directories))


def newest_run() -> Path | None:
    """Return the run with the latest activity, or None."""
    return max(runs_below(RUNS), key=last_activity, default=None)


def no_runs_yet() -> str:
    """Return the message for somebody who asks about runs and has none."""
    return (
        f"no runs in {RUNS.resolve()} yet; `python -m verl_hpc submit` or `train` makes one. Runs "
        "elsewhere: name one, or `python -m verl_hpc list DIR`"
    )


def last_activity(run: Path) -> float:
    """Return when a run last wrote something, in seconds since the epoch."""
    names = ("heartbeat.json", "metrics.jsonl", "config.yaml", "job/submitted.jsonl")
    times = [(run / name).stat().st_mtime for name in names if (run / name).exists()]
    return max(times, default=0.0)


def total_steps(run: Path) -> int | None:
    """Return the steps of a run's configuration; None if it cannot be read."""
    steps = _top_level(run, "steps", r"\d+")
    return None if steps is None else int(steps)


def recipe(run: Path) -> str | None:
    """Return the recipe of a run's configuration; None if it cannot be read."""
    return _top_level(run, "recipe", r"\w+")


def _top_level(run: Path, setting: str, pattern: str) -> str | None:
    for name in ("config.yaml", "job/config.yaml"):
        try:
            text = read_regular(run / name).decode("utf-8", errors="replace")
        except OSError:
            continue
        # Matches what dump_config writes; parsing it all would take longer than everything else.
        if match := re.search(rf"^{setting}: ({pattern})$", text, re.MULTILINE):
            return match.group(1)
    return None


def restart_budget(run: Path) -> int | None:
    """Return how often Slurm may requeue the job; None for a chain, and if none was submitted."""
    try:
        text = read_regular(run / "job" / "site.yaml").decode("utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^restarts:\n +by: requeue\n +most: (\d+)$", text, re.MULTILINE)
    return int(match.group(1)) if match else None


def _reason(word: str) -> str:
    names = [str(path.relative_to(RUNS)) for path in runs_below(RUNS)]
    # Somebody may leave out the directories between.
    near = [name for name in names if name.endswith(f"/{word}")]
    near += difflib.get_close_matches(word.removeprefix(f"{RUNS}/"), names, n=3, cutoff=0.5)
    what = "is not a run directory: it has no config.yaml" if Path(word).exists() else "no such run"
    if near:
        return f"{what}; did you mean {' or '.join(dict.fromkeys(near))}?"
    if names:
        return f"{what}; `python -m verl_hpc list` shows the {len(names)} runs in {RUNS}/"
    return f"{what}, and {RUNS}/ has none; give the path of a run directory"
