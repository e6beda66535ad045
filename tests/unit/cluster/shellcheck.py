"""The linter of shell scripts that requirements/dev.txt brings."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(sys.executable).with_name("shellcheck")


def shellcheck(path: Path) -> str:
    """Return what shellcheck reports about a script; empty if nothing."""
    assert TOOL.exists(), "pip install -r requirements/dev.txt"
    # SC2016: a script in single quotes is another shell's.
    done = subprocess.run(
        [TOOL, "--exclude=SC2016", path], capture_output=True, text=True, check=False
    )
    return done.stdout
