"""Whole runs of tiny models in DeepSeek-V3's and GLM-4.5's shapes: latent attention or rotary
embeddings of a part of each head, a dense layer, experts in groups with a bias."""

import pytest

from tests.mpi.mixtures import mixture_for_vllm
from tests.mpi.placed_runs import configure, run, weights_of
from tests.mpi.test_reshard import safetensors_of
from tests.mpi.test_router_replay_run import ROLLOUT
from tests.slow import all_slow

pytestmark = pytest.mark.world(2)
LAYOUTS = {
    "experts apart": ({"expert_parallel": 2}, {}),
    "tp2": ({"tensor_parallel": 2, "sequence_parallel": True}, {"tensor_parallel": 2}),
}


@pytest.mark.parametrize(
    "name, layout", all_slow(*(("latent", layout) for layout in LAYOUTS), ("glm", "tp2"))
)
def test_grpo_replays_experts_and_moves_biases(here, tiny_model, shared_directory, name, layout):
    parallel, rollout = LAYOUTS[layout]
    model, _ = mixture_for_vllm(tiny_model, name)
    config = configure(
        shared_directory,
        model,
        f"{name}-{layout.replace(' ', '-')}",
        "grpo",
        steps=2,
        model={"path": str(model), "dtype": "float32", "router": {"bias_update_rate": 0.01}},
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
    moved = [(after[n] - before[n]).abs() for n in before if n.endswith("correction_bias")]
    assert moved and all(0.005 < change.max() < 0.021 for change in moved)
