"""Either training engine to vLLM, every pair of layouts: the weights arrive bit for bit, and not
one byte more is moved than is missing; then both compute the same log-probs."""

import pytest
import torch

from tests.generated import generated
from tests.mpi import plugin
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import (
    build_engine,
    gathered,
    held,
    refit,
    rollout_of,
    some_sequences,
)
from tests.mpi.parity import replica_share, score_loss
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_inbound, minimum_received
from verl_hpc.rollout.protocol import Sampling, replica_of
from verl_hpc.transfer.execute import Transfer

SIZES = [(tp, pp, dp) for tp in (1, 2, 4) for pp in (1, 2) for dp in (1, 2)]
ROLLOUT = RolloutConfig(max_prompt_tokens=32, max_response_tokens=16, kv_cache_gib=0.03)


def replicas_for(layout: TrainLayout, rollout_tp: int):
    applies = zero_redundancy_applies(layout.tp, rollout_tp)
    grouping = "zero_redundancy" if applies else "contiguous"
    return generation_groups(layout.grid, rollout_tp, grouping)


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


def _label(pair) -> str:
    layout, rollout_tp, engine = pair
    shards = f"-shards{layout.shard_size}" if layout.shard_size is not None else ""
    sizes = f"tp{layout.tp}-pp{layout.pp}-dp{layout.dp}{shards}"
    return f"{engine}-{sizes}-to-tp{rollout_tp}"


@pytest.fixture(scope="module")
def engines(here):
    """`engines(directory, replicas)`: the vLLM engine of these groups; one lives at a time."""
    living: dict = {}

    def get(directory, replicas, dtype="float32"):
        key = (directory, replicas, dtype)
        if key not in living:
            close_all()
            living[key] = rollout_of(here, directory, replicas, ROLLOUT, dtype)
        return living[key]

    def close_all():
        for key in list(living):
            living.pop(key).close()

    yield get
    close_all()


def test_every_pair_of_layouts(here, tiny_model, engines, pair):
    # Rows of the vocabulary that no tensor-parallel size divides, and fewer key/value heads than
    # the largest of them.
    arrives(here, tiny_model("qwen2", True, **VLLM_HEADS), engines, *pair)


@pytest.mark.world(2)
@pytest.mark.parametrize(
    "family, sizes, rollout_tp",
    [("phi3", {"pp": 2}, 2), ("phi3", {"tp": 2}, 1), ("ernie4_5", {"tp": 2}, 1)],
)
def test_families_that_differ(here, tiny_model, engines, family, sizes, rollout_tp):
    """phi3 has several projections in one tensor, ernie4_5 rotates neighbours in a head."""
    directory = tiny_model(family, **VLLM_HEADS)
    arrives(here, directory, engines, TrainLayout(**sizes), rollout_tp)


@pytest.mark.world(2)
@pytest.mark.parametrize("rollout_tp", [1, 2])
def test_what_fully_shard_has_learned_arrives_in_bfloat16(here, tiny_model, engines, rollout_tp):
    """Rounded from float32 shards; log-probs of two programs in bfloat16 are not compared."""
    directory = tiny_model("qwen2", True, **VLLM_HEADS)
    arrives(here, directory, engines, TrainLayout(dp=2), rollout_tp, "fsdp", "bfloat16")


def arrives(here, directory, engines, layout, rollout_tp, engine="megatron", dtype="float32"):
    """What a Megatron layout has read, and what fully_shard has learned from it."""
    rank, trains = here.world.rank, engine == "fsdp"
    trainer = build_engine(
        here, directory, layout, lr=1e-2 if trains else None, engine=engine, dtype=dtype
    )
    source = safetensors_of(directory)
    if trains:
        batch = some_sequences(2 * layout.dp, 256)
        trainer.update(batch[replica_share(layout)], score_loss(trainer.head, batch))
        first, source = source, gathered(here, trainer.shard_map, trainer.weights)
        assert all((source[name] - first[name]).abs().max() > 1e-3 for name in source)
    replicas = replicas_for(layout, rollout_tp)
    rollout = engines(directory, replicas, dtype)
    for parameter in rollout.weights.values():
        parameter.fill_(float("nan"))

    plan = plan_transfer(trainer.shard_map, rollout.shard_map, here.world.node_of, 1 << 16)
    stats = refit(rollout, Transfer(plan, rank), trainer.weights)

    for region in rollout.shard_map.held_by(rank):
        arrived = held(rollout.weights, region)
        sent = source[region.tensor][region.box.slices]
        assert torch.equal(arrived, sent.to(getattr(torch, dtype))), region
    unfilled = {n: int(p.isnan().sum()) for n, p in rollout.weights.items() if p.isnan().any()}
    # Padding rows alone.
    assert set(unfilled) <= {"model.embed_tokens.weight", "lm_head.weight"}, unfilled
    assert stats.total_received_bytes == minimum_received(plan.bundles).get(rank, 0)
    assert minimum_inbound(plan.bundles, here.world.node_of) == {}
    assert stats.peak_buffer_bytes <= 2 * ((1 << 16) + 16 * 4096)
    heads = trainer.arch.num_kv_heads
    zero = engine == "megatron" and zero_redundancy_applies(layout.tp, rollout_tp)
    if zero and layout.pp == 1 and rollout_tp <= heads:
        # The paper's Table 2, on average over ranks (vocabulary rows do not divide evenly);
        # norms, which every rank holds whole, only make it less.
        share = (layout.tp - rollout_tp) / (rollout_tp * layout.tp)
        received = sum(here.control.allgather(stats.total_received_bytes)) / here.world.size
        assert received <= share * trainer.shard_map.num_bytes
    for parameter in rollout.weights.values():
        parameter.nan_to_num_(0.0)

    if dtype == "float32":
        computed_alike(here, trainer, rollout, replicas)


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
