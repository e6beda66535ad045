"""Problems of reasoning-gym."""

import json
import os
import subprocess
import sys

import pytest

from verl_hpc.config.data import ReasoningGymConfig
from verl_hpc.data.reasoning_gym_source import HASH_ORDERED_TASKS
from verl_hpc.data.sources import open_source
from verl_hpc.errors import DataError

TWO_TERMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def chain_sum(**settings) -> ReasoningGymConfig:
    return ReasoningGymConfig(**{"task": "chain_sum", "size": 5, "options": TWO_TERMS, **settings})


def test_a_problem_carries_all_that_its_scorer_needs():
    problem = open_source(chain_sum(template="Q: {question}\n\\boxed{}?"))[3]
    assert problem.prompt == f"Q: {problem.extra['question']}\n\\boxed{{}}?"
    assert problem.data_source == "reasoning_gym/chain_sum"
    assert problem.ground_truth == problem.answer == problem.extra["answer"]
    assert problem.extra["metadata"]["num_terms"] == 2
    assert problem.extra["options"] == TWO_TERMS


def test_rows_follow_from_the_seed_alone():
    first, again, other = (open_source(chain_sum(seed=seed)) for seed in (7, 7, 8))
    assert first[4] == again[4]
    assert [p.prompt for p in first] != [p.prompt for p in other]
    assert len(first) == len(list(first)) == 5


def test_an_unknown_task_names_near_ones():
    with pytest.raises(DataError, match="no task 'chain_sun'; did you mean chain_sum"):
        open_source(chain_sum(task="chain_sun"))


@pytest.mark.parametrize(
    "options", [{"terms": 2}, {"min_terms": 5, "max_terms": 2}, {"min_terms": "two"}]
)
def test_options_a_task_refuses_are_listed_with_those_it_has(options):
    with pytest.raises(DataError, match=r"chain_sum refuses options = .*its options are min_terms"):
        open_source(chain_sum(options=options))


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="runs with PYTHONHASHSEED=0")
def test_tasks_that_differ_between_processes_are_refused():
    with pytest.raises(DataError, match=r"ransom_note depends on .* PYTHONHASHSEED=0"):
        open_source(chain_sum(task="ransom_note", options={}))


def problems(tasks, num_rows: int, hash_seed: int) -> dict[str, list]:
    """The first problems of each task, made by a process with its own order of sets."""
    program = (
        "import json, reasoning_gym\n"
        "made = {\n"
        "    task: [(row['question'], row['answer']) for row in\n"
        f"           reasoning_gym.create_dataset(task, size={num_rows}, seed=5)]\n"
        f"    for task in {sorted(tasks)}\n"
        "}\n"
        "print()\n"
        "print(json.dumps(made))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    # Some tasks print to stdout while they generate.
    return json.loads(finished.stdout.splitlines()[-1])


def test_tasks_that_differ_between_processes_agree_without_hash_randomisation():
    quick = HASH_ORDERED_TASKS - {"knight_swap"}
    assert problems(quick, 2, hash_seed=0) == problems(quick, 2, hash_seed=0)


@pytest.mark.slow
def test_no_other_task_differs_between_processes():
    from reasoning_gym.factory import DATASETS

    tasks = set(DATASETS) - {"composite"}
    first, second = (problems(tasks, 6, hash_seed) for hash_seed in (1, 2))
    assert {task for task in tasks if first[task] != second[task]} == HASH_ORDERED_TASKS
