"""The scorers of reasoning-gym's tasks, on entries as the data room hands them over."""

import pytest
import reasoning_gym

from verl_hpc.errors import RewardError
from verl_hpc.rewards.functions import reasoning_gym as reasoning_gym_reward
from verl_hpc.rewards.functions.reasoning_gym import _EVALUATED
from verl_hpc.rewards.functions.reasoning_gym import reasoning_gym as compute_score


def entry(task, index=0, **options) -> dict:
    made = reasoning_gym.create_dataset(task, size=index + 1, seed=3, **options)[index]
    return {**made, "options": options}


def score(task, response, extra) -> float:
    return compute_score(f"reasoning_gym/{task}", response, extra["answer"], extra)


@pytest.mark.parametrize("task", ["chain_sum", "gcd", "spell_backward", "countdown", "sudoku"])
def test_the_right_answer_scores_one(task):
    problem = entry(task)
    assert score(task, problem["answer"], problem) == 1.0
    assert score(task, f"  {problem['answer']}\n", problem) == 1.0


def test_tags_say_where_the_answer_is():
    problem = entry("chain_sum")
    answer = problem["answer"]
    assert score("chain_sum", f"I think 1, no. <answer> {answer} </answer> Done.", problem) == 1.0
    assert score("chain_sum", f"{answer} <answer></answer>", problem) == 0.0
    assert score("chain_sum", f"<answer>1</answer><answer>{answer}</answer>", problem) == 1.0


def test_wrong_answers_score_less():
    problem = entry("chain_sum")
    assert score("chain_sum", "no idea", problem) == 0.0
    assert 0.0 < score("chain_sum", f"It is {problem['answer']}.", problem) < 1.0


def test_the_tasks_own_settings_are_used():
    """puzzle24 accepts numbers up to max_value, which is 10 by default."""
    problem = {"metadata": {"numbers": [8, 3, 1, 1]}, "answer": "8 * 3 * 1 * 1"}
    assert score("puzzle24", problem["answer"], problem) == 1.0
    narrow = {**problem, "options": {"max_value": 6}}
    assert score("puzzle24", problem["answer"], narrow) < 1.0


def test_an_answer_its_scorer_cannot_read_is_wrong():
    problem = entry("prime_factorization")
    assert score("prime_factorization", "two times five", problem) == 0.0


def test_an_answer_its_scorer_takes_forever_to_read_is_wrong():
    problem = {"metadata": {"numbers": [8, 3, 1, 1]}, "answer": "8 * 3 * 1 * 1"}
    endless = "9 ** 9 ** 9 ** 9"
    assert compute_score("reasoning_gym/puzzle24", endless, "24", problem, timeout_s=0.2) == 0.0


def test_an_entry_its_scorer_cannot_read_is_an_error():
    with pytest.raises(KeyError, match="metadata"):
        score("sudoku", "1 2 3 4", {"answer": "4 3 2 1"})


@pytest.mark.parametrize("source", ["reasoning_gym/no_such_task", "openai/gsm8k"])
def test_a_source_that_is_no_task_is_an_error(source):
    with pytest.raises(RewardError, match=f"data_source = '{source}' names no task"):
        compute_score(source, "1", "1", {})


PROGRAMS = [
    'exec("import reasoning_gym")', "__import__('sys').exit()", "(exec)('1')", "[exec][0]('1')",
    "exec ('1')", "exec\\\n('1')", "x.__class__", "print('24')", "(lambda: 24)()", "str . join",
    "sin(exec('1'))", "sqrt (open('x'))", "{1: exec}[1]('1')", "f'{exec(1)}'", "getattr(x, 'y')",
]  # fmt: skip


@pytest.mark.parametrize("task", ["countdown", "puzzle24", *_EVALUATED])
def test_no_scorer_runs_a_program(task, monkeypatch):
    """Some evaluate an answer as Python, in the process that scores all others."""
    problem = entry(task)

    def fails(*_):
        raise AssertionError("the task's scorer has seen a program")

    monkeypatch.setattr(reasoning_gym_reward, "_scorer", lambda *_: fails)
    for program in PROGRAMS:
        assert score(task, program, problem) == 0.0, program
        assert score(task, f"<answer>{program}</answer>", problem) == 0.0, program


def test_formulas_and_lists_of_evaluated_tasks_are_scored():
    for task in ("countdown", "puzzle24", *_EVALUATED):
        for index in range(3):
            problem = entry(task, index)
            # Some integrals are their own answers, which says nothing.
            if "Integral(" not in (problem["answer"] or "Integral("):
                assert score(task, problem["answer"], problem) == 1.0, (task, problem["answer"])
    problem = entry("spiral_matrix")
    assert score("spiral_matrix", str(problem["answer"].split()), problem) == 0.1


@pytest.mark.parametrize("answer", ["0x77 + 0x0*67*50*20*82", "67 + 50 + 20 + 82 - 1_00"])
def test_numbers_of_countdown_are_decimal(answer):
    problem = {"metadata": {"numbers": [67, 50, 20, 82], "target": 119}, "answer": "119"}
    assert score("countdown", answer, problem) == 0.0


def test_what_stands_before_the_end_of_thinking_is_no_answer():
    problem = {"metadata": {}, "answer": "100"}
    for response, right in (
        ("<think>I answer in <answer> tags.</think><answer>100</answer>", True),
        ("<think>Perhaps <answer>100</answer>?</think> The total is 96.", False),
        ("<think><answer>96</answer> is wrong.</think> 100", True),
        ("<think>So 96.</think>100", True),
        ("<answer>" * 100_000, False),
    ):
        assert (score("leg_counting", response, problem) == 1.0) == right, response[:80]
