"""Layer tables: what every one must be like, and that a table alone makes a family."""

from itertools import groupby

import pytest

from tests.unit.layout.models import architecture
from verl_hpc.layout.families import FAMILIES, Family
from verl_hpc.layout.layer_table import LayerTable, Row, by_parameter
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.vllm import vllm_shard_map

ENGINES = ("local", "transformer_engine", "vllm")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_is_one_row_or_neighbours_in_one_parameter(family):
    table = architecture(family=family).layer_table
    names = [row.name for row in table.rows + table.expert_rows]
    assert table.is_fused == (len(set(names)) < len(names))
    assert [name for name, _ in groupby(names)] == list(dict.fromkeys(names))
    for engine in ENGINES:
        for name in names:
            parts = [row for row in table.rows if row.name == name]
            assert len({row.parameter(engine) for row in parts}) <= 1
    assert not any("{}" in name for name in (row.name for row in table.rows))
    assert all("{}" in row.megatron for row in table.expert_rows)
    assert all(("{}" in row.name) != row.is_stacked for row in table.expert_rows)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_are_fused_are_split_alike(family, engine):
    arch = architecture(family=family, num_experts=4)
    dense = FAMILIES[family].dense_table.where(arch.has)
    for rows in (arch.layer_table.rows, arch.layer_table.expert_rows, dense.rows):
        for parameter, members in by_parameter(rows, engine).items():
            splits = {
                row.split.removeprefix("query_").removeprefix("key_value_") for row in members
            }
            assert len(splits) == 1, parameter
            assert len({arch.shape(row)[1:] for row in members}) == 1, parameter
            assert len(members) == 1 or "columns" not in splits, parameter


def test_a_family_with_other_norms_and_biases_is_one_table(monkeypatch):
    """Norms after the attention and after the MLP, and a bias on the up projection."""
    after = [
        Row(f"post_{block}_norm.weight", ("hidden_size",), "whole", f"post_{block}_norm.weight")
        for block in ("attention", "mlp")
    ]
    bias = Row("mlp.up_bias", ("ffn_size",), "rows", "mlp.up_bias")
    table = LayerTable((*FAMILIES["llama"].table.rows, *after, bias))
    monkeypatch.setitem(FAMILIES, "sandwich", Family(table))
    arch = architecture(family="sandwich")
    source = megatron_shard_map(arch, TrainLayout(tp=2, pp=2))
    target = vllm_shard_map(arch, [(0, 1), (2, 3)])
    added = {f"model.layers.3.{row.name}": arch.shape(row) for row in (*after, bias)}
    tensors = arch.tensors()
    assert {name: tensors[name].shape for name in added} == added
    for name, shape in added.items():
        for shard_map in (source, target):
            held = shard_map.by_tensor[name]
            assert sum(region.box.num_elements for region in held) == shape[0]
    plan_transfer(source, target, [0] * 4)


def test_one_engine_may_fuse_what_another_keeps_apart(monkeypatch):
    """Latent attention: vLLM has both down projections in one parameter, on every rank."""
    rows = tuple(
        Row(f"self_attn.{n}", (size, "hidden_size"), "whole", f"down_{n}", vllm="self_attn.fused")
        for n, size in (("q_a", "q_size"), ("kv_a", "kv_size"))
    )
    monkeypatch.setitem(FAMILIES, "latent", Family(LayerTable(rows)))
    arch = architecture(family="latent", num_layers=1)
    held = [r for r in vllm_shard_map(arch, [(0, 1)]).regions if r.view.name.endswith("fused")]
    assert [(r.box.stop[0], r.view.offset, r.holders) for r in held] == [
        (arch.q_size, 0, (0, 1)),
        (arch.kv_size, arch.q_size * arch.hidden_size, (0, 1)),
    ]
    apart = {r.view.name: r.view for r in megatron_shard_map(arch, TrainLayout(tp=2)).regions}
    for name in ("q_a", "kv_a"):
        assert apart[f"chunk0.decoder.layers.0.down_{name}"].offset == 0


def test_parts_of_one_tensor_follow_each_other():
    """A fused projection is cut by heads for Megatron-core and for vLLM, and is whole on disk."""
    arch = architecture(family="phi3", num_layers=1)
    q, kv, width = arch.q_size, arch.kv_size, arch.hidden_size
    name = "model.layers.0.self_attn.qkv_proj.weight"
    assert arch.tensors()[name].shape == (q + 2 * kv, width)
    held = vllm_shard_map(arch, [(0, 1)]).by_tensor[name]
    second = [(r.box.start[0], r.box.stop[0], r.view.offset) for r in held if r.holders == (1,)]
    assert second == [
        (q // 2, q, 0),
        (q + kv // 2, q + kv, q // 2 * width),
        (q + kv + kv // 2, q + 2 * kv, (q + kv) // 2 * width),
    ]
    group = arch.num_heads // arch.num_kv_heads * arch.head_size
    held = megatron_shard_map(arch, TrainLayout(tp=arch.num_kv_heads)).by_tensor[name]
    last = [(r.box.start[0], r.box.stop[0]) for r in held if r.holders == (3,)]
    size = arch.head_size
    assert last == [(q - group, q), (q + kv - size, q + kv), (q + 2 * kv - size, q + 2 * kv)]
    gate_up = "model.layers.0.mlp.gate_up_proj.weight"
    held = megatron_shard_map(arch, TrainLayout(tp=2)).by_tensor[gate_up]
    f = arch.ffn_size
    assert [(r.box.start[0], r.box.stop[0]) for r in held if r.holders == (0,)] == [
        (0, f // 2),
        (f, f + f // 2),
    ]
