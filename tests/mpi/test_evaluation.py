"""Sampled answers to evaluation sets: the same on every layout, and all of them in the file."""

import pytest

from tests.mpi.recipe_runs import SAME_DRAWS, run, write_reward
from verl_hpc.metrics.generations import generation_steps, read_generations
from verl_hpc.runs.heartbeat import read_heartbeat

pytestmark = pytest.mark.world(2)

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
                steps=None,
                epochs=2,
                parallel=parallel,
                optimizer={"lr": 1e-5, "schedule": "linear"},
                batch={"size": 2, "max_tokens_per_micro_batch": 400},
                data={"train": TASK | {"size": 2}},
                rollout=SAME_DRAWS,
                reward=reward,
                evaluation={"at_start": True, "save_generations": True, "sets": SETS},
            )
            directory = shared_directory / "runs" / f"evaluation-{name}"
            assert generation_steps(directory) == [0, 2]
            known[name] = rows, list(read_generations(directory, 0))
        return known[name]

    return get


def test_the_layout_changes_no_answer(evaluated):
    (expected, answers), (found, others) = (
        evaluated("dp2"), evaluated("tp2", tensor_parallel=2)
    )  # fmt: skip
    assert others == answers
    before = {name: value for name, value in expected[0].items() if name.startswith("val/")}
    assert {"val/score/mean", "val/hot/avg@3", "val/hot/pass@2", "val/greedy/accuracy"} <= {*before}
    assert {name: found[0][name] for name in before} == before
    assert 0 < before["val/hot/score/mean"] < 1


def test_two_epochs_of_one_batch_are_two_steps(evaluated, shared_directory):
    """The status and the learning rate know of them."""
    rows, _ = evaluated("dp2")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[2]["actor/lr"] < rows[1]["actor/lr"] <= 1e-5
    beat = read_heartbeat(shared_directory / "runs" / "evaluation-dp2")
    assert (beat.total_steps, beat.outcome) == (2, "finished")


def test_answers_of_all_ranks_are_in_the_file(evaluated):
    """Two engines have 18 answers to one set, and 5 to the other."""
    rows, answers = evaluated("dp2")
    hot = [("hot", row, sample) for row in range(6) for sample in range(3)]
    greedy = [("greedy", row, 0) for row in range(5)]
    assert [(a.set, a.row, a.sample) for a in answers] == hot + greedy
    assert len({a.response for a in answers if a.set == "hot"}) > 6
    mean = sum(a.score for a in answers if a.set == "hot") / len(hot)
    assert rows[0]["val/hot/score/mean"] == pytest.approx(mean)
    assert max(a.num_tokens for a in answers if a.set == "hot") <= 12
