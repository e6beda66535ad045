"""Weights onto the device and into a rollout engine, which then generates what the trainer says."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import reshard, rollout
from verl_hpc.transfer.checksum import checksum, position_weighted_sum

pytestmark = pytest.mark.gpu


def test_megatrons_memory_becomes_vllms_on_the_device(setting, hold):
    hold(reshard.run(setting))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.int64])
def test_the_devices_checksum_is_the_same_sum_on_the_cpu(setting, dtype):
    values = torch.randint(0, 255, (5_000_001,)).to(dtype)
    on_device = checksum(values.to(setting.device))
    assert on_device.device.type == setting.device.type
    assert int(on_device) == int(position_weighted_sum(values))
    values[-1] += 1
    assert int(on_device) != int(position_weighted_sum(values))


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_generation_is_the_trainers_and_survives_sleep(setting, hold, engine):
    """With vLLM, sleep frees the weights at least, and the same seeds give the same responses."""
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    hold(rollout.run(replace(setting, rollout_engine=engine)))
