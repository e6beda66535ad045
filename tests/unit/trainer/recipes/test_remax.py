"""ReMax: what a response earns beyond the greedy answer to its prompt."""

import pytest

from tests.unit.trainer.runs import length_is_worth_nothing, loop, small_run
from verl_hpc.trainer.recipes import find_recipe, make_recipe


def test_one_greedy_answer_a_prompt_is_scored_beside_the_sampled_ones(tmp_path):
    run = small_run(
        tmp_path,
        steps=2,
        rollout__num_samples=1,
        algorithm__advantage={"name": "remax"},
        algorithm__kl={"placement": "reward", "coefficient": 0.1},
    )
    _, lines = loop(run)
    for line in lines:
        # By how many tokens of the vocabulary its responses are long: tenths, by the reward.
        assert line["greedy/critic/score/mean"] * 20 == pytest.approx(
            round(line["greedy/critic/score/mean"] * 20)
        )
        assert "actor/reward_kl_penalty" in line and "actor/loss" in line
    drawn = (run.config.run_directory / "flow.txt").read_text()
    assert "greedy_reward" in drawn
    # An engine that models have taken the device back from cannot generate.
    recipe = make_recipe(run, find_recipe("rl", 60.0))
    names = [op.name for op in recipe.compile(None).operators]
    assert max(names.index(n) for n in ("rollout", "greedy_rollout")) < min(
        names.index(n) for n in ("old_log_probs", "ref_log_probs")
    )


def test_a_penalty_on_long_responses_is_one_on_greedy_ones(tmp_path):
    """It takes away what the reward gives for length, so that nothing is earned by either."""
    _, lines = loop(
        small_run(
            tmp_path,
            steps=2,
            rollout__num_samples=1,
            held_out=None,
            algorithm__advantage={"name": "remax"},
            **length_is_worth_nothing(tmp_path),
        )
    )
    for line in lines:
        assert line["greedy/reward/overlong_penalty"] < 0 and line["reward/overlong_penalty"] < 0
        assert line["actor/pg_loss"] == line["actor/grad_norm"] == pytest.approx(0.0, abs=1e-12)
