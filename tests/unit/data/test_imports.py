"""What importing the data room costs."""

import subprocess
import sys
from pathlib import Path

import verl_hpc.data

MODULES = [path.stem for path in Path(verl_hpc.data.__file__).parent.glob("[a-z]*.py")]
HEAVY = {"torch", "transformers", "reasoning_gym", "mpi4py"}


def test_modules_import_nothing_heavy():
    """Help of `prepare` does not even wait for pyarrow."""
    for modules, heavy in ((MODULES, HEAVY), (["prepare"], {"pyarrow", "numpy", "torch"})):
        names = ", ".join(f"verl_hpc.data.{name}" for name in modules)
        program = f"import sys, {names}; print({heavy} & set(sys.modules) or 'none')"
        assert subprocess.check_output([sys.executable, "-c", program], text=True) == "none\n"
