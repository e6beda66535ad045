"""What importing the data room costs."""

import subprocess
import sys

MODULES = (
    "files",
    "lengths",
    "fingerprint",
    "order",
    "overlap",
    "prepare",
    "public_sets",
    "raw_rows",
    "problem",
    "prompts",
    "sources",
    "split",
)


def test_no_module_brings_torch_transformers_or_reasoning_gym():
    program = (
        f"import sys, {', '.join(f'verl_hpc.data.{name}' for name in MODULES)}\n"
        "print({'torch', 'transformers', 'reasoning_gym', 'mpi4py'} & set(sys.modules) or 'none')"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "none\n"


def test_help_of_prepare_does_not_wait_for_pyarrow():
    program = (
        "import sys, verl_hpc.data.prepare\n"
        "print({'pyarrow', 'numpy', 'torch'} & set(sys.modules) or 'none')"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "none\n"
