"""vLLM computes other sequences while one waits for an observation; runs train on turns."""

import pytest

from tests.generated import feed_of
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import loaded_rollout
from tests.mpi.recipe_runs import ROLLOUT, run, write_reward
from tests.slow import all_slow
from tests.unit.rollout.scripted_turns import ScriptedTurns, one_by_one
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import EnvironmentStepError
from verl_hpc.rollout.protocol import Sampling

pytestmark = pytest.mark.world(2)

PROMPTS = [list(range(40 + n, 40 + 2 * n)) for n in (3, 9, 4, 12)]
SEEDS = [1, 2, 3, 4]
TURNS = {0: 2, 2: 1, 3: 1}
LIMITS = {"max_prompt_tokens": 32, "max_response_tokens": 120, "kv_cache_gib": 0.03}


@pytest.mark.parametrize("replicas", [((0,), (1,)), *all_slow((((0, 1),),))])
def test_turns_beside_each_other_are_those_of_calls_one_by_one(here, tiny_model, replicas):
    directory = tiny_model("qwen2", True, **VLLM_HEADS)
    engine = loaded_rollout(here, directory, replicas, RolloutConfig(**LIMITS))
    # Turns end by a stop string: by itself an untrained model hardly ends one.
    sampling = Sampling(max_tokens=100, temperature=0.7, stop=("a", "e", "3"))
    turns = ScriptedTurns(feed_of(PROMPTS, SEEDS), TURNS, sampling.max_tokens, late=(0,))
    engine.generate(turns, sampling)
    for index, (prompt, seed) in enumerate(zip(PROMPTS, SEEDS, strict=True)):
        response = turns.responses[index]
        expected = one_by_one(engine, prompt, sampling, seed, index, TURNS)
        assert response.tokens == expected.tokens
        assert response.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
        given = TURNS.get(index, 0) - turns.left.get(index, 0)
        assert len(response.tokens) - sum(response.sampled) == 2 * given
    assert sum(turns.left.values()) < sum(TURNS.values())
    engine.close()


OWN = """
from verl_hpc.environments.environment import Done, Environment

class Says(Environment):
    def reset(self, problem):
        self.number = problem.index

    def step(self, tokens, text):
        if FAILS and self.number % 3 == 1:
            raise ValueError("no such number")
        return f"({self.number})"
"""


def recipe(here, model, directory, name, *, fails=False, **rollout):
    """Two steps with vLLM and an environment."""
    if here.world.rank == 0:
        (directory / f"{name}.py").write_text(OWN.replace("FAILS", str(fails)))
    environment = {"name": f"{directory}/{name}.py:Says", "max_turns": 3}
    limits = {"engine": "vllm", "kv_cache_gib": 0.03, "temperature": 1.0, "top_p": 1.0}
    limits |= {"stop": ["a", "e", "3"], "max_response_tokens": 60, "environment": environment}
    return run(
        here,
        name,
        model,
        directory,
        recipe="rl",
        reward={"function": write_reward(here, directory, "score_turns")},
        algorithm={"advantage": {"name": "reinforce_plus_plus"}},
        rollout=ROLLOUT | limits | rollout,
    )


@pytest.mark.parametrize("tensor_parallel", [2, *all_slow(1)])
def test_a_recipe_trains_on_turns(here, tiny_model, shared_directory, tensor_parallel):
    model, name = tiny_model("qwen2", True, **VLLM_HEADS), f"turns-{tensor_parallel}"
    rows = recipe(here, model, shared_directory, name, tensor_parallel=tensor_parallel)
    assert len(rows) == 2
    for row in rows:
        assert row["rollout/turns/max"] in (2, 3)
        assert 1 < row["rollout/turns/mean"] < 3
        assert row["rollout/environment/num_failed"] == 0
        # What the model did not sample has no log-prob that could differ.
        assert row["training/rollout_log_probs_diff_max"] < 1e-3
        # A number of 0 to 1 for each turn.
        assert row["critic/score/max"] > 1


def test_a_step_that_fails_is_an_error_on_every_rank(here, tiny_model, shared_directory):
    model = tiny_model("qwen2", True, **VLLM_HEADS)
    with pytest.raises(EnvironmentStepError, match="no such number"):
        recipe(here, model, shared_directory, "failing-turns", fails=True, tensor_parallel=2)
