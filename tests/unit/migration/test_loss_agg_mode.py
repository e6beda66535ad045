"""The gradient of verl's loss_agg_mode, by its definition.

What `agg_loss` of verl's core_algos.py (commit 1dda039b9c) comes to with what its engines hand it:
a micro-batch's loss is divided by a count of the whole mini-batch, tokens or sequences (their
number is ppo_mini_batch_size x n), and multiplied with the data-parallel ranks, over which
gradients are averaged.
"""

import pytest
import torch

from verl_hpc.algorithms.aggregation import Aggregation
from verl_hpc.migration.translate import migrate
from verl_hpc.testing.local_run import local_run

ACTOR = "actor_rollout_ref.actor"
WORDS = (
    "actor_rollout_ref.model.path=m",
    "trainer.total_training_steps=10",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=3",
    f"{ACTOR}.ppo_mini_batch_size=3",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "data.max_response_length=5",
)
NUM_SEQUENCES = 6
MASKS = [
    [1, 1, 1, 1, 1],
    [1, 0, 0, 0, 0],
    [1, 1, 0, 0, 1],  # a tool's answer in the middle
    [0, 1, 1, 1, 0],
    [1, 1, 0, 0, 0],
    [1, 1, 1, 1, 0],
]
MODES = {
    "token-mean": lambda row: 1 / sum(map(sum, MASKS)),
    "token-sum": lambda row: 1.0,
    "seq-mean-token-sum": lambda row: 1 / NUM_SEQUENCES,
    "seq-mean-token-mean": lambda row: 1 / NUM_SEQUENCES / sum(row),
    "seq-mean-token-sum-norm": lambda row: 1 / NUM_SEQUENCES / 100,
}
"""What a token's loss is multiplied with in one that a single process computes at once."""


@pytest.fixture
def words(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"prompt": "{name}", "answer": "b"}}\n')
    files = [f"data.{name}_files={tmp_path}/{name}.jsonl" for name in ("train", "val")]
    return [*WORDS, *files, "verl_hpc.reward.function=exact_match"]


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_is_verls(words, mode):
    """Splits into micro-batches and ranks are in tests/mpi/test_algorithms.py."""
    scale = [f"{ACTOR}.loss_scale_factor=100"] if mode.endswith("norm") else []
    migrated = migrate([*words, f"{ACTOR}.loss_agg_mode={mode}", *scale])
    assert f"{ACTOR}.loss_agg_mode" not in migrated.notes
    steps = local_run(migrated.config()).settings.steps(1.0)
    mask = torch.tensor(MASKS)
    sums = Aggregation(steps.aggregation, int(mask.sum()), NUM_SEQUENCES, steps.scale)
    losses = torch.ones(mask.shape, dtype=torch.float64, requires_grad=True)
    sums(losses, mask).backward()
    weights = [[MODES[mode](row) * counts for counts in row] for row in MASKS]
    torch.testing.assert_close(losses.grad, torch.tensor(weights, dtype=torch.float64))


def test_what_differs_from_verl_is_told(words):
    mode, rejected = f"{ACTOR}.loss_agg_mode", "algorithm.rollout_correction.rollout_rs"
    run = migrate([*words, f"{mode}=seq-mean-token-sum-norm"])
    assert "here by rollout.max_response_tokens" in run.notes[mode]
    older = migrate([*words, f"{mode}=seq-mean-token-sum-norm", "trainer.use_v1=False"])
    assert mode not in older.notes  # there responses are padded to data.max_response_length
    assert local_run(run.config()).settings.steps(1.0).scale == 5
    run = migrate([*words, f"{rejected}=seq_mean_k1", f"{rejected}_threshold=2.0"])
    assert "means are over what is left" in run.notes[rejected]
    weighed = f"{rejected.removesuffix('rs')}is"
    run = migrate([*words, f"{weighed}=token", f"{weighed}_threshold=0.5_2.0"])
    assert "means are over what is left" in run.notes[f"{weighed}_threshold"]
    baseline = "algorithm.adv_estimator=tir_optimal_token_baseline"
    run = migrate([*words, baseline, f"{weighed}=token"])
    assert "here those weigh losses alone" in run.notes["algorithm.adv_estimator"]
    loss = f"{ACTOR}.policy_loss.loss_mode"
    for name in ("clip_cov", "kl_cov"):
        assert "chosen over the whole step" in migrate([*words, f"{loss}={name}"]).notes[loss]
