import pytest

from tests.unit.layout.models import architecture, moe
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import LayoutError
from verl_hpc.layout.box import Box, View
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.quantization import (
    mean_item_bytes,
    quantised_source,
    quantised_tensors,
    scale_name,
    scale_shape,
    spread_tensors,
)
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.layout.shard_map import ITEM_BYTES, TensorSpec

SIZES = {"hidden_size": 256, "ffn_size": 512, "num_heads": 4, "num_kv_heads": 2, "head_size": 128}
ARCH = architecture(num_layers=2, **SIZES, dtype="bfloat16")
Q, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"


def engine(arch=ARCH, tp=1, ignored=()):
    config = RolloutConfig(quantization="fp8", ignored_layers=list(ignored))
    return rollout_shard_map(config, arch, [tuple(range(tp))], "bfloat16")


def test_weights_of_linear_layers_are_values_and_scales():
    found = engine()
    assert found.tensors[Q] == TensorSpec((512, 256), "float8_e4m3fn")
    assert found.tensors[scale_name(Q)] == TensorSpec((4, 2), "float32")
    others = {n.split(".")[-2] for n, s in found.tensors.items() if s.dtype == "bfloat16"}
    norms = {"input_layernorm", "post_attention_layernorm", "norm"}
    assert others == norms | {"embed_tokens", "lm_head"}


def test_blocks_at_the_edges_count():
    assert scale_shape((896, 130)) == (7, 2)


def test_scales_lie_beside_the_values_in_a_fused_parameter():
    held = [r for r in engine(tp=2).held_by(1) if r.tensor.startswith("model.layers.0.self_attn")]
    scales = {r.tensor.split(".")[4]: r for r in held if r.tensor.endswith("scale_inv")}
    name = "model.layers.0.self_attn.qkv_proj.weight_scale_inv"
    offsets = {"q_proj": 0, "k_proj": 4, "v_proj": 6}
    assert all(scales[n].view == View(name, offset, (2, 1)) for n, offset in offsets.items())
    boxes = {"q_proj": Box((2, 0), (4, 2)), "v_proj": Box((1, 0), (2, 2))}
    boxes["o_proj"] = Box((0, 2), (2, 4))
    assert {n: scales[n].box for n in boxes} == boxes


def test_experts_have_scales_of_their_own():
    arch = moe("qwen3_moe", num_layers=1, **SIZES)
    found = {r.tensor: r for r in engine(arch).regions if ".experts.1." in r.tensor}
    up = found["model.layers.0.mlp.experts.1.up_proj.weight_scale_inv"]
    name = "model.layers.0.mlp.experts.routed_experts.w13_weight_scale_inv"
    assert up.view == View(name, (2 * 4 + 4) * 2, (2, 1))
    tensors = engine(arch).tensors
    assert tensors["model.layers.0.mlp.gate.weight"].dtype == "bfloat16"


def test_layers_are_left_out():
    names = set(quantised_tensors(ARCH, ["layers.0", "down_proj"]))
    linear = [*(f"self_attn.{n}_proj" for n in "qkvo"), "mlp.gate_proj", "mlp.up_proj"]
    assert names == {f"model.layers.1.{n}.weight" for n in linear}


@pytest.mark.parametrize(
    ("arch", "ignored", "words"),
    [
        (ARCH, ["lm_head"], "'lm_head' names no linear layer"),
        (ARCH, ["layers.1", "q_proj"], r"self_attn.q_proj of layer 0 and not self_attn.k_proj"),
        (ARCH, ["self_attn", "mlp"], "no layer to quantise"),
        (moe(num_layers=1, **SIZES), ["experts.2"], "experts.2.w1 of layer 0 and not .*experts.0"),
    ],
)
def test_names_that_do_not_fit(arch, ignored, words):
    with pytest.raises(LayoutError, match=words):
        engine(arch, ignored=ignored)


def test_parts_that_are_no_blocks_are_refused_with_what_fits():
    wide = architecture(num_layers=1, **SIZES | {"num_heads": 16, "num_kv_heads": 4})
    assert engine(wide, tp=4)
    with pytest.raises(LayoutError, match=r"tensor_parallel = 8: .*of 1 or 2 or 4 fits"):
        engine(wide, tp=8)
    small = architecture(num_layers=1, **SIZES | {"head_size": 32})
    with pytest.raises(LayoutError, match=r"from row 64 of .*qkv_proj.* leave such layers out"):
        engine(arch=architecture(num_layers=1, **SIZES | {"head_size": 16}))
    assert engine(arch=small, ignored=["self_attn"])


@pytest.mark.parametrize("layout", [TrainLayout(), TrainLayout(tp=2), TrainLayout(pp=2, dp=2)])
def test_what_travels_has_half_the_bytes(layout):
    trained = megatron_shard_map(ARCH, layout)
    ranks = tuple((r,) for r in range(layout.num_ranks, layout.num_ranks + 2))
    nodes = [0] * (layout.num_ranks + 2)
    plain, plan = (
        plan_transfer(quantised_source(trained, target), target, nodes)
        for quantization in (None, "fp8")
        for config in [RolloutConfig(quantization=quantization)]
        for target in [rollout_shard_map(config, ARCH, ranks, "bfloat16")]
    )
    linear = 2 * (512 * 256 * 2 + 2 * 256 * 256 + 3 * 256 * 512)
    saved = 2 * linear - (linear + linear // 128**2 * ITEM_BYTES["float32"])
    for (rank,) in ranks:
        assert plain.received_bytes[rank] - plan.received_bytes[rank] == saved


def test_tensors_whose_blocks_are_on_several_ranks():
    odd = architecture(num_layers=1, **SIZES | {"ffn_size": 384})
    names = list(quantised_tensors(odd, ()))
    spread = spread_tensors(megatron_shard_map(odd, TrainLayout(tp=2)), names)
    assert {n.split(".")[-2] for n in spread} == {"gate_proj", "up_proj", "down_proj"}
    assert not spread_tensors(megatron_shard_map(odd, TrainLayout(dp=2)), names)
    # Heads of 64 share a block, and one rank has both.
    narrow = architecture(num_layers=1, **SIZES | {"head_size": 64})
    assert not spread_tensors(megatron_shard_map(narrow, TrainLayout()), names)


def test_a_source_stays_itself_where_nothing_is_quantised():
    trained = megatron_shard_map(ARCH, TrainLayout())
    plain = rollout_shard_map(RolloutConfig(), ARCH, [(0,)], "bfloat16")
    assert quantised_source(trained, plain) is trained


def test_mean_bytes_of_a_weight():
    found = mean_item_bytes(ARCH, [], "bfloat16")
    every = sum(spec.num_bytes for spec in engine().tensors.values())
    assert found == every / ARCH.num_parameters
    assert 1 < found < mean_item_bytes(ARCH, ["layers.0"], "bfloat16") < 2
