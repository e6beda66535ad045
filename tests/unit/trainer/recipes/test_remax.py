"""ReMax: what a response earns beyond the greedy answer to its prompt."""

import pytest

from tests.unit.trainer.runs import length_is_worth_nothing, loop, recipe_of, small_run

REMAX = {"steps": 2, "rollout__num_samples": 1, "algorithm__advantage": {"name": "remax"}}


def test_one_greedy_answer_a_prompt_is_scored_beside_the_sampled_ones(tmp_path):
    kl = {"placement": "reward", "coefficient": 0.1}
    run = small_run(tmp_path, **REMAX, algorithm__kl=kl)
    _, lines = loop(run)
    for line in lines:
        # The reward is a tenth of a response's length, and the mean is over two prompts.
        score = line["greedy/critic/score/mean"] * 20
        assert score == pytest.approx(round(score))
        assert "actor/reward_kl_penalty" in line and "actor/loss" in line
    assert "greedy_reward" in (run.config.run_directory / "flow.txt").read_text()
    # An engine that models have taken the device back from cannot generate.
    names = [op.name for op in recipe_of(run).compile(None).operators]
    assert max(names.index(n) for n in ("rollout", "greedy_rollout")) < min(
        names.index(n) for n in ("old_log_probs", "ref_log_probs")
    )


def test_a_penalty_on_long_responses_is_one_on_greedy_ones(tmp_path):
    """It takes away what the reward gives for length, so that nothing is earned by either."""
    _, lines = loop(
        small_run(tmp_path, **REMAX, held_out=None, **length_is_worth_nothing(tmp_path))
    )
    for line in lines:
        assert line["greedy/reward/overlong_penalty"] < 0 and line["reward/overlong_penalty"] < 0
        assert line["actor/pg_loss"] == line["actor/grad_norm"] == pytest.approx(0.0, abs=1e-12)
