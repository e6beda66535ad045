import pytest
import torch

from tests.unit.layout.models import architecture
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.transfer import fp8
from verl_hpc.transfer.fp8 import dequantised, largest_of_blocks, quantise, scales_of

SHAPES = [(128, 128), (256, 384), (300, 200), (64, 896), (1, 130)]


def slowly(x):
    """A block at a time, a number at a time where it matters."""
    rows, columns = x.shape
    values = torch.empty(x.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = x[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)].float()
            scale = max(block.abs().max(), torch.tensor(1e-4)) / torch.tensor(448.0)
            scales[i, j] = scale
            part = values[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
            part.copy_((block * (1.0 / scale)).to(torch.float8_e4m3fn))
    return values, scales


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0.0, 1e-7, 0.02, 3e4])
def test_blocks_are_quantised(shape, size):
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * size).bfloat16()
    values, scales = slowly(x)
    found = scales_of(largest_of_blocks(x, (0, 0)))
    assert torch.equal(found, scales)
    assert quantise(x, found, (0, 0)).view(torch.uint8).equal(values.view(torch.uint8))


def test_parts_give_what_the_whole_gives():
    x = torch.randn(300, 400, generator=torch.Generator().manual_seed(2)).bfloat16()
    values, scales = slowly(x)
    largest = torch.zeros_like(scales)
    cuts = [(slice(0, 100), slice(0, 200)), (slice(100, 300), slice(0, 200))]
    cuts.append((slice(0, 300), slice(200, 400)))
    for rows, columns in cuts:
        part = largest_of_blocks(x[rows, columns], (rows.start, columns.start))
        top, left = rows.start // 128, columns.start // 128
        place = largest[top : top + part.shape[0], left : left + part.shape[1]]
        torch.maximum(place, part, out=place)
    assert torch.equal(scales_of(largest), scales)
    for rows, columns in cuts:
        part_of = quantise(x[rows, columns], scales, (rows.start, columns.start))
        assert part_of.view(torch.uint8).equal(values[rows, columns].contiguous().view(torch.uint8))


def test_what_values_stand_for_is_near():
    x = torch.randn(200, 300, generator=torch.Generator().manual_seed(3)).bfloat16()
    values, scales = slowly(x)
    found = dequantised(values, scales, torch.float32)
    # Three bits of a fraction, and numbers below the smallest normal one, 2^-6 of 448 scales.
    error, wide = (found - x.float()).abs(), scales.max()
    assert (error <= x.float().abs() / 16 + wide * 2.0**-10).all()
    assert error.max() > 0


@pytest.mark.parametrize("at_a_time", [1, 2**24])
def test_rows_come_by_whole_blocks(monkeypatch, at_a_time):
    """However many elements are quantised at a time, the result does not change."""
    from verl_hpc.config.rollout import RolloutConfig
    from verl_hpc.layout.quantization import quantised_source
    from verl_hpc.layout.rollout import rollout_shard_map

    monkeypatch.setattr(fp8, "_ELEMENTS_AT_A_TIME", at_a_time)
    arch = architecture(
        num_layers=1, hidden_size=200, ffn_size=300, num_heads=4, num_kv_heads=2, head_size=96
    )
    trained = megatron_shard_map(arch, TrainLayout())
    ignored = ["self_attn", "gate_proj", "up_proj"]
    config = RolloutConfig(quantization="fp8", ignored_layers=ignored)
    target = rollout_shard_map(config, arch, [(0,)], "bfloat16")
    sent = quantised_source(trained, target)
    weights = {}
    for region in trained.held_by(0):
        last = region.view.offset + region.box.num_elements
        old = weights.get(region.view.name, torch.empty(0))
        weights[region.view.name] = torch.randn(max(last, len(old)))
    made = fp8.Fp8Weights(trained, sent, 0, torch.bfloat16, torch.device("cpu"))
    quantised = made.quantised(weights)
    name, tensor = "chunk0.decoder.layers.0.mlp.linear_fc2.weight", "model.layers.0.mlp.down_proj"
    values, scales = slowly(weights[name].view(200, 300).bfloat16())
    assert quantised[f"{tensor}.weight_scale_inv"].equal(scales)
    assert quantised[name].view(torch.uint8).equal(values.view(-1).view(torch.uint8))
    assert (
        quantised["chunk0.decoder.final_layernorm.weight"]
        is weights["chunk0.decoder.final_layernorm.weight"]
    )
