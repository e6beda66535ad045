"""Generation of the next steps on ranks of its own while a step trains."""

import pytest
import torch

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.placed_runs import configure, run
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.metrics.series import overlaps
from verl_hpc.metrics.timeline import read_timeline
from verl_hpc.trainer import loop as module
from verl_hpc.transfer.execute import Transfer

pytestmark = pytest.mark.world(4)

SIZES = VLLM_HEADS | {"head_dim": 32}


@pytest.fixture
def made_by(here, tiny_model, shared_directory, monkeypatch):
    """`made_by(staleness, tp)`: rows of a run, the loop that made them, and its configuration."""

    def make(staleness, rollout_tp=1, name="async"):
        loops = []
        init = module.Loop.__init__

        def remember(self, *arguments):
            loops.append(self)
            init(self, *arguments)

        monkeypatch.setattr(module.Loop, "__init__", remember)
        config = configure(
            shared_directory,
            tiny_model(**SIZES),
            f"{name}-{staleness}-{rollout_tp}",
            "grpo",
            placement={"train": "0-1", "rollout": "2-3"},
            parallel={"tensor_parallel": 2},
            algorithm={"correction": {}},
            rollout={
                "engine": "vllm",
                "tensor_parallel": rollout_tp,
                "staleness": staleness,
                "num_samples": 2,
                "max_prompt_tokens": 160,
                "max_response_tokens": 48,
                "kv_cache_gib": 0.05,
                "stop_token_ids": list(range(100, 140)),  # so that lengths differ
            },
        )
        return run(here, config), loops[0], config

    return make


def test_weights_arrive_whole_and_no_byte_twice(here, made_by):
    rows, loop, config = made_by(1, rollout_tp=2)
    assert [row["rollout/lag/max"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    weights = [row["actor/correction_weight"] for row in rows]
    assert weights[0] == pytest.approx(1, abs=1e-5), "what sampled the first step trains on it"
    assert all(weight == pytest.approx(1, abs=0.1) for weight in weights)
    assert all(abs(weight - 1) > abs(weights[0] - 1) for weight in weights[1:])
    for row in rows:
        assert row["reshard/received_bytes"] == row["reshard/minimum_bytes"] > 0
    context = loop.run
    context.sync.to_generation()
    mine = dict(context.rollout.engine.weights) if context.rollout.engine is not None else {}
    received = {name: tensor.clone() for name, tensor in mine.items()}
    # The oracle: what the checkpoint of the last step has, read from its files.
    for tensor in mine.values():
        tensor.fill_(torch.nan)
    opened = open_weights(config.run_directory / "checkpoints" / "latest")
    plan = plan_transfer(opened.shard_map, context.rollout.shard_map, here.world.node_of)
    transfer = Transfer(plan, here.world.rank, opened.reader)
    transfer.run({}, mine, torch.float32, here.control.together)
    for name, tensor in mine.items():
        there = ~tensor.isnan()  # the rest pads the vocabulary
        assert there.any() and torch.equal(tensor[there], received[name][there]), name


def test_the_next_step_is_generated_while_one_trains(made_by):
    rows, _, config = made_by(1, rollout_tp=2)
    assert all("timing_s/rollout" in row and overlaps([row]) for row in rows[:-1])
    intervals = read_timeline(config.run_directory, None)
    for step in (2, 3):
        trains = [i for i in intervals if i.step == step and i.operator == "update_actor"]
        generates = [i for i in intervals if i.step == step + 1 and i.operator == "rollout"]
        assert {i.rank for i in trains} == {0, 1} and {i.rank for i in generates} == {2, 3}
        begins = [i for i in intervals if i.step == step and i.operator == "old_log_probs"]
        assert min(i.start for i in generates) < max(i.stop for i in trains)
        assert max(i.stop for i in generates) > min(i.start for i in begins)


def test_responses_in_flight_keep_every_token_with_its_version(made_by):
    rows, _, _ = made_by(3)
    again, _, _ = made_by(3, name="again")
    lags = [row["rollout/lag/max"] for row in rows]
    assert max(lags) <= 3 and lags[0] == 0.0
    assert lags[-1] > rows[-1]["rollout/lag/mean"] > 0, "some tokens are newer than others"
    # Which weights a token is sampled with depends on tokens, not on time.
    for a, b in zip(rows, again, strict=True):
        assert a["actor/loss"] == b["actor/loss"]
        assert a["rollout/lag/mean"] == b["rollout/lag/mean"]
