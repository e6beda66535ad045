"""Training and inference: bubbles, collectives, and what a layout does to them."""

from dataclasses import replace

import pytest

from tests.unit.layout.models import PUBLISHED
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.shape import RoleShape
from verl_hpc.planner.timing.lengths import Lengths
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.passes import (
    infer_cost,
    optimizer_parameters,
    parameters_per_rank,
    update_cost,
)
from verl_hpc.planner.timing.work import forward_flops
from verl_hpc.planner.timing.workload import Workload

L8 = architecture_from(PUBLISHED["Llama-3.1-8B"][0])
MOE = architecture_from(PUBLISHED["Mixtral-8x7B"][0])
H100 = Machine(Hardware(KINDS["H100-80"], 8))
WORK = Workload(256, 1, 512, Lengths(512, 512, 0.0), 1, 1, 8192)


def seconds(cost):
    return H100.seconds(cost)


def model(arch=L8, **sizes):
    return RoleShape(arch, TrainLayout(**sizes))


def test_a_forward_pass_is_its_flops():
    cost = infer_cost(H100, model(), WORK)
    flops = forward_flops(L8, WORK.tokens, WORK.sequences * WORK.square)
    assert cost["inference"] == pytest.approx(flops / H100.peak("bfloat16"))
    assert "collective" not in cost and "hops" not in cost


def test_an_update_is_three_forward_passes_and_recomputing_a_fourth():
    plain = update_cost(H100, model(), WORK)
    again = update_cost(H100, replace(model(), recompute="full"), WORK)
    forward = infer_cost(H100, model(), WORK)["inference"]
    assert plain["training"] == pytest.approx(3 * forward)
    # The output layer is not recomputed.
    assert 3.8 * forward < again["training"] < 4 * forward
    assert again["layers"] == pytest.approx(1.5 * plain["layers"])
    selective = update_cost(H100, replace(model(), recompute="selective"), WORK)
    assert plain["training"] < selective["training"] < again["training"]


def test_epochs_and_mini_batches():
    one = update_cost(H100, model(dp=8), WORK)
    twice = update_cost(H100, model(dp=8), replace(WORK, update_epochs=2))
    assert seconds(twice) == pytest.approx(2 * seconds(one))
    cut = update_cost(H100, model(dp=8), replace(WORK, mini_batches=4))
    assert cut["training"] == pytest.approx(one["training"])
    assert cut["memory"] == pytest.approx(4 * one["memory"])


def test_a_pipeline_waits_where_it_fills_and_drains():
    work = replace(WORK, max_tokens=1024)
    whole = infer_cost(H100, model(), work)["inference"]
    piped = infer_cost(H100, model(pp=4, dp=1), work)["inference"]
    # 256 micro-batches, a sequence each: 259 rounds, and the last stage has the output layer.
    assert piped / (whole / 4) > 259 / 256
    short = replace(work, sequences=4)
    few = infer_cost(H100, model(pp=4), short)["inference"]
    alone = infer_cost(H100, model(), short)["inference"]
    assert few / (alone / 4) > 7 / 4
    idle = replace(H100, counts_waiting=False)
    assert infer_cost(idle, model(pp=4), short)["inference"] == pytest.approx(4 / 7 * few)
    chunks = infer_cost(H100, model(pp=4, vpp=2), short)["inference"]
    assert chunks == pytest.approx((4 + 3 / 2) / 7 * few)


def test_tensor_parallelism_pays_in_all_reduces():
    work = replace(WORK, max_tokens=1024)
    cost = infer_cost(H100, model(tp=8), work)
    whole = infer_cost(H100, model(), work)
    assert cost["inference"] == pytest.approx(whole["inference"] / 8)
    count = 2 * L8.num_layers + 1
    num_bytes = WORK.tokens * L8.hidden_size * 2
    assert cost["collective"] == pytest.approx(count * 2 * 7 / 8 * num_bytes / 450e9)
    across = Machine(Hardware(KINDS["H100-80"], 4))
    assert across.seconds(infer_cost(across, model(tp=8), work)) > seconds(cost)


def test_context_parallel_ranks_share_products_and_pay_in_keys_and_values():
    work = replace(WORK, max_tokens=1024)
    split, whole = (infer_cost(H100, model(dp=4, cp=cp), work) for cp in (4, 1))
    assert split["inference"] == pytest.approx(whole["inference"])  # fewer replicas, shorter rows
    num_bytes = 2 * L8.kv_size * 2 * WORK.tokens
    assert split["collective"] == pytest.approx(L8.num_layers * 3 / 4 * num_bytes / 450e9)


def test_a_small_micro_batch_waits_for_its_weights():
    tiny = Workload(8, 1, 8, Lengths(8, 8, 0.0), 1, 1, 16)
    cost = infer_cost(H100, model(), tiny)
    assert "inference" not in cost and cost["memory"] > 0


def test_reducing_is_hidden_behind_a_long_backward_pass():
    many = update_cost(H100, model(dp=16, tp=1), replace(WORK, max_tokens=65536, sequences=4096))
    gathered = 15 / 16 * 2 * parameters_per_rank(model(dp=16)) / (8 * 45e9)
    assert many["collective"] == pytest.approx(gathered, rel=1e-6)
    quick = replace(H100, efficiency=replace(H100.efficiency, layers=0.0))
    few = update_cost(quick, model(dp=16), replace(WORK, max_tokens=1024, sequences=16))
    assert few["collective"] > many["collective"]


def test_parameters_of_ranks():
    count = L8.num_parameters
    assert parameters_per_rank(model()) == pytest.approx(count, rel=1e-3)
    assert parameters_per_rank(model(tp=4, dp=2)) == pytest.approx(count / 4, rel=1e-3)
    assert parameters_per_rank(model(pp=2)) > count / 2.2
    assert optimizer_parameters(model(dp=8)) == pytest.approx(count / 8, rel=1e-3)
    spread = model(MOE, tp=2, dp=4, ep=8)
    assert parameters_per_rank(spread) < MOE.num_parameters / 7
    # All eight ranks share all state, of experts as well, which have one replica.
    assert optimizer_parameters(spread) == pytest.approx(MOE.num_parameters / 8, rel=1e-3)
    one_replica = model(MOE, tp=2, dp=4, ep=2)
    assert parameters_per_rank(one_replica) > MOE.num_parameters / 2.2
    assert optimizer_parameters(one_replica) == pytest.approx(MOE.num_parameters / 8, rel=1e-3)
