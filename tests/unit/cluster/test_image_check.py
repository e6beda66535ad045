"""containers/check.sh, on stand-ins: an image of modules that import and of libraries that load."""

import _ctypes
import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import vllm

from tests.unit.cluster.requests import ROOT
from tests.unit.programs import program

CHECK = ROOT / "containers/check.sh"
NAMES = ("torch", "vllm", "megatron-core", "mpi4py", "h5py", "transformer_engine", "apex")
MODULES = {
    "torch": "class version: cuda = '13.0'\nclass cuda: is_available = staticmethod(lambda: False)",
    "h5py": "",
    "megatron/core": "",
    "mpi4py/MPI": "import ctypes\nctypes.CDLL('{root}/opt/mpich/lib/libpmix.so.2')\n"
    "Get_library_version = lambda: 'MPICH Version: 5'",
    "amp_C": "",
    "fused_weight_gradient_mlp_cuda": "",
    "transformer_engine/pytorch": "",
    "vllm/_C_stable_libtorch": "import ctypes\nctypes.CDLL('libcuda.so.1')",
    "vllm/_moe_C_stable_libtorch": "",
    "vllm/cumem_allocator": "import ctypes\nctypes.CDLL('libcuda.so.1')",
}


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


without_driver = pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is on this machine")


def library(path: Path) -> None:
    """A library that loads, in the place of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_ctypes.__file__, path)


@pytest.fixture
def image(tmp_path):
    root = tmp_path / "image"
    library(root / "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so")
    library(root / "usr/local/cuda/lib64/stubs/libcuda.so")
    library(root / "opt/mpich/lib/libpmix.so.2")
    standins = root / "opt/verl_hpc/lib"
    for name, text in MODULES.items():
        path = standins / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(root=root))
    for name in NAMES:
        about = standins / f"{name.replace('-', '_')}-1.dist-info/METADATA"
        about.parent.mkdir()
        about.write_text(f"Name: {name}\nVersion: 1\n")
    (root / "opt/python").mkdir()
    python = f'PYTHONPATH={standins} exec {sys.executable} -S "$@"'
    program(root / "opt/verl_hpc/bin/python", python)
    return root


def check(image: Path, **environ: str) -> tuple[int, str]:
    """Its status, and what it says."""
    done = subprocess.run(
        ["bash", CHECK, image], capture_output=True, text=True, env=os.environ | environ
    )
    return done.returncode, done.stdout + done.stderr


@without_driver
def test_a_build_without_a_driver_loads_what_is_linked_to_it(image):
    status, said = check(image)
    assert (status, said.splitlines()[-1]) == (0, "no GPU: no kernel ran")


def other_library(image):
    module = image / "opt/verl_hpc/lib/mpi4py/MPI.py"
    module.write_text(module.read_text().replace("libpmix", "libother"))
    library(image / "opt/mpich/lib/libother.so.2")


STUB = "usr/local/cuda/lib64/stubs/libcuda.so"
FAULTS = {
    "no driver, no stub": (
        lambda image: (image / STUB).unlink(),
        f"neither a driver nor {{image}}/{STUB} is here",
    ),
    "a driver without a GPU": (
        lambda image: library(image / "driver/libcuda.so.1"),
        "NVIDIA's driver is here, and torch finds no GPU that it can use",
    ),
    "no drivers of InfiniBand": (
        lambda image: shutil.rmtree(image / "usr/lib"),
        "no driver for InfiniBand adapters: install ibverbs-providers",
    ),
    "a library for root": (
        lambda image: (image / "opt/mpich/lib/libpmix.so.2").chmod(0o700),
        "{image}/opt/mpich/lib/libpmix.so.2 is not readable by every user",
    ),
    "a directory for root": (
        lambda image: (image / "opt/python").chmod(0o700),
        "{image}/opt/python is not readable by every user",
    ),
    "no PMIx": (other_library, "MPICH Version: 5 is built without PMIx"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(n, marks=without_driver if n.endswith("stub") else ()) for n in FAULTS]
)
def test_what_is_wrong_with_an_image_is_said(image, fault):
    spoil, words = FAULTS[fault]
    spoil(image)
    status, said = check(image, LD_LIBRARY_PATH=str(image / "driver"))
    assert status == 1
    assert words.format(image=image) in said


@without_driver
@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_is_not_there(image, name):
    (image / f"opt/verl_hpc/lib/{name}.py").unlink()
    status, said = check(image)
    assert status == 1
    assert re.search(rf"(ModuleNotFound|Import)Error: .*\b{Path(name).name}'", said)


def test_vllms_kernels_are_those_that_its_platform_for_cuda_imports():
    """The build for CPUs has the same Python files; `suppress` marks what may be missing."""
    text = Path(vllm.__path__[0], "platforms/cuda.py").read_text()
    needed = set(re.findall(r"^ *import (vllm\._\w+)", text, re.MULTILINE)) - {"vllm._qutlass_C"}
    imported = set(re.findall(r"^ *import (vllm\._\w+)", CHECK.read_text(), re.MULTILINE))
    assert needed == imported - {"vllm._C"}
