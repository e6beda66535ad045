"""The packages that the steps import: which are installed, and the others from a directory.

    python -m benchmarks.first_hour.wheels                  what is missing
    python -m benchmarks.first_hour.wheels --install DIR    installed from DIR, without a network

The directory is filled where there is a network, for the Python of the machine:

    benchmarks/first_hour.sh --list-wheels few > wheels.txt      (or all)
    python -m pip download --no-deps --dest DIR --requirement wheels.txt

Versions are those of requirements/gpu.txt, Transformer Engine's those of containers/install.sh.
Packages that are installed stay, in whatever version; Megatron-core's must be this one, since parts
of it are replaced by name.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_LOCKS = ("requirements/gpu.txt", "requirements/dev.txt", "requirements/cpu.txt")
"""A version is that of the first that has the package."""

ROOTS = (
    "h5py",
    "megatron-core",
    "mpi4py",
    "numpy",
    "pyarrow",
    "pydantic",
    "pytest",
    "pytest-timeout",
    "pyyaml",
    "rich",
    "safetensors",
    "torch",
    "transformers",
    "xxhash",
)
"""Imported by the steps without vLLM and Transformer Engine."""
NEEDED = (
    "annotated-doc",
    "annotated-types",
    "anyio",
    "click",
    "h11",
    "h5py",
    "hf-xet",
    "httpcore2",
    "httpx2",
    "huggingface-hub",
    "idna",
    "iniconfig",
    "markdown-it-py",
    "mdurl",
    "megatron-core",
    "mpi4py",
    "numpy",
    "packaging",
    "pluggy",
    "pyarrow",
    "pydantic",
    "pydantic-core",
    "pygments",
    "pytest",
    "pytest-timeout",
    "pyyaml",
    "regex",
    "rich",
    "safetensors",
    "shellingham",
    "tokenizers",
    "torch",
    "tqdm",
    "transformers",
    "truststore",
    "typer",
    "typing-inspection",
    "xxhash",
    "mpich",
)
"""These and what they require but for torch's requirements; mpich where the site has no MPI."""


def pins() -> Mapping[str, str]:
    """Versions by name."""
    numbers: dict[str, str] = {}
    for lock in _LOCKS:
        for line in (_ROOT / lock).read_text(encoding="utf-8").splitlines():
            name, _, number = line.partition("#")[0].partition(";")[0].strip().partition("==")
            if number:
                numbers.setdefault(name.lower().replace("_", "-"), number)
    return numbers


def transformer_engine() -> Sequence[str]:
    """Its core, its Python, and the source of its part for PyTorch, as the container has them."""
    text = (_ROOT / "containers" / "install.sh").read_text()
    number = re.search(r"^TRANSFORMER_ENGINE=(\S+)", text, re.MULTILINE)
    assert number, "containers/install.sh names no version of Transformer Engine"
    names = ("transformer_engine", "transformer_engine_cu13", "transformer_engine_torch")
    return [f"{name}=={number[1]}" for name in names]


def requirements(names: Sequence[str]) -> Sequence[str]:
    """Lines for pip."""
    numbers = pins()
    return [f"{name}=={numbers[name]}" for name in names]


def to_carry(which: str) -> Sequence[str]:
    """Lines for pip of a machine's directory.

    Args:
        which: few for a machine that has torch, without vLLM; all for one that has nothing.
    """
    tests = [name for name in NEEDED if name.startswith(("pytest", "iniconfig", "pluggy"))]
    whole = (_ROOT / _LOCKS[0]).read_text(encoding="utf-8").splitlines()
    lines = {
        "few": requirements([name for name in NEEDED if name != "torch"]),
        "all": [*(line for line in whole if "==" in line), *requirements([*tests, "mpich"])],
    }
    return [*lines[which], *transformer_engine()]


def missing() -> Sequence[str]:
    """Names of needed packages that are not installed, or Megatron-core in another version."""
    return [name for name in NEEDED if not _is_there(name)]


def _is_there(name: str) -> bool:
    if name == "mpich":
        loads = [sys.executable, "-c", "from mpi4py import MPI"]
        return subprocess.run(loads, capture_output=True).returncode == 0
    try:
        number = version(name)
    except PackageNotFoundError:
        return False
    return name != "megatron-core" or number == pins()[name]


def install(directory: Path, names: Sequence[str]) -> Mapping[str, str]:
    """Install packages from a directory, one by one: one that is not in it keeps no other away.

    Returns:
        pip's last line by name of what could not be installed.
    """
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--find-links", str(directory)]
    refused = {}
    for name, line in zip(names, requirements(names), strict=True):
        if _is_there(name):  # mpich, once mpi4py is here and finds the site's MPI
            continue
        done = subprocess.run([*pip, line], capture_output=True, text=True)
        if done.returncode:
            refused[name] = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
    return refused


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module; status 1 if something is missing in the end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour.wheels")
    parser.add_argument("--install", type=Path, metavar="DIR", help="from here, without a network")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    absent = missing()
    refused = install(arguments.install, absent) if arguments.install else {}
    left = missing()
    for name in absent:
        print(f"{name}: {refused.get(name, 'missing') if name in left else 'installed now'}")
    print(f"{len(NEEDED) - len(left)} of {len(NEEDED)} packages are here")
    if left:
        wanted = " ".join(requirements(left))
        print(f"missing: {wanted}; carry them in a directory and give it as --wheels")
    if arguments.json:
        arguments.json.write_text(json.dumps({"missing": left, "refused": refused}) + "\n")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
