"""What this machine has: driver, torch, compilers, packages. Later steps ask what it wrote."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.figures import machine


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module; status 1 if a GPU is here and torch cannot compute on it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour.environment")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args(argv)
    known = machine() | _torch() | _tools()
    known["packages"] = {one.name.lower().replace("_", "-"): one.version for one in distributions()}
    arguments.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    shown = known | {"packages": f"{len(known['packages'])} packages, in the JSON file"}
    print("\n".join(f"{name}: {value}" for name, value in shown.items()))
    return int(bool(known.get("broken")))


def _torch() -> dict[str, Any]:
    """torch, and a device that has multiplied."""
    try:
        import torch
    except ImportError as error:
        return {"torch": f"torch does not import: {error}", "device": None}
    known: dict[str, Any] = {"torch": f"torch {torch.__version__}", "cuda": torch.version.cuda}
    if not torch.cuda.is_available():
        return known | {"device": None}
    ones = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    properties = torch.cuda.get_device_properties(0)
    return known | {
        "device": properties.name,
        "device_memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cudnn": torch.backends.cudnn.version(),
        "broken": None if bool((ones @ ones == 64).all()) else "torch multiplies wrongly",
        "transformer_engine": _imports("transformer_engine.pytorch"),
    }


def _imports(module: str) -> bool:
    """Whether a module imports, in a process of its own: a library that does not fit may end it."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return False
    return subprocess.run([sys.executable, "-c", f"import {module}"]).returncode == 0


def _tools() -> dict[str, Any]:
    """Driver and compilers, wherever they are."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    path = os.pathsep.join([os.environ.get("PATH", ""), f"{os.environ.get('CUDA_HOME', '')}/bin"])
    smi = shutil.which(query[0]) and subprocess.run(query, capture_output=True, text=True).stdout
    tools = {name: shutil.which(name, path=path) for name in ("nvcc", "g++", "ninja", "mpiexec")}
    return {"driver": smi.strip() if smi else None} | tools


if __name__ == "__main__":
    sys.exit(main())
