"""`plan calibrate` on the runs of the steps before, with a site profile of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from verl_hpc.cli.main import main as verl_hpc
from verl_hpc.hardware.node import KINDS

_RUNS = ("kill_resume", "vllm_run")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour.calibrate")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args(argv)
    out: Path = arguments.out
    runs = [str(run) for step in _RUNS if (run := out / step / "run" / "facts.json").exists()]
    if not runs:
        raise SystemExit("no run has ended: kill_resume makes the one that is fitted to")
    facts = json.loads((out / "environment.result.json").read_text())
    (out / "site.yaml").write_text(yaml.safe_dump(site(facts)), encoding="utf-8")
    words = ["--cluster", str(out / "site.yaml"), "--out", str(out / "efficiency.yaml")]
    return verl_hpc(["plan", "calibrate", *[str(Path(run).parent) for run in runs], *words])


def site(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A profile of one rank on this machine.

    Args:
        facts: as the step `environment` writes them.

    Raises:
        SystemExit: a GPU that the planner does not know.
    """
    profile = {"name": "here", "cores_per_node": facts["cores"], "tasks_per_node": 1}
    device = facts.get("device")
    if not device:
        return profile | {"gpus_per_node": 0}
    near = [
        (abs(kind.memory_gib - facts["device_memory_gib"]), name)
        for name, kind in KINDS.items()
        if kind.is_gpu and kind.is_called(device)
    ]
    if not near:
        raise SystemExit(f"{device} is no kind of verl_hpc/hardware/node.py: add its figures there")
    return profile | {"gpus_per_node": 1, "gpu": min(near)[1]}


if __name__ == "__main__":
    sys.exit(main())
