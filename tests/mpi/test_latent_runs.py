"""Whole runs of tiny models in DeepSeek-V3's, GLM-4.5's and gpt-oss's shapes: latent attention,
rotary embeddings of a part of each head, or sinks and windows; a dense layer, and experts in groups
with a bias, or all in one tensor."""

import pytest

from tests.mpi.mixtures import mixture_for_vllm
from tests.mpi.placed_runs import configure, run, weights_of
from tests.mpi.test_reshard import safetensors_of
from tests.mpi.test_router_replay_run import ROLLOUT
from tests.slow import all_slow
from verl_hpc.layout.families import FAMILIES

pytestmark = pytest.mark.world(2)
LAYOUTS = {
    "experts apart": ({"expert_parallel": 2}, {}),
    "tp2": ({"tensor_parallel": 2, "sequence_parallel": True}, {"tensor_parallel": 2}),
}


@pytest.mark.parametrize(
    "name, layout",
    [
        ("sinks", "tp2"),
        *all_slow(
            *(("latent", layout) for layout in LAYOUTS), ("glm", "tp2"), ("sinks", "experts apart")
        ),
    ],
)
def test_grpo_replays_experts_and_moves_biases(here, tiny_model, shared_directory, name, layout):
    parallel, rollout = LAYOUTS[layout]
    model, family = mixture_for_vllm(tiny_model, name)
    has_bias = bool(FAMILIES[family].table.buffers)
    router = {"bias_update_rate": 0.01} if has_bias else None
    config = configure(
        shared_directory,
        model,
        f"{name}-{layout.replace(' ', '-')}",
        "grpo",
        steps=2,
        model={"path": str(model), "dtype": "float32", "router": router},
        parallel=parallel,
        rollout=ROLLOUT | rollout,
        batch={"size": 4, "max_tokens_per_micro_batch": 400},
        algorithm={"router_replay": "rollout"},
        checkpoint={"every": 2},
    )
    rows = run(here, config)
    assert len(rows) == 2
    # In float32 the two engines agree, but for ties: weights and biases are the same in both.
    assert all(row["actor/router_disagreement"] < 0.005 for row in rows)
    assert all(row["training/rollout_log_probs_diff_max"] < 1e-4 for row in rows)
    assert all(row["reshard/received_bytes"] == row["reshard/minimum_bytes"] for row in rows)
    before, after = safetensors_of(model), weights_of(config, 2)
    assert after.keys() == before.keys()
    moved = [(after[n] - before[n]).abs() for n in before if n.endswith("correction_bias")]
    assert bool(moved) == has_bias and all(0.005 < change.max() < 0.021 for change in moved)
