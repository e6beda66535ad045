"""States of random-number generators, with and without Megatron-core."""

import subprocess
import sys

import pytest

CODE = """
import sys
import torch
from verl_hpc.engines.generators import generator_states, restore_generators

def check():
    torch.manual_seed(3)
    states = generator_states()
    drawn = torch.rand(4)
    restore_generators(states)
    assert torch.equal(torch.rand(4), drawn)
    restore_generators(states | {"megatron.model-parallel-rng": states["torch"]})
    print(*sorted(states), *(name for name in sys.modules if name == "megatron.core"))

"""
SEEDED = """
from megatron.core.tensor_parallel import get_cuda_rng_tracker

assert get_cuda_rng_tracker().get_states().keys() == {"model-parallel-rng"}
"""
OF_THE_ENGINE = """
from verl_hpc.errors import ClusterError

try:
    import verl_hpc.engines.megatron
except ClusterError as error:
    assert "before its first import" in str(error), error
else:
    sys.exit("nothing was said")
"""
WITHOUT_TRACKERS = """
assert not {"tensorboard", "wandb"} & sys.modules.keys()
import tensorboard, wandb
"""


OURS = "check()\nimport verl_hpc.engines.megatron.parallel\ncheck()" + SEEDED + WITHOUT_TRACKERS
THEIRS = "import megatron.core.tensor_parallel\ncheck()" + SEEDED + OF_THE_ENGINE


@pytest.mark.parametrize(
    ("code", "said"), [(OURS, "torch\ntorch megatron.core\n"), (THEIRS, "torch megatron.core\n")]
)
def test_states_come_back_whoever_imported_megatron(code, said):
    words = [sys.executable, "-c", CODE + code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said
