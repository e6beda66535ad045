"""Scores a repaired repository by a test that the agent has not seen: 1 if it passes, else 0.

A run starts it after the agent has ended (`rollout.program.score`). The row's ground truth is JSON
of a file, a function in it, the arguments of some calls, and their values. The repository's code
runs in a process of its own, which is told the arguments alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CALLER = """
import json, runpy, sys
file, name, calls = json.loads(sys.argv[1])
function = runpy.run_path(file)[name]
print(json.dumps([function(*arguments) for arguments in calls]))
"""
TIMEOUT_S = 5.0


def passes(test: Mapping[str, Any], repository: Path) -> bool:
    """Whether the function of a test returns the values that it has to."""
    called = json.dumps([test["file"], test["function"], test["calls"]])
    try:
        run = subprocess.run(
            [sys.executable, "-I", "-S", "-c", CALLER, called],
            cwd=repository,
            env={},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return bool(json.loads(run.stdout) == test["values"])
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


def main() -> None:
    """Score the repository of this row."""
    row = json.loads(Path(os.environ["VERL_HPC_ROW"]).read_text())
    score = float(passes(json.loads(row["ground_truth"]), Path.home() / "repository"))
    Path(os.environ["VERL_HPC_SCORE"]).write_text(json.dumps(score))


if __name__ == "__main__":
    main()
