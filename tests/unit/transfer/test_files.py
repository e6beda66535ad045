"""Boxes of safetensors files, and a plan from files carried out on one rank."""

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.layout.models import architecture
from tests.unit.layout.simulate import local_sizes
from verl_hpc.errors import ModelError
from verl_hpc.layout.box import Box
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "box", [Box((0, 0), (4, 6)), Box((1, 2), (3, 5)), Box((3, 0), (4, 6)), Box((0, 5), (4, 6))]
)
def test_a_box_of_a_matrix(tmp_path, dtype, box):
    matrix = torch.arange(24).view(4, 6).to(dtype)
    save_file({"w": matrix}, tmp_path / "f.safetensors")
    found = SafetensorsReader().read(str(tmp_path / "f.safetensors"), "w", box)
    assert found.dtype == dtype
    assert torch.equal(found, matrix[box.slices])


def test_scalars_vectors_and_several_files(tmp_path):
    save_file({"s": torch.tensor(3.5), "v": torch.arange(5)}, tmp_path / "a.safetensors")
    save_file({"v": torch.arange(5) * 10}, tmp_path / "b.safetensors")
    reader = SafetensorsReader()
    assert reader.read(str(tmp_path / "a.safetensors"), "s", Box((), ())) == 3.5
    for file, factor in (("a", 1), ("b", 10), ("a", 1)):
        found = reader.read(str(tmp_path / f"{file}.safetensors"), "v", Box((1,), (3,)))
        assert found.tolist() == [1 * factor, 2 * factor]


def memory(shard_map, dtype):
    return {
        name: torch.full((size,), -1.0, dtype=dtype)
        for name, size in local_sizes(shard_map)[0].items()
    }


def test_weights_go_from_files_through_training_to_rollout_and_back(tmp_path):
    """On one rank nothing is sent: reads and copies alone must carry every element."""
    arch = architecture(dtype="float32")
    weights = {
        name: torch.randn(spec.shape, generator=torch.Generator().manual_seed(i))
        for i, (name, spec) in enumerate(arch.tensors().items())
    }
    half = len(weights) // 2
    save_file(dict(list(weights.items())[:half]), tmp_path / "a.safetensors")
    save_file(dict(list(weights.items())[half:]), tmp_path / "b.safetensors")
    files = safetensors_shard_map(tmp_path)
    train = megatron_shard_map(arch, TrainLayout())
    rollout = vllm_shard_map(arch, [(0,)], "bfloat16")

    trained, generating = memory(train, torch.float32), memory(rollout, torch.bfloat16)
    load = Transfer(plan_transfer(files, train, (0,)), 0, SafetensorsReader())
    stats = load.run({}, trained, torch.float32)
    assert (stats.read_bytes, stats.copied_bytes) == (4 * arch.num_parameters, 0)
    reshard = Transfer(plan_transfer(train, rollout, (0,)), 0)
    stats = reshard.run(trained, generating, torch.bfloat16)
    assert (stats.read_bytes, stats.copied_bytes) == (0, 2 * arch.num_parameters)
    assert stats.received_bytes.total() == stats.messages == 0

    q, k, v = (weights[f"model.layers.2.self_attn.{n}_proj.weight"] for n in "qkv")
    fused = generating["model.layers.2.self_attn.qkv_proj.weight"].view(-1, arch.hidden_size)
    assert torch.equal(fused, torch.cat([q, k, v]).bfloat16())
    for name in ("model.norm.weight", "lm_head.weight", "model.layers.3.mlp.down_proj.weight"):
        assert torch.equal(generating[name], weights[name].bfloat16().flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_values_that_are_not_finite_are_counted_and_named(tmp_path, dtype, value):
    weights = torch.ones(4, 6, dtype=dtype)
    weights[1, :3] = value
    save_file({"w": weights}, tmp_path / "f.safetensors")
    reader = SafetensorsReader()
    with pytest.raises(ModelError, match="f.safetensors: tensor w holds 3 values that are NaN or"):
        reader.read(str(tmp_path / "f.safetensors"), "w", Box((0, 0), (4, 6)))
    assert reader.read(str(tmp_path / "f.safetensors"), "w", Box((2, 0), (4, 6))).sum() == 12
