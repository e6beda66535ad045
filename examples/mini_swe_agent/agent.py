"""Starts the public coding agent mini-swe-agent, unmodified, in the repository of a row.

A run starts it once for each response (`rollout.program`), by the Python of a virtual environment
that has mini-swe-agent. The agent takes its model's address and key from the environment; mini.yaml
configures it. What the row's `extra_info` calls `files` is the repository, and its last message the
task. Another program scores the repository that the agent leaves.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
from pathlib import Path

VARIABLES = {
    "MSWEA_CONFIGURED": "true",  # else it asks for a key at the terminal
    "MSWEA_SILENT_STARTUP": "true",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",  # else it asks the network for prices
}


def main() -> None:
    """Write the repository, and become the agent."""
    row = json.loads(Path(os.environ["VERL_HPC_ROW"]).read_text())
    repository = Path.home() / "repository"
    repository.mkdir()
    for name, text in row["extra_info"]["files"].items():
        (repository / name).write_text(text)
    os.chdir(repository)
    os.environ.update(VARIABLES)
    words = ["mini", "--yolo", "--exit-immediately", "--task", row["prompt"][-1]["content"]]
    words += ["--config", str(Path(__file__).with_name("mini.yaml"))]
    sys.argv = [*words, "--output", str(Path.home() / "trace.json")]
    gc.disable()  # a quarter of the start is the search for garbage among what is imported
    runpy.run_module("minisweagent", run_name="__main__")


if __name__ == "__main__":
    main()
