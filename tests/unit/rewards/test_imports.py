"""What importing the reward room costs."""

import subprocess
import sys


def printed(program):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_no_module_brings_torch_math_verify_or_reasoning_gym():
    program = (
        "import sys, verl_hpc.rewards.scorer\n"
        "heavy = {'torch', 'numpy', 'math_verify', 'sympy', 'reasoning_gym', 'transformers',\n"
        "         'httpx'}\n"
        "print(heavy & set(sys.modules) or 'none')"
    )
    assert printed(program) == "none\n"


def test_scoring_mathematics_brings_no_torch():
    program = (
        "import sys\n"
        "from verl_hpc.rewards.built_in import built_in\n"
        "extra = {'question': '', 'metadata': {}}\n"
        "built_in('math')('\\\\boxed{1}', '1')\n"
        "built_in('reasoning_gym')('reasoning_gym/gcd', '1', '1', extra)\n"
        "print('torch' in sys.modules)"
    )
    assert printed(program) == "False\n"
