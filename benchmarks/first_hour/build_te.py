"""Build Transformer Engine's part for PyTorch against the torch and CUDA of this machine.

It goes into a directory of its own, so that steps before and beside it see none.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.first_hour.wheels import transformer_engine


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour.build_te")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="without a network, from here")
    arguments = parser.parse_args(argv)
    shutil.rmtree(arguments.out, ignore_errors=True)
    offline = ["--no-index", "--find-links", str(arguments.wheels)] if arguments.wheels else []
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", *offline]
    subprocess.run(
        [*pip, "--target", str(arguments.out), *transformer_engine()], env=_variables(), check=True
    )
    path = os.pathsep.join([str(arguments.out), os.environ.get("PYTHONPATH", "")])
    imports = [sys.executable, "-c", "import transformer_engine.pytorch"]
    subprocess.run(imports, env=os.environ | {"PYTHONPATH": path}, check=True)
    (arguments.out / "imports").touch()
    return 0


def _variables() -> Mapping[str, str]:
    """As containers/install.sh; half of the cores, since other steps measure meanwhile."""
    given = {
        "NVTE_FRAMEWORK": "pytorch",
        "NVTE_PYTORCH_FORCE_BUILD": "TRUE",
        "MAX_JOBS": str(max(len(os.sched_getaffinity(0)) // 2, 1)),
    }
    found = importlib.util.find_spec("nvidia.cudnn") if importlib.util.find_spec("nvidia") else None
    if found is not None and found.submodule_search_locations:
        given["CUDNN_PATH"] = next(iter(found.submodule_search_locations))
    return os.environ | given


if __name__ == "__main__":
    sys.exit(main())
