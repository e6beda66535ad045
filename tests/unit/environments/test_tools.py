"""Tools that run programs, and games: what they say to a turn, and which turns end."""

import pytest
from pydantic import ValidationError

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done
from verl_hpc.environments.python import Python
from verl_hpc.environments.reasoning_gym import ReasoningGym
from verl_hpc.errors import ConfigError


def test_programs_are_run():
    python = Python()
    python.reset(Problem(0, "q"))
    assert python.step([], "I compute: <python>print(6 * 7)</python>") == "42"
    assert python.step([], "so it is 42") == Done()


@pytest.mark.parametrize("options", [{}, {"timeout_s": 3}, {"timeout_s": 2.5}])
def test_a_step_has_time_for_its_program(options):
    name = f"options.timeout_s = {options.get('timeout_s', 5):g}, which a program may take"
    with pytest.raises(ValidationError, match=name):
        EnvironmentConfig(name="python", options=options, timeout_s=2.5)
    EnvironmentConfig(name="python", options=options)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('half'); 1 / 0", "half\n\nerror: ZeroDivisionError: division by zero"),
        ("pass", "(no output)"),
        ("import sys; sys.exit(3)", "\nerror: exit status 3"),
        ("while True: pass", "error: timed out: more than 1 s"),
        ("print('x' * 50)", "xxxxx ... xxxxx"),
        ("import os; os.fork()", "error: too many processes: a program may start no other"),
    ],
)
def test_what_a_program_is_told_that_fails(program, said):
    python = Python(timeout_s=1.0, longest=10 if "50" in program else 2000)
    found = python.step([], f"<python>{program}</python>")
    assert found.startswith(said) if "timed out" in said else found == said.strip("\n")


def game(**options):
    found = ReasoningGym(**options)
    entry = {"question": "What is 2 + 2?", "metadata": {}, "options": {}}
    found.reset(Problem(0, "What is 2 + 2?", "reasoning_gym/basic_arithmetic", "4", entry))
    return found


def test_a_game_goes_on_until_the_answer_is_right():
    played = game(says="no, {score}")
    assert played.step([], "<answer>5</answer>").startswith("no, 0")
    assert played.step([], "<answer>4</answer>") == Done()


def test_a_game_needs_a_task():
    with pytest.raises(ConfigError, match="data_source = 'gsm8k' is no task"):
        ReasoningGym().reset(Problem(0, "q", "gsm8k"))
