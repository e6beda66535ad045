"""Sampled answers to evaluation sets: the same on every layout, and all of them in the file."""

import pytest

from tests.mpi.recipe_runs import SAME_DRAWS, run, write_reward
from verl_hpc.metrics.generations import generation_steps, read_generations

pytestmark = pytest.mark.world(4)

TASK = {"kind": "reasoning_gym", "task": "chain_sum"}
SETS = {
    "hot": {"source": TASK | {"size": 6, "seed": 500}, "num_samples": 3, "temperature": 1.3},
    "greedy": {"source": TASK | {"size": 5, "seed": 900}, "max_response_tokens": 16},
}


@pytest.fixture(scope="module")
def evaluated(here, tiny_model, shared_directory):
    """`evaluated(layout)`: metrics by step, and the answers that were saved."""
    reward = {"function": write_reward(here, shared_directory)}
    known = {}

    def get(name, **parallel):
        if name not in known:
            rows = run(
                here,
                f"evaluation-{name}",
                tiny_model(),
                shared_directory,
                recipe="rl",
                steps=1,
                parallel=parallel,
                optimizer={"lr": 1e-5},
                batch={"size": 2, "max_tokens_per_micro_batch": 400},
                rollout=SAME_DRAWS,
                reward=reward,
                evaluation={"at_start": True, "save_generations": True, "sets": SETS},
            )
            directory = shared_directory / "runs" / f"evaluation-{name}"
            assert generation_steps(directory) == [0, 1]
            known[name] = rows, list(read_generations(directory, 0))
        return known[name]

    return get


def test_the_layout_changes_no_answer(evaluated):
    (expected, answers), (found, others) = (
        evaluated("dp4"), evaluated("tp2-pp2", tensor_parallel=2, pipeline_parallel=2)
    )  # fmt: skip
    assert others == answers
    before = {name: value for name, value in expected[0].items() if name.startswith("val/")}
    assert {"val/score/mean", "val/hot/avg@3", "val/hot/pass@2", "val/greedy/accuracy"} <= {*before}
    assert {name: found[0][name] for name in before} == before
    assert 0 < before["val/hot/score/mean"] < 1


def test_answers_of_all_ranks_are_in_the_file(evaluated):
    """Four engines have 18 answers to one set, and 5 to the other."""
    rows, answers = evaluated("dp4")
    hot = [("hot", row, sample) for row in range(6) for sample in range(3)]
    greedy = [("greedy", row, 0) for row in range(5)]
    assert [(a.set, a.row, a.sample) for a in answers] == hot + greedy
    assert len({a.response for a in answers if a.set == "hot"}) > 6
    mean = sum(a.score for a in answers if a.set == "hot") / len(hot)
    assert rows[0]["val/hot/score/mean"] == pytest.approx(mean)
    assert max(a.num_tokens for a in answers if a.set == "hot") <= 12
