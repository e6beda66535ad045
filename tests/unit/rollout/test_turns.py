"""An engine computes other sequences while one waits for an observation."""

import pytest

from tests.generated import Until, feed_of
from tests.unit.rollout.scripted_turns import ScriptedTurns, one_by_one
from tests.unit.rollout.test_check_model import change
from tests.unit.rollout.test_hf import engine_of
from verl_hpc.rollout.partial import continued, observed
from verl_hpc.rollout.protocol import NOT_BEGUN, Response, Sampling
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.tiny import make_tiny_model

PROMPTS, SEEDS = [[3, 4], [5, 6, 7], [3, 5], [6]], [11, 12, 13, 14]
TURNS = {0: 2, 2: 1, 3: 3}


def engines(tmp_path):
    yield LocalRollout(max_num_seqs=2), Sampling(max_tokens=40)
    # A batch of transformers is drawn together: only greedy responses are those of single calls.
    model = make_tiny_model(tmp_path, "qwen2")
    change(model / "generation_config.json", eos_token_id=list(range(0, 256, 4)))
    yield engine_of(model), Sampling(max_tokens=40, temperature=0.0)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("late", [(), (0,), (0, 2, 3)])
def test_turns_beside_each_other_are_those_of_calls_one_by_one(tmp_path, which, late):
    engine, sampling = list(engines(tmp_path))[which]
    turns = ScriptedTurns(feed_of(PROMPTS, SEEDS), TURNS, sampling.max_tokens, late)
    engine.generate(turns, sampling)
    for index, (prompt, seed) in enumerate(zip(PROMPTS, SEEDS, strict=True)):
        response = turns.responses[index]
        expected = one_by_one(engine, prompt, sampling, seed, index, TURNS)
        assert response.tokens == expected.tokens
        assert response.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
        assert response.sampled == expected.sampled
        given = TURNS.get(index, 0) - turns.left.get(index, 0)
        assert len(response.tokens) - sum(response.sampled) == 2 * given
    assert turns.finished == {0, 1, 2, 3}
    assert sum(turns.left.values()) < sum(TURNS.values())


def test_others_go_on_while_one_waits():
    turns = ScriptedTurns(feed_of(PROMPTS, SEEDS), {0: 1}, 12, late=(0,))
    LocalRollout(max_num_seqs=2).generate(turns, Sampling(max_tokens=12))
    order = [index for index, _ in turns.log]
    assert sorted(order) == [0, 0, 1, 2, 3] and order[-1] == 0


def test_a_call_that_is_ended_keeps_no_response_that_waits():
    turns = ScriptedTurns(feed_of(PROMPTS, SEEDS), dict.fromkeys(range(4), 1), 12, late=range(4))
    feed = Until(turns, lambda _: len(turns.log) == 2)
    LocalRollout(max_num_seqs=4).generate(feed, Sampling(max_tokens=12))
    assert not feed.finished and {r.finish_reason for r in feed.responses} == {"unfinished"}


def test_observed_tokens_are_masked_wherever_a_response_goes_on():
    begun = Response((1, 2), (-0.5, -0.25), "stop")
    assert begun.sampled == (1, 1)
    longer = continued(observed(begun, [8, 9]), Response((3,), (-1.0,), "stop"))
    assert longer.tokens == (1, 2, 8, 9, 3)
    assert longer.log_probs == (-0.5, -0.25, 0.0, 0.0, -1.0)
    assert longer.mask == (1, 1, 0, 0, 1)
    assert continued(NOT_BEGUN, begun).mask is None
