import re
from collections import Counter

import pytest

from tests.unit.cluster.requests import ROOT
from tests.unit.cluster.test_launch_configs import MODELS, site_of
from tests.unit.cluster.test_launch_configs import laid_out as launched
from tests.unit.config.trees import parse
from tests.unit.layout.models import PUBLISHED, architecture
from tests.unit.shipped import laid_out
from verl_hpc.config.load import parse_config
from verl_hpc.config.model import Fp8Config
from verl_hpc.hardware.node import GIB, KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from, read_architecture
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import megatron_shard_map
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.changes import remedy
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.overheads import (
    PEER_IN_NODE,
    PEER_OUTSIDE,
    PEERS_OF_EXPERTS,
    PEERS_OUTSIDE,
)
from verl_hpc.planner.memory.phase import PHASES
from verl_hpc.planner.memory.terms import TERMS, term
from verl_hpc.planner.memory.transfer import bucket_bytes, counted_peers, page_locked
from verl_hpc.planner.refit_plan import refit_plans

AWAY = {"offload": {"parameters": True, "gradients": True, "optimizer": True}}
H100 = Hardware(KINDS["H100-80"], 8, host_bytes=2000 * GIB)
LLAMA_405B = architecture_from(PUBLISHED["Llama-3.1-405B"][0])


def shipped(name):
    """The ledger of a configuration on the GPUs and nodes of its launch script."""
    site = site_of(name)
    (size,) = re.findall(
        r"GPUs of (\d+)\s+(?:#\s+)?GB", (ROOT / f"configs/run/{name}.yaml").read_text()
    )
    kind = {"80": "A100-80" if site.gpu is None else site.gpu}[size]
    hardware = Hardware(KINDS[kind], site.ranks_per_node, host_bytes=1000 * GIB)
    return ledger(*launched(name), hardware)


def small(num_ranks=4, hardware=H100, counts_peers=False, **changes):
    config, arch = parse(**changes), architecture(max_positions=4096, dtype="bfloat16")
    layouts = run_layouts(config, arch, num_ranks, ranks_per_node=4)
    return ledger(config, arch, layouts, hardware, counts_peers)


def big(**more):
    """Llama-3.1-405B that trains as TP8 x PP16 and generates with TP8."""
    changes = {
        "parallel": {"tensor_parallel": 8, "pipeline_parallel": 16, "sequence_parallel": True},
        "rollout": {"tensor_parallel": 8, "num_samples": 8, "gpu_memory_utilization": 0.9},
    }
    return parse(**AWAY, **changes | more)


@pytest.mark.parametrize("name", MODELS)
def test_shipped_configurations_fit_with_6_gib_to_spare(name):
    found = shipped(name)
    assert found.fits
    for phase in found.all_phases:
        assert phase.room_bytes >= 6 * GIB, phase.title
        assert phase.host_room_bytes > 0, phase.title


def test_405b_does_not_fit_into_engines_of_8_gpus_of_80_gb_and_what_would_is_named():
    config = big()
    layouts = run_layouts(config, LLAMA_405B, 256)
    mi300x = Hardware(KINDS["MI300X"], 8)
    assert ledger(config, LLAMA_405B, layouts, mi300x).fits
    misfit = ledger(config, LLAMA_405B, layouts, H100).first_misfit
    assert (misfit.name, misfit.of) == ("build", "rollout")
    assert "gpu_memory_utilization = 0.9" in misfit.why_not()
    change = remedy(config, {"actor": LLAMA_405B}, 256, H100)
    assert change.ledger.fits
    assert change.num_ranks == 256
    assert change.config.rollout.tensor_parallel == 8, "of a node"
    assert change.config.rollout.pipeline_parallel == 2
    assert "rollout.pipeline_parallel: 2" in str(change)


def test_recomputing_comes_before_more_gpus():
    config = big(
        batch={"max_tokens_per_micro_batch": 16384},
        rollout={"tensor_parallel": 32, "num_samples": 8, "max_response_tokens": 15872},
    )
    found = remedy(config, {"actor": LLAMA_405B}, 512, H100, most_ranks=1024)
    assert found.settings
    assert found.num_ranks == 512
    assert all("recompute" in name for name in found.settings)


