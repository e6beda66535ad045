"""A map is compared with the parameters an engine has: names, shapes and types, all at once."""

import pytest
import torch

from tests.unit.layout.models import architecture, moe
from verl_hpc.errors import ModelError
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.vllm import vllm_shard_map

SHAPES = {
    "model.embed_tokens.weight": (128, 6),
    "model.layers.0.input_layernorm.weight": (6,),
    "model.layers.0.post_attention_layernorm.weight": (6,),
    "model.layers.0.self_attn.qkv_proj.weight": (32, 6),
    "model.layers.0.self_attn.o_proj.weight": (6, 16),
    "model.layers.0.mlp.gate_up_proj.weight": (16, 6),
    "model.layers.0.mlp.down_proj.weight": (6, 8),
    "model.norm.weight": (6,),
    "lm_head.weight": (128, 6),
}


def check(changes=None, shapes=SHAPES, rank=0, replicas=((0,),), arch=None):
    """The map of one layer of Llama against parameters of `shapes`, some of them changed."""
    shard_map = vllm_shard_map(arch or architecture(num_layers=1), replicas)
    parameters = {name: torch.empty(shape) for name, shape in shapes.items()}
    for name, tensor in (changes or {}).items():
        if tensor is None:
            del parameters[name]
        else:
            parameters[name] = tensor
    check_parameters(shard_map, rank, parameters, "the engine")


def refused(changes, **more):
    with pytest.raises(ModelError, match="^the engine has other parameters") as error:
        check(changes, **more)
    return str(error.value).splitlines()[1:]


def test_what_fits():
    check()


def test_a_name_that_differs_is_missing_and_extra():
    lines = refused({"model.norm.weight": None, "model.final_norm.weight": torch.empty(6)})
    assert lines == [
        "  model.norm.weight: in the map, and not in the engine",
        "  model.final_norm.weight: in the engine ([6] of float32), and not in the map",
    ]


def test_everything_is_listed_in_one_error():
    lines = refused(
        {
            "model.norm.weight": torch.empty(7),
            "model.layers.0.mlp.down_proj.weight": torch.empty(8, 6),
            "model.layers.0.self_attn.o_proj.weight": torch.empty(6, 16, dtype=torch.bfloat16),
            "model.layers.0.self_attn.qkv_proj.weight": torch.empty(24, 6),
        }
    )
    attention, down = "model.layers.0.self_attn", "model.layers.0.mlp.down_proj.weight"
    projections = " and ".join(
        f"{attention}.{n}_proj.weight[{rows}, 6]" for n, rows in (("q", 16), ("k", 8), ("v", 8))
    )
    assert [line.strip() for line in lines] == [
        f"{attention}.qkv_proj.weight: the engine has [24, 6] of float32, the map {projections}",
        f"{attention}.o_proj.weight: the engine has [6, 16] of bfloat16, the map float32",
        f"{down}: the engine has [8, 6] of float32, the map {down}[6, 8]",
        "model.norm.weight: the engine has [7] of float32, the map model.norm.weight[6]",
    ]


def test_a_long_list_is_cut():
    lines = refused({f"extra.{i}": torch.empty(1) for i in range(50)})
    assert len(lines) == 21 and lines[-1] == "and 30 more".rjust(13)


def test_memory_that_is_not_in_order():
    (line,) = refused({"model.layers.0.mlp.down_proj.weight": torch.empty(8, 6).T})
    assert line.startswith("  model.layers.0.mlp.down_proj.weight: the engine has [6, 8]")


def test_only_the_vocabulary_is_padded():
    """With tensor parallelism 4 each rank has 32 of 128 rows; the last has nothing but padding."""
    arch = architecture(num_layers=1, num_heads=8, num_kv_heads=4)
    # A quarter of the longer dimension, which is not that of the hidden state.
    shapes = {n: tuple(s // 4 if s != 6 else s for s in shape) for n, shape in SHAPES.items()}
    for rank in range(4):
        check(shapes=shapes, rank=rank, replicas=((0, 1, 2, 3),), arch=arch)
    longer = shapes | {"model.norm.weight": (8,)}
    refused({}, shapes=longer, replicas=((0, 1, 2, 3),), arch=arch)
    shorter = shapes | {"lm_head.weight": (16, 6)}
    refused({}, shapes=shorter, replicas=((0, 1, 2, 3),), arch=arch)


def test_stacked_experts():
    arch = moe(num_layers=1)
    base = "model.layers.0.block_sparse_moe"
    shapes = {n: s for n, s in SHAPES.items() if ".mlp." not in n} | {
        f"{base}.gate.weight": (4, 6),
        f"{base}.experts.routed_experts.w13_weight": (4, 16, 6),
        f"{base}.experts.routed_experts.w2_weight": (4, 6, 8),
    }
    check(shapes=shapes, arch=arch)
    swapped = shapes | {f"{base}.experts.routed_experts.w2_weight": (4, 8, 6)}
    assert len(refused({}, shapes=swapped, arch=arch)) == 1


def test_types_are_those_of_the_map():
    layout = TrainLayout()
    shard_map = megatron_shard_map(architecture(num_layers=1), layout, dtype="bfloat16")
    parameters = {r.view.name: torch.empty(0) for r in shard_map.regions}
    with pytest.raises(ModelError, match="of float32, the map bfloat16"):
        check_parameters(shard_map, 0, parameters, "Megatron-core")
