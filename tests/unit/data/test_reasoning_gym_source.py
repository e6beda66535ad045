"""Problems of reasoning-gym."""

import json
import os
import subprocess
import sys
import time

import pytest

from verl_hpc.config.data import ReasoningGymConfig
from verl_hpc.data import reasoning_gym_source, scan
from verl_hpc.data.reasoning_gym_source import HASH_ORDERED_TASKS
from verl_hpc.data.sources import open_source
from verl_hpc.data.split import is_held_out
from verl_hpc.errors import DataError

TWO_TERMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def chain_sum(**settings) -> ReasoningGymConfig:
    return ReasoningGymConfig(**{"task": "chain_sum", "size": 5, "options": TWO_TERMS, **settings})


def test_a_problem_carries_all_that_its_scorer_needs():
    problem = open_source(chain_sum(template="Q: {question}\n\\boxed{}?"))[3]
    assert problem.prompt == f"Q: {problem.extra['question']}\n\\boxed{{}}?"
    assert problem.data_source == "reasoning_gym/chain_sum"
    assert problem.ground_truth == problem.answer == problem.extra["answer"]
    assert (problem.extra["metadata"]["num_terms"], problem.extra["options"]) == (2, TWO_TERMS)


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


def spelled(split, **settings) -> list[str]:
    """Questions of a task with many of them."""
    options = {"task": "spell_backward", "options": {}, "size": 200, "split": split, **settings}
    return [problem.extra["question"] for problem in open_source(chain_sum(**options))]


def test_splits_share_no_question_whatever_seed_and_size():
    held_out = [set(spelled("evaluation", seed=seed, size=100 * seed)) for seed in (1, 2, 3)]
    for seed, size in ((1, 200), (2, 1000), (77, 500)):
        train = spelled("train", seed=seed, size=size)
        assert len(train) == size
        assert not set(train) & set().union(*held_out)
    assert set(spelled("all", size=1000)) & set(spelled("train", size=1000))


def test_evaluation_has_no_question_twice():
    source = open_source(chain_sum(size=16, split="evaluation", seed=4))
    assert len({problem.extra["question"] for problem in source}) == 16
    # Without looking for new ones there would be fewer.
    held_out = (p.extra["question"] for p in open_source(chain_sum(size=1000, seed=4)))
    assert len(set([question for question in held_out if is_held_out(question, 0.1)][:16])) < 16


def test_rows_of_a_split_are_found_without_those_before_them():
    def fresh():
        return open_source(chain_sum(size=100, seed=3, split="train"))

    rows = [problem.prompt for problem in fresh()]
    assert (fresh()[99].prompt, [fresh()[i].index for i in (0, 50)]) == (rows[99], [0, 50])
    assert (
        rows[:20] != [problem.prompt for problem in open_source(chain_sum(size=100, seed=3))][:20]
    )


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_a_share_of_all_questions_is_held_out(share):
    held_out = [is_held_out(f"question {i}", share) for i in range(10_000)]
    assert abs(sum(held_out) / len(held_out) - share) < 0.2 * share


def test_what_is_held_out_stays_so_in_later_versions_and_with_larger_shares():
    assert [i for i in range(60) if is_held_out(f"{i} + {i}?", 0.1)] == [0, 14, 25, 26, 30, 52, 56]
    assert is_held_out(" 3 +\n3?", 0.5) == is_held_out("3 + 3?", 0.5)
    smaller, larger = ([is_held_out(str(i), share) for i in range(500)] for share in (0.1, 0.2))
    assert all(b for a, b in zip(smaller, larger, strict=True) if a)


def test_a_split_that_cannot_be_filled_says_how_many_there_are():
    with pytest.raises(
        DataError, match=r"has only \d+ different questions .* size = 100; lower size"
    ):
        open_source(chain_sum(size=100, split="evaluation"))
    one = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}
    with pytest.raises(DataError, match=r"no question for train in row 0: .* evaluation_share"):
        open_source(chain_sum(options=one, split="train", evaluation_share=0.999))[0]


def test_a_search_for_new_questions_ends_long_before_all_entries_are_tried():
    """There are a few hundred questions, of which hardly one in a thousand is held out."""
    options = {"size": 100_000, "split": "evaluation", "evaluation_share": 0.001}
    with pytest.raises(DataError, match=r"only \d different questions .* among [0-9]{2,3},000 ent"):
        open_source(chain_sum(**options))


def test_a_long_search_says_how_far_it_is(monkeypatch, caplog):
    monkeypatch.setattr(scan, "TOLD_EVERY_S", 0.0)
    spelled("evaluation", size=2)
    assert "spell_backward: 1 of 2 questions for evaluation found" in caplog.messages


@pytest.mark.parametrize("split", ["all", "train", "evaluation"])
def test_a_task_that_fails_is_named_with_its_options(split, monkeypatch):
    def fail(self, index):
        raise ZeroDivisionError("0")

    monkeypatch.setattr("reasoning_gym.arithmetic.chain_sum.ChainSumDataset.__getitem__", fail)
    with pytest.raises(DataError, match=r"chain_sum with options = .* fails in entry 0: ZeroDiv"):
        open_source(chain_sum(split=split))[0]


def test_numbers_of_more_digits_than_python_writes_are_refused():
    """It would take hours to find out."""
    with pytest.raises(DataError, match=r"max_digits = 1000000000: .* at most 4300 digits"):
        open_source(chain_sum(options={"max_digits": 10**9}))


def test_a_task_that_does_not_end_is_named_too(monkeypatch):
    source = open_source(chain_sum())
    monkeypatch.setattr(reasoning_gym_source, "ENTRY_S", 0.05)
    monkeypatch.setattr(type(source._dataset), "__getitem__", lambda self, index: time.sleep(9))
    with pytest.raises(DataError, match=r"chain_sum with .* needs more than 0\.05 s for entry 0"):
        source[0]


def problems(tasks, num_rows: int, hash_seed: int) -> dict[str, list]:
    """The first problems of each task, made by a process with its own order of sets."""
    program = (
        "import json, reasoning_gym\n"
        f"made = {{task: [(row['question'], row['answer']) for row in reasoning_gym.create_dataset("
        f"task, size={num_rows}, seed=5)] for task in {sorted(tasks)}}}\n"
        "print(), print(json.dumps(made))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    out = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    # Some tasks print to stdout while they generate.
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_tasks_that_differ_between_processes_agree_without_hash_randomisation():
    quick = HASH_ORDERED_TASKS - {"knight_swap"}
    assert problems(quick, 2, hash_seed=0) == problems(quick, 2, hash_seed=0)


@pytest.mark.slow
def test_no_other_task_differs_between_processes():
    from reasoning_gym.factory import DATASETS

    tasks = set(DATASETS) - {"composite"}
    first, second = (problems(tasks, 6, hash_seed) for hash_seed in (1, 2))
    assert {task for task in tasks if first[task] != second[task]} == HASH_ORDERED_TASKS
