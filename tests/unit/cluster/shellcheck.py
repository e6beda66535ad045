"""The linter of shell scripts that requirements/dev.txt brings."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(sys.executable).with_name("shellcheck")


def shellcheck(path: Path) -> str:
    """Its findings; empty where there are none."""
    assert TOOL.exists(), "pip install -r requirements/dev.txt"
    done = subprocess.run([TOOL, path], capture_output=True, text=True, check=False)
    return done.stdout
