"""The bound of memory is never above the ledger, and near it."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import PUBLISHED, architecture
from verl_hpc.errors import LayoutError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.megatron import TrainLayout, check_megatron_layout
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.rollout import rollout_shape
from verl_hpc.planner.search.cuts import Cut
from verl_hpc.planner.search.emit import separated
from verl_hpc.planner.search.memory_bound import MemoryBound
from verl_hpc.planner.search.searched_run import SearchedRun

PER_NODE = 8
MODELS = (
    architecture(max_positions=8192),
    architecture(num_layers=5, hidden_size=1000, ffn_size=3000, tied_embeddings=True),
    architecture(num_layers=8, hidden_size=2048, ffn_size=8192, head_size=128, vocab_size=50001),
    architecture_from(PUBLISHED["Llama-3.1-8B"][0]),
    architecture_from(PUBLISHED["Llama-3.1-70B"][0]),
)


def parallel(cut):
    """The section, with the replicas that it must give."""
    return cut.settings(parse().parallel) | {"data_parallel": cut.layout.dp}


def bound_of(config, archs, hardware, num_ranks, cuts, tp, sharing):
    """Of all roles on the same ranks."""
    bound = MemoryBound(
        SearchedRun(config, separated(config), archs, hardware, num_ranks, spare_bytes=0)
    )
    found = bound.outside(num_ranks, has_roles=True)
    for name, cut in cuts.items():
        found = found.plus(bound.role(name, cut, config.generates, sharing.count(name)))
    if not config.generates:
        return found
    engine = bound.engine(
        rollout_shape(config, archs["actor"], hardware.kind.is_gpu, tp), beside_roles=True
    )
    return None if engine is None else found.plus(engine)


def rank_phases(config, archs, hardware, num_ranks):
    """Of the first rank, and of the one that stands for the last stages."""
    layouts = run_layouts(
        config, archs["actor"], num_ranks, archs=archs, ranks_per_node=hardware.ranks_per_node
    )
    found = ledger(config, archs, layouts, hardware)
    ranks = list(found.classes.values())
    return [found.of_rank(rank) for rank in (0, max(ranks))]


@st.composite
def cuts(draw, arch, num_ranks):
    tp = draw(st.sampled_from([n for n in (1, 2, 4, 8) if num_ranks % n == 0]))
    pp = draw(st.sampled_from([n for n in (1, 2, 4, 8) if num_ranks // tp % n == 0]))
    vpp = draw(st.sampled_from([1, 2] if pp > 1 else [1]))
    layout = TrainLayout(tp=tp, pp=pp, vpp=vpp, dp=num_ranks // (tp * pp))
    try:
        check_megatron_layout(arch, layout)
    except LayoutError:
        assume(False)
    return Cut(layout, draw(st.sampled_from(["none", "selective", "full"])))


@given(data=st.data())
def test_it_is_never_above_the_ledger(data):
    draw = data.draw
    arch = replace(draw(st.sampled_from(MODELS)), max_positions=8192)
    num_ranks = draw(st.sampled_from([1, 2, 4, 8, 16, 48, 64]))
    on_cores = draw(st.booleans())
    kind, host = KINDS["cpu" if on_cores else "H100-80"], 8 * 2**40
    hardware = Hardware(kind, PER_NODE, host_bytes=host)
    names = ("parameters", "gradients", "optimizer")
    recipe = draw(st.sampled_from(["grpo", "ppo", "sft"]))
    kept = {
        "grpo": {"algorithm__kl": {"placement": "loss"}},
        "ppo": {**GAE, "algorithm__kl": {"placement": "reward"}},
        "sft": {"recipe": "sft", "rollout__num_samples": 1},
    }[recipe]
    own_reference = recipe != "sft" and draw(st.booleans())
    changes = kept | {
        "model__dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "offload": {name: draw(st.booleans()) for name in names},
        "batch__size": draw(st.sampled_from([8, 64])),
        "batch__max_tokens_per_micro_batch": draw(st.sampled_from([512, 8192])),
        "checkpoint__background": draw(st.booleans()),
        "lora": draw(st.sampled_from([None, None, {}, {"rank": 64}])),
        "rollout__kv_cache_gib": 1.0,
        "rollout__max_prompt_tokens": 128,
        "rollout__max_response_tokens": 384,
    }
    if own_reference:
        changes["roles"] = {"reference": {"path": "models/other"}}
    roles = list(parse(**changes).role_settings)
    sharing = [] if own_reference or recipe == "sft" else ["actor"]
    own = [name for name in roles if name != "reference" or own_reference]
    chosen = {name: draw(cuts(arch, num_ranks)) for name in own}
    if "critic" in chosen and draw(st.booleans()):
        chosen["critic"] = chosen["actor"]  # so that adapters share their base
    if own_reference:
        chosen["reference"] = replace(chosen["reference"], recompute="none")
    sections = {
        name: changes.get("roles", {}).get(name, {}) | {"parallel": parallel(cut)}
        for name, cut in chosen.items()
        if name != "actor"
    }
    tp = draw(st.sampled_from([n for n in (1, 2) if num_ranks % n == 0]))
    config = parse(
        **(changes | {"roles": sections, "rollout__tensor_parallel": tp}),
        parallel=parallel(chosen["actor"]),
    )
    archs = dict.fromkeys(roles, arch)
    found = bound_of(config, archs, hardware, num_ranks, chosen, tp, sharing)
    assert found is not None
    for rank, phases in zip(found, rank_phases(config, archs, hardware, num_ranks), strict=True):
        assert rank.device <= max(p.device_bytes + p.host_bytes * p.is_shared for p in phases)
        assert on_cores or rank.host <= max(phase.host_bytes for phase in phases)


@pytest.mark.parametrize(
    ("model", "num_gpus", "sizes"),
    [("8B", 16, (2, 1)), ("70B", 128, (8, 4)), ("70B", 64, (4, 8)), ("70B", 64, (8, 4))],
)
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_it_is_within_two_percent_of_the_ledger(model, num_gpus, sizes, recompute):
    tp, pp = sizes
    arch = replace(architecture_from(PUBLISHED[f"Llama-3.1-{model}"][0]), max_positions=8192)
    cut = Cut(TrainLayout(tp=tp, pp=pp, dp=num_gpus // (tp * pp)), recompute)
    config = parse(
        parallel=parallel(cut),
        rollout__tensor_parallel=tp,
        rollout__kv_cache_gib=4.0,
        offload={"parameters": True, "gradients": True, "optimizer": True},
        batch__max_tokens_per_micro_batch=4096,
    )
    archs, hardware = dict.fromkeys(config.role_settings, arch), Hardware(KINDS["H100-80"], 8)
    found = bound_of(config, archs, hardware, num_gpus, {"actor": cut}, tp, [])
    for rank, phases in zip(found, rank_phases(config, archs, hardware, num_gpus), strict=True):
        assert rank.device == pytest.approx(max(p.device_bytes for p in phases), rel=0.02)
