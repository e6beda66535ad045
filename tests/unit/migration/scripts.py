"""Shell scripts for tests, and what becomes of them."""

import shutil

import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.migration.script import words_of

START = "python3 -m verl.trainer.main_ppo"
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap here")


def read(folder, text, given=None, **environment):
    """The words of a script in which RUN stands for verl's command."""
    file = folder / "run.sh"
    file.write_text(text.replace("RUN", START))
    return words_of(file, {"HOME": "/home/me", **environment}, given)


def outcome(folder, text, given=None, **environment):
    """The words in one line, or the error."""
    try:
        return " | ".join(read(folder, text, given, **environment))
    except ConfigError as error:
        return f"error: {error}"
