"""Tools and games of the package, asked as a rank asks them."""

import pytest

from tests.unit.environments.talking import begun, heard, said
from verl_hpc.config.data import ReasoningGymConfig
from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.sources import open_source
from verl_hpc.environments.environment import Done
from verl_hpc.environments.processes import Environments


def python(program):
    return f"<python>{program}</python>"


def test_programs_of_two_conversations_at_a_time():
    environments = Environments(EnvironmentConfig(name="python"))
    with (
        begun(environments, Problem(0, "q")) as first,
        begun(environments, Problem(1, "q")) as second,
    ):
        first.tell([1], python("import time; time.sleep(0.5); print('first')"))
        second.tell([1], python("print('second')"))
        assert heard(second) == "second"
        assert heard(first) == "first"
        assert said(first, "that is all") == Done()
        assert said(second, python("print(6 * 7)")) == "42"


def test_a_program_that_takes_too_long_is_told_so():
    environments = Environments(EnvironmentConfig(name="python", options={"timeout_s": 1.0}))
    with begun(environments, Problem(0, "q")) as conversation:
        found = said(conversation, python("while True: pass"))
        assert found.startswith("error: timed out: more than 1 s")
        assert said(conversation, python("print('still here')")) == "still here"


@pytest.fixture(scope="module")
def game():
    return Environments(EnvironmentConfig(name="reasoning_gym"))


ROWS = open_source(ReasoningGymConfig(task="chain_sum", size=2, seed=3))


@pytest.mark.parametrize("row", [0, 1])
def test_a_game_of_a_real_row_goes_on_until_the_answer_is_right(game, row):
    problem = ROWS[row]
    wrong = int(problem.ground_truth) + 1
    with begun(game, problem) as conversation:
        for _ in range(2):
            found = said(conversation, f"<answer>{wrong}</answer>")
            assert found == "That is not right. Try again."
        assert said(conversation, f"<answer>{problem.ground_truth}</answer>") == Done()
