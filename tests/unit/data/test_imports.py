"""What importing the data room costs."""

import subprocess
import sys

import pytest

MODULES = "files lengths fingerprint order overlap prepare public_sets row_files problem prompts"
HEAVY = {"torch", "transformers", "reasoning_gym", "mpi4py"}


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [(f"{MODULES} sources split", HEAVY), ("prepare", {"pyarrow", "numpy", "torch"})],
)
def test_modules_import_nothing_heavy(modules, heavy):
    """Help of `prepare` does not even wait for pyarrow."""
    names = ", ".join(f"verl_hpc.data.{name}" for name in modules.split())
    program = f"import sys, {names}; print({heavy} & set(sys.modules) or 'none')"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "none\n"