def test_a_run_that_fits_needs_no_change_and_nothing_helps_on_too_small_a_device():
    config, arch = parse(), architecture(max_positions=4096, dtype="bfloat16")
    assert remedy(config, {"actor": arch}, 4, H100).settings == {}
    tiny = Hardware(KINDS["H100-80"], 8, measured_device_bytes=GIB // 2)
    assert remedy(config, {"actor": arch}, 4, tiny) is None


def test_every_term_says_what_it_counts():
    ppo = small(algorithm__advantage={"name": "gae"}, algorithm__kl={"placement": "reward"})
    for phase in (*ppo.all_phases, *small(lora={"rank": 8}).all_phases):
        for name in (*phase.device, *phase.host):
            assert term(name).formula, name
    assert all(TERMS[name].formula for name in TERMS)


def test_phases_come_in_order_with_the_fullest_rank_of_each():
    planned = small(algorithm__advantage={"name": "gae"})
    names = [phase.name for phase in planned.phases]
    assert names == [name for name in PHASES if name in names] == list(PHASES)
    for phase in planned.all_phases:
        others = [
            p.device_bytes
            for rank in range(4)
            for p in planned.of_rank(rank)
            if (p.name, p.of) == (phase.name, phase.of)
        ]
        assert phase.device_bytes == pytest.approx(max(others), rel=1e-4)


CUTS = [
    {"parallel": {"tensor_parallel": 2, "pipeline_parallel": 2}},
    {"parallel": {"pipeline_parallel": 4}, "rollout__pipeline_parallel": 2},
    {"parallel": {"tensor_parallel": 4}, "rollout__tensor_parallel": 2},
    {"placement": {"train": "4-15", "rollout": "0-3"}, "rollout__pipeline_parallel": 2},
    {"placement": {"rollout": "13-15", "train": "0-12"}, "rollout__tensor_parallel": 1},
]


@pytest.mark.parametrize("changes", CUTS)
def test_every_rank_is_in_a_class_by_the_rank_that_stands_for_it(changes):
    found = small(num_ranks=16, **changes)
    layout = found.layouts.train["actor"]
    stages = {r: (r - layout.first_rank) // (layout.tp * layout.dp) for r in layout.grid.ranks()}
    expected = {}
    for rank in range(16):
        engine = found.engine_stages.get(rank)
        expected.setdefault((stages.get(rank, -1), -1 if engine is None else engine), rank)
    assert found.classes == expected


@pytest.mark.parametrize(("kind", "num_ranks"), [("H100-80", 4), ("cpu", 32)])
def test_buckets_are_the_most_that_they_can_be(kind, num_ranks):
    hardware = Hardware(KINDS[kind], 4)
    found = small(num_ranks, hardware, counts_peers=True, batch__size=32)
    update = next(phase for phase in found.phases if phase.name == "update")
    assert update.device["buckets"] == bucket_bytes(kind != "cpu")


def test_channels_to_all_ranks_of_other_nodes_are_counted():
    """On 256 GPUs experts come from many ranks; without a plan the ledger assumes more."""
    config, arch, layouts, hardware = laid_out("grpo_qwen3_235b_a22b")
    plan, nodes = refit_plans(config, arch, layouts, hardware)[-1], nodes_of(256, 8)
    busiest = max(
        len(
            {
                peer
                for hop in plan.hops
                for ends in ((int(r.source), r.target) for r in hop)
                if rank in ends
                for peer in ends
                if nodes[peer] != nodes[rank]
            }
        )
        for rank in range(0, 256, 16)
    )
    of_both = [
        ledger(config, arch, layouts, hardware, counts_peers=counts).of_rank(0)[-1].device
        for counts in (False, True)
    ]
    assumed, counted = (terms["p2p_channels"] - 7 * PEER_IN_NODE for terms in of_both)
    assert busiest * PEER_OUTSIDE <= counted <= assumed == PEERS_OF_EXPERTS * PEER_OUTSIDE


@pytest.mark.parametrize(
    ("model", "num_ranks", "sizes", "rollout_tp", "most"),
    [
        ("Llama-3.1-70B-Instruct", 64, {"tensor_parallel": 8}, 1, (56, PEERS_OUTSIDE)),
        (
            "Qwen3-235B-A22B",
            256,
            {"tensor_parallel": 2, "expert_parallel": 32},
            8,
            (192, PEERS_OF_EXPERTS),
        ),
    ],
)
def test_no_fewer_peers_are_assumed_than_are_counted(model, num_ranks, sizes, rollout_tp, most):
    arch = read_architecture(ROOT / f"configs/model/{model}.json")
    tree = laid_out("ppo_70b")[0].model_dump(mode="json", exclude_unset=True)
    pp = 4 if arch.is_moe else 8
    tree["parallel"] = {"pipeline_parallel": pp, "sequence_parallel": True, **sizes}
    tree["rollout"]["tensor_parallel"] = rollout_tp
    config = parse_config(tree)
    layouts = run_layouts(config, arch, num_ranks, ranks_per_node=8)
    counted, assumed = most
    assert counted_peers(config, arch, layouts, H100) == counted <= assumed


@pytest.mark.parametrize("name", ["ppo_70b", "grpo_32b_fp8", "grpo_8b"])
def test_few_layers_have_the_peers_of_all(name):
    config, arch, layouts, hardware = laid_out(name, whole=True)
    plan, nodes = refit_plans(config, arch, layouts, hardware)[-1], nodes_of(layouts.num_ranks, 8)
    peers = Counter()
    for a, b in {tuple(sorted((int(r.source), r.target))) for hop in plan.hops for r in hop}:
        peers.update([a, b] if nodes[a] != nodes[b] else [])
    assert counted_peers(config, arch, layouts, hardware) == max(peers.values(), default=0)


def test_ranks_that_only_generate_hold_nothing_of_training():
    found = small(placement={"train": "0-1", "rollout": "2-3"})
    mine = {name for phase in found.of_rank(3) for name in phase.device}
    assert not any(name.startswith("actor") for name in mine)
    assert "rollout.kv_cache" in mine
    assert not any("rollout" in name for phase in found.of_rank(0) for name in phase.device)


def test_offloading_frees_the_device_while_it_generates_and_takes_host_memory():
    plain, away = small(), small(offload={"optimizer": True, "gradients": True})
    there, gone = (next(p for p in run.of_rank(0) if p.name == "generate") for run in (plain, away))
    freed = {"actor.gradients", "actor.masters", "actor.moments"}
    assert set(there.device) - set(gone.device) == freed
    assert set(gone.host) - set(there.host) == {"actor.optimizer_copy"}


def test_moments_in_bfloat16_take_half():
    away, lr = {"optimizer": True}, {"lr": 1e-6}
    plain, half = (
        {
            p.name: p
            for p in small(model__dtype="bfloat16", offload=away, optimizer=given).of_rank(0)
        }
        for given in (lr, {**lr, "moments": "bfloat16"})
    )
    moments = half["save"].device["actor.moments"]
    assert plain["save"].device["actor.moments"] == 2 * moments
    assert plain["save"].host["actor.saved"] - half["save"].host["actor.saved"] == moments
    for of, run in ((3, plain), (2, half)):  # masters are as large as moments in bfloat16
        copy = run["generate"].host["actor.optimizer_copy"]
        assert copy == page_locked(of * moments)
    assert plain["update"].device_bytes - half["update"].device_bytes == moments


def test_cores_share_the_memory_of_their_node():
    cores = Hardware(KINDS["cpu"], 4, host_bytes=64 * GIB)
    found = small(hardware=cores, rollout={"engine": "hf", "num_samples": 4, "max_num_seqs": 1})
    phase = found.phases[-1]
    assert phase.room_bytes == 16 * GIB - phase.device_bytes - phase.host_bytes
    assert "context" not in phase.device
    assert found.fits


def test_where_cores_memory_does_not_do_all_of_it_is_named():
    """Device and host are the same memory there, and are counted together."""
    one = small(hardware=Hardware(KINDS["cpu"], 4), rollout={"engine": "hf", "num_samples": 4})
    assert one.fits and one.least_room_bytes is None, "without a known limit everything fits"
    most = max(one.all_phases, key=lambda phase: phase.device_bytes + phase.host_bytes)
    needed = most.device_bytes + most.host_bytes
    tight = Hardware(KINDS["cpu"], 4, host_bytes=4 * (needed - 2**20))
    misfit = small(hardware=tight, rollout={"engine": "hf", "num_samples": 4}).first_misfit
    assert misfit is not None
    said = misfit.why_not()
    assert f"{needed / GIB:.1f} GiB of memory, which has" in said
    assert "process" in said


@pytest.mark.parametrize("away", [False, True])
def test_copies_in_fp8_stay_while_an_engine_generates_unless_parameters_leave(away):
    fp8 = {"recipe": "blockwise", "format": "e4m3"}
    found = small(model={"path": "none", "fp8": fp8}, offload={"parameters": away})
    phases = {phase.name: phase.device for phase in found.of_rank(0)}
    assert phases["update"]["actor.fp8"] > 0
    assert phases["generate"].get("actor.fp8", 0) == (0 if away else phases["update"]["actor.fp8"])


def test_experts_have_copies_in_fp8_like_other_layers():
    config, arch, layouts, hardware = laid_out("grpo_qwen3_30b_a3b")
    fp8 = config.model.model_copy(update={"fp8": Fp8Config(recipe="blockwise")})
    found = ledger(config.model_copy(update={"model": fp8}), arch, layouts, hardware)
    (copies,) = (p.device["actor.fp8"] for p in found.of_rank(0) if p.name == "update")
    matrices = [
        region.box.num_elements
        for region in megatron_shard_map(arch, layouts.train["actor"]).held_by(0)
        if re.search(r"layers.*(proj|experts).*weight$", region.tensor)
    ]
    assert copies == 2 * sum(matrices)  # by rows and by columns


@pytest.mark.parametrize("name", ["grpo_8b", "ppo_70b"])
def test_page_locked_memory_is_rounded_up_and_hardly_more_than_what_it_holds(name):
    whole = (3 * 2**20, 2**28 + 1, 2**29)
    assert [page_locked(n) for n in whole] == [4 * 2**20, 2**28 + 1, 2**29]
    phases = {phase.name: phase for phase in shipped(name).of_rank(0)}
    held = sum(phases["load"].device[f"actor.{part}"] for part in ("masters", "moments"))
    assert held <= phases["generate"].host["actor.optimizer_copy"] < 1.03 * held


def test_more_tokens_or_fewer_recomputed_layers_never_take_less():
    updates = [
        max(p.device_bytes for p in small(**changes).all_phases if p.name == "update")
        for changes in (
            {"parallel": {"recompute": "full"}},
            {"parallel": {"recompute": "selective"}},
            {},
            {"batch__max_tokens_per_micro_batch": 65536},
        )
    ]
    assert updates == sorted(updates)


REFERENCE = {"algorithm__kl": {"placement": "loss"}}


def test_copies_are_there_once_something_was_put_away_and_not_before():
    first, *more = small(**AWAY, **REFERENCE).of_rank(0)
    assert (first.name, first.of) == ("build", "actor")
    assert set(first.host) == {"process"}
    rollout = next(phase for phase in more if phase.of == "rollout")
    assert set(rollout.host) == {"process", "actor.weights_copy", "actor.optimizer_copy"}
    load = next(phase for phase in more if phase.name == "load")
    assert {"actor.weights_copy", "actor.optimizer_copy", "reference.weights"} <= set(load.host)


def test_only_copies_that_stay_are_page_locked_while_an_engine_is_built():
    def copy(**changes):
        phases = small(**changes).of_rank(0)
        return next(p for p in phases if p.of == "rollout").host["actor.optimizer_copy"]

    assert copy() < copy(offload={"optimizer": True})


def per_node(host_gib, kind="H100-80", ranks=8):
    return Hardware(KINDS[kind], ranks, host_bytes=int(host_gib * GIB))


SMALL = architecture(
    num_layers=16,
    hidden_size=2048,
    ffn_size=8192,
    num_heads=16,
    num_kv_heads=8,
    head_size=128,
    vocab_size=32000,
    max_positions=4096,
    dtype="bfloat16",
)


def host_run(host_gib, **changes):
    """A remedy for a run of 1.2 billion parameters on a node of eight GPUs with so little host
    memory, and what it was for."""
    config, hardware = parse(model__dtype="bfloat16", **changes), per_node(host_gib)
    archs = dict.fromkeys(config.role_settings, SMALL)
    before = ledger(config, archs, run_layouts(config, SMALL, 8, archs=archs), hardware)
    return before, remedy(config, archs, 8, hardware)


def test_where_the_copy_of_a_save_is_too_much_the_run_waits_for_it():
    before, found = host_run(70, **AWAY)
    misfits = [phase for phase in before.all_phases if not phase.fits]
    assert [phase.name for phase in misfits] == ["save"]
    assert misfits[0].room_bytes > 0 > misfits[0].host_room_bytes
    assert found.settings == {"checkpoint.background": False}
    assert str(found) == "checkpoint.background: false"


def test_where_copies_of_what_is_offloaded_are_too_much_less_is_offloaded():
    activations = {
        "parallel": {"recompute": "full", "offload_activations": True},
        "batch__max_tokens_per_micro_batch": 65536,
    }
    before, found = host_run(66, **AWAY, **activations, checkpoint__background=False)
    assert before.first_misfit.host_room_bytes < 0 < before.first_misfit.room_bytes
    assert found.ledger.fits
    assert set(found.settings) <= {"offload.optimizer", "offload.parameters"}
    assert False in found.settings.values()


@pytest.mark.parametrize("ranks", [2, 8])
def test_no_change_has_tensor_parallelism_across_nodes(ranks):
    config = parse(model__dtype="bfloat16", rollout={"engine": "vllm", "num_samples": 4})
    arch = architecture_from(MODELS["ppo_70b"])
    hardware = per_node(2000, ranks=ranks)
    found = remedy(config, {"actor": arch}, 64, hardware, most_ranks=512)
    assert found is not None and found.ledger.fits
    assert 1 < found.config.parallel.tensor_parallel <= ranks
    assert found.config.rollout.tensor_parallel <= ranks


LORA = {"lora": {"rank": 8}, "algorithm__advantage": {"name": "gae"}, "model__dtype": "bfloat16"}
APART = {"lora": {"rank": 8, "share_base": False}}


def terms(phase, of="", **changes):
    """Bytes of 1.2 billion parameters on the first of four ranks, by device and host memory."""
    config = parse(**LORA | changes)
    layouts = run_layouts(config, SMALL, 4)
    found = ledger(config, SMALL, layouts, H100).of_rank(0)
    (one,) = (p for p in found if (p.name, p.of) == (phase, of))
    return one.device, one.host


@pytest.mark.parametrize("parallel", [{}, {"tensor_parallel": 2}, {"pipeline_parallel": 2}])
def test_a_base_that_roles_share_is_counted_once(parallel):
    once, _ = terms("update", "critic", parallel=parallel)
    apart, _ = terms("update", "critic", parallel=parallel, **APART)
    base = apart["critic.weights"] - once["critic.weights"]
    if not parallel:
        assert base == 2 * (SMALL.num_parameters - 32000 * 2048), "all but the output layer"
    assert base > 10 * once["critic.weights"] > 0
    assert base <= once["actor.weights"] == apart["actor.weights"]
    assert once == apart | {"critic.weights": once["critic.weights"]}


def test_a_shared_base_is_offloaded_once_and_there_twice_while_the_second_engine_is_built():
    kept, copies = terms("generate", **AWAY)
    _, both = terms("generate", **AWAY, **APART)
    assert both["critic.weights_copy"] > 10 * copies["critic.weights_copy"] > 0
    assert both["actor.weights_copy"] == copies["actor.weights_copy"]
    assert not {"actor.weights", "critic.weights"} & kept.keys()
    built, alone = terms("build", "critic")[0], terms("build", "critic", **APART)[0]
    assert sum(built.values()) == sum(alone.values())
