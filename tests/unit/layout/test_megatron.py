"""Megatron-core's memory, built tensor by tensor with numpy, against the shard map."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layout.models import (
    EXPERT_NAMES,
    LATENT,
    LLAMA_31_405B,
    architecture,
    deepseek,
    moe,
)
from tests.unit.layout.simulate import (
    check_memory,
    filled_memory,
    logical_values,
    padded_rows,
    split,
)
from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map, padded_vocab
from verl_hpc.layout.shard_map import shard_sizes
from verl_hpc.layout.vllm import vllm_shard_map


def vocabulary(table, tp, t, multiple):
    return padded_rows(table, np.lcm(multiple, tp), tp, t)


def attention(arch, tp, t, values, ours, theirs):
    """Per key/value group its query heads, its key, its value; all split by rows."""
    parameters = {}
    for kind in ["weight", "bias"][: 1 + arch.qkv_bias]:
        q, k, v = (np.split(values[f"{theirs}.{p}_proj.{kind}"], arch.num_kv_heads) for p in "qkv")
        groups = [part for group in zip(q, k, v, strict=True) for part in group]
        parameters[f"{ours}.linear_qkv.{kind}"] = split(np.concatenate(groups), tp, t)
    parameters[f"{ours}.linear_proj.weight"] = split(
        values[f"{theirs}.o_proj.weight"], tp, t, axis=1
    )
    if arch.qk_norm:
        parameters[f"{ours}.q_layernorm.weight"] = values[f"{theirs}.q_norm.weight"]
        parameters[f"{ours}.k_layernorm.weight"] = values[f"{theirs}.k_norm.weight"]
    return parameters


def latent_attention(arch, tp, t, values, ours, theirs, backend):
    """Heads are split by rows; every rank has the whole down projections."""
    down = ["q_a_proj", "kv_a_proj_with_mqa"] if arch.latent.q_rank else ["kv_a_proj_with_mqa"]
    up = ["q_b_proj" if arch.latent.q_rank else "q_proj", "kv_b_proj"]
    norms = ["q_a_layernorm", "kv_a_layernorm"][-len(down) :]
    own = {
        "q_proj": "linear_q_proj.weight",
        "q_a_proj": "linear_q_down_proj.weight",
        "q_b_proj": "linear_q_up_proj.weight",
        "kv_a_proj_with_mqa": "linear_kv_down_proj.weight",
        "kv_b_proj": "linear_kv_up_proj.weight",
        "q_a_layernorm": "q_layernorm.weight",
        "kv_a_layernorm": "kv_layernorm.weight",
    }
    if backend == "transformer_engine":
        own["q_a_layernorm"] = "linear_q_up_proj.layer_norm_weight"
        own["kv_a_layernorm"] = "linear_kv_up_proj.layer_norm_weight"
    parts = dict.fromkeys(up, tp) | dict.fromkeys([*down, *norms], 1)
    parameters = {
        f"{ours}.{own[name]}": split(values[f"{theirs}.{name}.weight"], n, t % n)
        for name, n in parts.items()
    }
    output = split(values[f"{theirs}.o_proj.weight"], tp, t, axis=1)
    return parameters | {f"{ours}.linear_proj.weight": output}


def swiglu(ours, gate, up, down, parts, part):
    """Rows of the gate over rows of the up projection; columns of the down projection."""
    return {
        f"{ours}.linear_fc1.weight": np.concatenate([split(m, parts, part) for m in (gate, up)]),
        f"{ours}.linear_fc2.weight": split(down, parts, part, axis=1),
    }


def experts(arch, layout, place, values, ours, theirs):
    """Within a stage, ranks count expert-tensor-parallel shards first, then expert shares."""
    names, etp, ep = EXPERT_NAMES[arch.family], layout.etp, layout.ep
    per_rank = arch.num_experts // ep
    parameters = {f"{ours}.router.weight": values[f"{theirs}.{names.router}"]}
    for local in range(per_rank):
        base = f"{theirs}.{names.experts}.{place // etp % ep * per_rank + local}"
        matrices = (values[f"{base}.{n}.weight"] for n in (names.gate, names.up, names.down))
        parameters |= swiglu(f"{ours}.experts.local_experts.{local}", *matrices, etp, place % etp)
    if arch.shared_ffn_size:
        base, t = f"{theirs}.mlp.shared_experts", place % layout.tp
        matrices = (values[f"{base}.{n}_proj.weight"] for n in ("gate", "up", "down"))
        parameters |= swiglu(f"{ours}.shared_experts", *matrices, layout.tp, t)
    if arch.router.has_bias:
        bias = values[f"{theirs}.mlp.gate.e_score_correction_bias"]
        parameters[f"{ours}.router.expert_bias"] = bias
    return parameters


def respelt(name, backend):
    """Transformer Engine has a rank's experts as parameters of one module."""
    if backend == "local":
        return name
    return re.sub(r"local_experts\.(\d+)\.(linear_fc\d\.weight)", r"\2\1", name)


