"""Compile and load `guard.cpp`, which must be done before torch is imported."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

DIRECTORY = Path(os.environ.get("VERL_HPC_DRY_GPU", Path(sys.prefix) / "dry_gpu"))
"""Directory of Transformer Engine's Python (`launch/install.sh VENV dry_gpu`) and of the guard."""
_SOURCE = Path(__file__).with_name("guard.cpp")


def load() -> None:
    """Give torch a device guard for "cuda"; compiled once for each torch and source."""
    assert "torch" not in sys.modules, "torch looks for its device guards when it is imported"
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = Path(spec.origin).resolve().parent  # other worktrees' links to it may go
    library = DIRECTORY / "guard.so"
    newest = max(_SOURCE.stat().st_mtime, (torch / "version.py").stat().st_mtime)
    if not library.exists() or library.stat().st_mtime < newest:
        _compile(torch, library)
    ctypes.CDLL(str(library)).install()


def _compile(torch: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    links = [f"-L{torch}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib"]
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch}/include"]
    subprocess.run(["g++", *flags, str(_SOURCE), "-o", str(made), *links], check=True)
    made.replace(library)
