"""Either training engine to vLLM, every pair of layouts, every family: the weights arrive bit for
bit, and not one byte more is moved than is missing; then both compute the same log-probs."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from tests.generated import generated
from tests.mpi import plugin
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import (
    build_engine,
    gathered,
    held,
    layouts,
    layouts_of_world,
    refit,
    rollout_of,
    some_sequences,
)
from tests.mpi.mixtures import DENSE, MODELS, engine_on, mixture_for_vllm
from tests.mpi.parity import replica_share, score_loss, summed
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.rollout.protocol import Sampling, replica_of
from verl_hpc.transfer.execute import Transfer

SIZES = [(tp, pp, dp) for tp in (1, 2, 4) for pp in (1, 2) for dp in (1, 2)]
ROLLOUT = RolloutConfig(max_prompt_tokens=32, max_response_tokens=16, kv_cache_gib=0.03)
# What training takes; "rollout", the ranks of an engine; "whole", with whole experts on each;
# "stages", of an engine.
# Four ranks: every size of every axis; experts in part and whole, over one stage and two.
MIXED = {
    1: layouts("rollout1"),
    2: layouts(
        "tp2-rollout1 tp2-ep2-rollout2 tp2-ep2-rollout2-whole tp2-etp2-rollout2-whole "
        "dp2-ep2-rollout1 pp2-rollout2"
    ),
    4: layouts("tp2-dp2-ep4-rollout2 dp4-ep2-etp2-rollout4-stages2-whole tp2-pp2-ep2-rollout4"),
}
FURTHER = {
    4: layouts(
        "tp4-ep4-rollout2-whole tp2-dp2-ep2-rollout2-whole pp2-dp2-ep2-rollout4-whole "
        "tp2-dp2-ep2-etp2-rollout1 tp4-ep2-rollout2"
    )
}
"""Their training layouts and engines are combined otherwise above."""


def replicas_for(layout: TrainLayout, rollout_tp: int, stages: int = 1):
    applies = zero_redundancy_applies(layout.tp, rollout_tp) and stages == 1
    grouping = "zero_redundancy" if applies else "contiguous"
    return generation_groups(layout.grid, rollout_tp, grouping, stages)


def pairs(size: int):
    """Layout pairs of this world size and what trains, those that share an engine next to each
    other."""
    dense = [(TrainLayout(tp=tp, pp=pp, dp=dp), "megatron") for tp, pp, dp in SIZES]
    sharded = [(TrainLayout(dp=size, shard_size=s), "fsdp") for s in (None, 2) if size > (s or 1)]
    known = [
        (layout, rollout_tp, engine)
        for layout, engine in [*dense, *sharded]
        for rollout_tp in (1, 2, 4)
        if layout.grid.size == size and size % rollout_tp == 0
    ]
    return sorted(known, key=lambda pair: replicas_for(*pair[:2]))


def pytest_generate_tests(metafunc):
    if "pair" in metafunc.fixturenames:
        metafunc.parametrize("pair", pairs(plugin.session.world.size), ids=_label)
    layouts_of_world(metafunc, MIXED, FURTHER, model=list(MODELS))


def _label(pair) -> str:
    layout, rollout_tp, engine = pair
    shards = f"-shards{layout.shard_size}" if layout.shard_size is not None else ""
    sizes = f"tp{layout.tp}-pp{layout.pp}-dp{layout.dp}{shards}"
    return f"{engine}-{sizes}-to-tp{rollout_tp}"


@pytest.fixture(scope="module")
def engines(here):
    """`engines(directory, replicas)`: the vLLM engine of these groups, and whether it is new; one
    lives at a time."""
    living: dict = {}

    def get(directory, replicas, dtype="float32"):
        key = (directory, replicas, dtype)
        if is_new := key not in living:
            close_all()
            living[key] = rollout_of(here, directory, replicas, ROLLOUT, dtype)
        return living[key], is_new

    def close_all():
        for key in list(living):
            living.pop(key).close()

    yield get
    close_all()


def test_every_pair_of_layouts(here, tiny_model, engines, pair):
    # Rows of the vocabulary that no tensor-parallel size divides, and fewer key/value heads than
    # the largest of them.
    layout, rollout_tp, engine = pair
    directory = tiny_model("qwen2", True, **VLLM_HEADS)
    trainer, stats = dense_arrives(here, directory, engines, layout, rollout_tp, engine)
    zero = engine == "megatron" and zero_redundancy_applies(layout.tp, rollout_tp)
    if zero and layout.pp == 1 and rollout_tp <= trainer.arch.num_kv_heads:
        # The paper's Table 2, on average over ranks (vocabulary rows do not divide evenly);
        # norms, which every rank holds whole, only make it less.
        share = (layout.tp - rollout_tp) / (rollout_tp * layout.tp)
        received = sum(here.control.allgather(stats.received_bytes.total())) / here.world.size
        assert received <= share * trainer.shard_map.num_bytes


@pytest.mark.world(2)
@pytest.mark.parametrize("family", DENSE)
def test_every_dense_family(here, tiny_model, engines, family):
    """Some have several projections in one tensor, or rotate neighbours in a head."""
    directory = tiny_model(family, **VLLM_HEADS)
    dense_arrives(here, directory, engines, TrainLayout(tp=2), 1)
    dense_arrives(here, directory, engines, TrainLayout(pp=2), 1)


@pytest.mark.world(2)
@pytest.mark.parametrize("rollout_tp", [1, 2])
def test_what_fully_shard_has_learned_arrives_in_bfloat16(here, tiny_model, engines, rollout_tp):
    """Rounded from float32 shards; log-probs of two programs in bfloat16 are not compared."""
    directory = tiny_model("qwen2", True, **VLLM_HEADS)
    dense_arrives(here, directory, engines, TrainLayout(dp=2), rollout_tp, "fsdp", "bfloat16")


def dense_arrives(here, directory, engines, layout, rollout_tp, engine="megatron", dtype="float32"):
    """What a Megatron layout has read, or what fully_shard has learned from it."""
    learns = engine == "fsdp"
    trainer = build_engine(
        here, directory, layout, lr=1e-2 if learns else None, engine=engine, dtype=dtype
    )
    if learns:
        batch = some_sequences(2 * layout.dp, 256)
        trainer.update(batch[replica_share(layout)], score_loss(trainer.head, batch))
    now = gathered(here, trainer.shard_map, trainer.weights)
    first = safetensors_of(directory)
    moved = {bool((now[n] - t).abs().max() > 1e-3) for n, t in first.items()}
    assert moved == {learns}
    replicas = replicas_for(layout, rollout_tp)
    rollout, is_new = engines(directory, replicas, dtype)
    # The same bits in the same memory compute the same.
    return trainer, arrives(here, trainer, rollout, replicas, computes=is_new or learns)


def arrives(here, trainer, rollout, replicas, reference=None, computes=True):
    """Every element, in the fewest bytes; then both compute alike, if they are to compute. What the
    transfer counted."""
    for parameter in rollout.weights.values():
        parameter.fill_(float("nan"))
    plan = plan_transfer(trainer.shard_map, rollout.shard_map, here.world.node_of, 1 << 16)
    kinds = {n: getattr(torch, spec.dtype) for n, spec in rollout.shard_map.tensors.items()}
    stats = refit(rollout, Transfer(plan, here.world.rank), trainer.weights, kinds)
    arrived_bit_for_bit(here, trainer, rollout)
    # Padding rows alone; a pipeline stage has parameters of others that nobody fills.
    mapped = {region.view.name for region in rollout.shard_map.held_by(here.world.rank)}
    unfilled = {name for name in mapped if rollout.weights[name].isnan().any()}
    assert unfilled <= {trainer.arch.layer_table.vllm_embedding, "lm_head.weight"}, unfilled
    least = minimum_received(plan.bundles).get(here.world.rank, 0)
    assert stats.received_bytes.total() == least
    assert stats.peak_buffer_bytes <= 2 * ((1 << 16) + 16 * 4096)
    for parameter in rollout.weights.values():
        parameter.nan_to_num_(0.0)
    if rollout.dtype == torch.float32 and computes:
        computed_alike(here, trainer, rollout, replicas, reference)
    return stats


def arrived_bit_for_bit(here, trainer, rollout) -> None:
    """Against all that trainers hold, gathered the slow way."""
    whole = gathered(here, trainer.shard_map, trainer.weights)
    for region in rollout.shard_map.held_by(here.world.rank):
        arrived = held(rollout.weights, region)
        sent = whole[region.tensor][region.box.slices].to(arrived.dtype)
        assert torch.equal(arrived, sent), region


@pytest.mark.world(*MIXED)
def test_mixtures_before_and_after_an_update(here, tiny_model, reference, sizes, model):
    sizes = dict(sizes)
    size, stages = sizes.pop("rollout"), sizes.pop("stages", 1)
    parallel = {"tensor_parallel": size // stages, "pipeline_parallel": stages}
    parallel["expert_parallel"] = sizes.pop("whole", False)
    directory, _ = mixture_for_vllm(tiny_model, model, num_hidden_layers=2 * stages)
    trainer = engine_on(here, directory, sizes, lr=1e-2)
    replicas = replicas_for(trainer.layout, size // stages, stages)
    config = ROLLOUT.model_copy(update=parallel)
    with closing(rollout_of(here, directory, replicas, config)) as rollout:
        for expected in (reference(directory), None):  # it has the weights before the update
            arrives(here, trainer, rollout, replicas, expected)
            trainer.update(some_sequences(4, trainer.arch.vocab_size), summed(99))


@pytest.mark.world(2)
def test_a_router_that_vllm_has_in_float32_arrives_from_bfloat16(here, tiny_model):
    directory, _ = mixture_for_vllm(tiny_model, "glm")
    trainer = engine_on(here, directory, {"tp": 2, "ep": 2}, dtype="bfloat16")
    replicas = replicas_for(trainer.layout, 1)
    with closing(rollout_of(here, directory, replicas, ROLLOUT, "bfloat16")) as rollout:
        arrives(here, trainer, rollout, replicas)
        kinds = {n: t.dtype for n, t in rollout.weights.items() if n.endswith("mlp.gate.weight")}
    assert set(kinds.values()) == {torch.float32}


def computed_alike(here, trainer, rollout, replicas, reference=None) -> None:
    """What engines generate has the log-probs that the trainer computes, and transformers."""
    replica = replica_of(replicas, here.world.rank)
    prompts = [s[:20].tolist() for s in some_sequences(6, 256, seed=replica)]
    responses = generated(rollout, prompts, Sampling(max_tokens=12), seeds=range(6))
    assert len({r.tokens for r in responses}) == 6
    for prompt, response in zip(prompts, responses, strict=True) if reference else ():
        with torch.no_grad():
            log_probs = reference.log_probs(torch.tensor([*prompt, *response.tokens]))
        sampled = torch.tensor(response.log_probs)
        torch.testing.assert_close(log_probs[len(prompt) - 1 :], sampled, atol=1e-5, rtol=0)
    texts = [torch.tensor([*p, *r.tokens]) for p, r in zip(prompts, responses, strict=True)]
    # Replicas generate different texts; the trainer's replicas must each see all of them.
    every = {of: rest for of, *rest in here.control.allgather((replica, texts, prompts, responses))}
    for _, (texts, prompts, responses) in sorted(every.items()):
        outputs = trainer.infer(texts)
        for prompt, response, output in zip(prompts, responses, outputs, strict=True):
            log_probs, sampled = output.log_probs, torch.tensor(response.log_probs)
            torch.testing.assert_close(log_probs[len(prompt) - 1 :], sampled, atol=1e-5, rtol=0)


def safetensors_of(directory):
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")
