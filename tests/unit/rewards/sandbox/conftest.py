import pytest

from verl_hpc.errors import RewardError
from verl_hpc.rewards.sandbox.containment import MIB, Limits
from verl_hpc.rewards.sandbox.sandbox import Sandbox

LIMITS = Limits(
    timeout_s=20.0,
    cpu_s=10.0,
    memory_bytes=256 * MIB,
    tasks=16,
    files_bytes=4 * MIB,
    output_bytes=64 * 1024,
)


def sandbox_of(containment, limits=LIMITS, **more) -> Sandbox:
    """Skips where this machine has no bubblewrap that works."""
    try:
        return Sandbox(limits, containment, **more)
    except RewardError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["bubblewrap", "limits"])
def containment(request):
    return request.param


@pytest.fixture
def sandbox(containment):
    return sandbox_of(containment)
