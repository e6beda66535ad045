"""ReMax: what a response earns beyond the greedy answer to its prompt."""

import pytest

from tests.unit.trainer.operators.batches import MASKS, PLACE, samples, sequences
from tests.unit.trainer.runs import loop, small_run
from verl_hpc.errors import ConfigError
from verl_hpc.trainer.batch import Sample, Samples
from verl_hpc.trainer.operators.advantages import greedy_advantages
from verl_hpc.trainer.operators.score import Scores
from verl_hpc.trainer.recipes import find_recipe, make_recipe


def test_the_baseline_is_that_of_the_samples_prompt():
    # Answers to the second prompt and to the first: groups say which.
    answers = Samples((Sample(0, 1, 3, 2, False), Sample(1, 0, 2, 2, False)), {"rollout": [0, 0]})
    found, metrics = greedy_advantages(
        PLACE,
        samples(),
        sequences(),
        Scores([1.0, 0.0, 0.5]),
        answers,
        Scores([0.25, 0.75]),
    )
    expected = [1.0 - 0.75, 0.0 - 0.75, 0.5 - 0.25]
    for row, mask, value in zip(found["advantages"], MASKS, expected, strict=True):
        last = max(t for t, counts in enumerate(mask) if counts)
        assert row.tolist() == pytest.approx([value * m for m in mask])
        assert mask[last] and row[last] == value
    assert metrics["critic/rewards/mean"] == pytest.approx(0.5)


def test_one_greedy_answer_a_prompt_is_scored_beside_the_sampled_ones(tmp_path):
    run = small_run(
        tmp_path,
        recipe="remax",
        steps=2,
        rollout__num_samples=1,
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
    recipe = make_recipe(run, find_recipe("remax", 60.0))
    names = [op.name for op in recipe.compile(None).operators]
    assert max(names.index(n) for n in ("rollout", "greedy_rollout")) < min(
        names.index(n) for n in ("old_log_probs", "ref_log_probs")
    )


def test_another_advantage_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="advantage.name = gae does not go with .*remax"):
        small_run(tmp_path, recipe="remax", algorithm__advantage={"name": "gae"})