def decoder_layer(arch, layout, rank, values, ours, theirs, backend):
    t, place = rank % layout.tp, rank % (layout.tp * layout.dp)
    parameters = {
        f"{ours}.input_layernorm.weight": values[f"{theirs}.input_layernorm.weight"],
        f"{ours}.pre_mlp_layernorm.weight": values[f"{theirs}.post_attention_layernorm.weight"],
    }
    names = f"{ours}.self_attention", f"{theirs}.self_attn"
    if arch.latent:
        parameters |= latent_attention(arch, layout.tp, t, values, *names, backend)
    else:
        parameters |= attention(arch, layout.tp, t, values, *names)
    if arch.is_moe and int(theirs.split(".")[-1]) >= arch.num_dense_layers:
        parameters |= experts(arch, layout, place, values, f"{ours}.mlp", theirs)
        return {respelt(n, backend): value for n, value in parameters.items()}
    if backend == "transformer_engine":
        norm = parameters.pop(f"{ours}.pre_mlp_layernorm.weight")
        parameters[f"{ours}.mlp.linear_fc1.layer_norm_weight"] = norm
    matrices = (values[f"{theirs}.mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
    return parameters | swiglu(f"{ours}.mlp", *matrices, layout.tp, t)


def output_layer(arch, layout, rank, values, multiple, head):
    if head in HEAD_TENSORS:
        return {"output_layer.weight": values[HEAD_TENSORS[head]]}
    if arch.tied_embeddings and layout.pp * layout.vpp == 1:
        return {}
    table = values["model.embed_tokens.weight" if arch.tied_embeddings else "lm_head.weight"]
    return {"output_layer.weight": vocabulary(table, layout.tp, rank % layout.tp, multiple)}


def local_tensors(arch, layout, rank, values, multiple, head="language_model", backend="local"):
    """What one rank allocates and loads; layers must divide evenly over the virtual stages."""
    stage = rank // (layout.tp * layout.dp)
    parameters = {}
    if stage == 0:
        table = values["model.embed_tokens.weight"]
        name = "chunk0.embedding.word_embeddings.weight"
        parameters[name] = vocabulary(table, layout.tp, rank % layout.tp, multiple)
    per_stage = arch.num_layers // (layout.pp * layout.vpp)
    for chunk in range(layout.vpp):
        for local in range(per_stage):
            ours = f"chunk{chunk}.decoder.layers.{local}"
            theirs = f"model.layers.{(chunk * layout.pp + stage) * per_stage + local}"
            parameters |= decoder_layer(arch, layout, rank, values, ours, theirs, backend)
    if stage == layout.pp - 1:
        end = f"chunk{layout.vpp - 1}"
        parameters[f"{end}.decoder.final_layernorm.weight"] = values["model.norm.weight"]
        output = output_layer(arch, layout, rank, values, multiple, head)
        parameters |= {f"{end}.{name}": value for name, value in output.items()}
    return parameters


def check(arch, layout, multiple=8, **options):
    """The map's memories are those of the ranks, element for element; padding stays empty."""
    shard_map = megatron_shard_map(arch, layout, vocab_multiple=multiple, **options)
    memory, values = filled_memory(shard_map), logical_values(shard_map)
    assert shard_map.holders == layout.grid.ranks()
    for rank in range(layout.num_ranks):
        check_memory(memory[rank], local_tensors(arch, layout, rank, values, multiple, **options))


LAYOUTS = [
    TrainLayout(),
    TrainLayout(tp=2),
    TrainLayout(pp=2),
    TrainLayout(tp=4, dp=2),
    TrainLayout(tp=2, pp=2, dp=2),
    TrainLayout(tp=2, pp=2, vpp=2),
    TrainLayout(pp=4, dp=3),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": True},
        {"family": "qwen2"},
        {"family": "qwen3", "tied_embeddings": True},
        {"num_kv_heads": 8},
        {"num_kv_heads": 1},
    ],
    ids=["llama", "tied", "qwen2", "qwen3", "multi-head", "multi-query"],
)
def test_memory_of_every_rank(layout, changes):
    check(architecture(**changes), layout)


@pytest.mark.parametrize("head", HEAD_TENSORS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", [TrainLayout(tp=2), TrainLayout(pp=2), TrainLayout(tp=2, pp=2)])
def test_memory_of_a_model_that_ends_in_one_number(layout, tied, head):
    check(architecture(tied_embeddings=tied), layout, head=head)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("ep, etp", [(1, 1), (2, 1), (4, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("pp", [1, 2])
def test_memory_of_experts(family, ep, etp, pp):
    check(moe(family), TrainLayout(tp=2, dp=2, pp=pp, ep=ep, etp=etp))


@pytest.mark.parametrize("ep, etp", [(1, 1), (2, 1), (4, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("pp, vpp", [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("q_rank", [None, 8])
def test_memory_of_latent_attention_and_layers_of_two_kinds(ep, etp, pp, vpp, q_rank):
    arch = deepseek(latent=replace(LATENT, q_rank=q_rank))
    check(arch, TrainLayout(tp=2, dp=2, pp=pp, vpp=vpp, ep=ep, etp=etp))


@pytest.mark.parametrize("layout", [TrainLayout(tp=4), TrainLayout(tp=2, dp=2, pp=2)], ids=str)
@pytest.mark.parametrize("q_rank", [None, 8])
def test_memory_of_latent_attention_in_transformer_engine(layout, q_rank):
    arch = deepseek(latent=replace(LATENT, q_rank=q_rank))
    check(arch, layout, backend="transformer_engine")


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_more_ranks_than_key_value_heads(tp):
    """A rank then holds part of a group: rows of q alone, or the end of q with k and v."""
    check(architecture(num_heads=8, num_kv_heads=2, head_size=4), TrainLayout(tp=tp))


def test_a_rank_of_padding_alone_holds_no_vocabulary():
    arch = architecture(vocab_size=9, num_layers=1)
    check(arch, TrainLayout(tp=4), multiple=8)
    shard_map = megatron_shard_map(arch, TrainLayout(tp=4), vocab_multiple=64)
    holding = {h for r in shard_map.by_tensor["lm_head.weight"] for h in r.holders}
    assert holding == {0}


@pytest.mark.parametrize("arch", [architecture(family="qwen3"), moe()], ids=["dense", "experts"])
def test_transformer_engine_only_spells_differently(arch):
    fused_norms = {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight"}
    if not arch.is_moe:
        fused_norms["pre_mlp_layernorm.weight"] = "mlp.linear_fc1.layer_norm_weight"

    def spelt(name):
        for ours, theirs in fused_norms.items():
            name = name.replace(ours, theirs)
        return respelt(name, "transformer_engine")

    layout = TrainLayout(tp=2, pp=2, ep=2 if arch.is_moe else 1)
    local = megatron_shard_map(arch, layout)
    fused = megatron_shard_map(arch, layout, backend="transformer_engine")
    assert [spelt(r.view.name) for r in local.regions] == [r.view.name for r in fused.regions]
    for ours, theirs in zip(local.regions, fused.regions, strict=True):
        view = replace(ours.view, name=theirs.view.name)
        assert replace(ours, view=view) == theirs


def test_the_map_may_start_at_any_rank_and_travel_in_any_type():
    layout = TrainLayout(tp=2, first_rank=6)
    shard_map = megatron_shard_map(architecture(), layout, dtype="bfloat16")
    assert shard_map.holders == (6, 7)
    assert {spec.dtype for spec in shard_map.tensors.values()} == {"bfloat16"}


def test_a_bias_of_a_router_travels_in_float32():
    arch = deepseek(num_layers=2)
    for shard_map in (
        megatron_shard_map(arch, TrainLayout(tp=2), dtype="bfloat16"),
        vllm_shard_map(arch, [(0, 1)], "bfloat16"),
    ):
        kinds = {name: spec.dtype for name, spec in shard_map.tensors.items()}
        bias = "model.layers.1.mlp.gate.e_score_correction_bias"
        assert kinds.pop(bias) == "float32" and arch.buffers == {bias}
        assert set(kinds.values()) == {"bfloat16"}


def test_bytes_of_llama_405b_on_4096_ranks():
    """Every rank of a middle stage holds 8 layers over 8 ranks, norms whole."""
    arch = architecture_from(LLAMA_31_405B)
    sizes = shard_sizes(megatron_shard_map(arch, TrainLayout(tp=8, pp=16, dp=32)))
    hidden, ffn, q, kv = 16384, 53248, 16384, 1024
    layer = ((q + 2 * kv) * hidden + hidden * q + 3 * hidden * ffn) // 8 + 2 * hidden
    vocabulary = 128256 // 8 * hidden
    assert (len(sizes), sizes[0]) == (4096, 2 * (7 * layer + vocabulary))
    assert sizes[8 * 32 * 7 + 3] == 2 * 8 * layer
    assert sizes[4095] == 2 * (7 * layer + vocabulary + hidden)


@given(st.integers(1, 300), st.integers(1, 12), st.sampled_from([1, 8, 64]))
def test_vocabulary_is_padded_to_the_next_common_multiple(vocab, tp, multiple):
    fitting = [n for n in range(vocab, vocab + multiple * tp) if n % tp == 0 and n % multiple == 0]
    assert padded_vocab(vocab, tp, multiple) == fitting[0]


SMALL = architecture(ffn_size=6)
WIDE = architecture(num_heads=12, num_kv_heads=4, ffn_size=12)


@pytest.mark.parametrize(
    "arch, layout, words",
    [
        (architecture(), TrainLayout(tp=3), ["tensor_parallel = 3", "8 attention heads"]),
        (SMALL, TrainLayout(tp=4), ["tensor_parallel = 4", "6 ffn size", "divisor of 6"]),
        (WIDE, TrainLayout(tp=6), ["tensor_parallel = 6", "4 key/value heads"]),
        (
            architecture(num_kv_heads=1),
            TrainLayout(tp=8),
            ["tensor_parallel = 8", "20 rows", "query, key and value", "divisor of 4"],
        ),
        (architecture(), TrainLayout(ep=2), ["expert_parallel = 2", "no experts"]),
        (deepseek(), TrainLayout(tp=3), ["tensor_parallel = 3", "8 attention heads"]),
        (
            deepseek(dense_ffn_size=6),
            TrainLayout(tp=4, dp=1),
            ["tensor_parallel = 4", "6 ffn size of dense layers"],
        ),
        (
            deepseek(shared_ffn_size=6),
            TrainLayout(tp=4),
            ["tensor_parallel = 4", "6 ffn size of shared experts"],
        ),
        (moe(), TrainLayout(dp=3, ep=3), ["expert_parallel = 3", "4 experts"]),
        (moe(), TrainLayout(tp=8, etp=3), ["expert_tensor_parallel = 3", "8 ffn size"]),
        (moe("gpt_oss"), TrainLayout(tp=2, etp=2), ["expert_tensor_parallel = 2", "have biases"]),
        (
            moe(),
            TrainLayout(tp=2, ep=4),
            ["expert_parallel 4 x expert_tensor_parallel 1", "tensor_parallel 2 x data_parallel 1"],
        ),
        (architecture(), TrainLayout(pp=7), ["4 layers", "pipeline_parallel = 7"]),
    ],
    ids=lambda value: str(value) if isinstance(value, TrainLayout) else "",
)
def test_sizes_that_do_not_divide_are_named(arch, layout, words):
    with pytest.raises(LayoutError) as caught:
        megatron_shard_map(arch, layout)
    assert [word for word in words if word not in str(caught.value)] == []
