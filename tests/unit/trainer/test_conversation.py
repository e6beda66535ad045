"""Conversations of an engine with environments: limits, errors, and what is told apart."""

import time

import pytest

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done, Environment
from verl_hpc.environments.registry import environment_of
from verl_hpc.errors import ConfigError, RewardError
from verl_hpc.rollout.partial import this_turn
from verl_hpc.rollout.protocol import Response, Sampling
from verl_hpc.testing.local import LocalRollout
from verl_hpc.testing.local_run import LetterTokenizer
from verl_hpc.trainer.conversation import Conversations

PROBLEMS = {i: Problem(i, "q", origin=f"data.jsonl, line {i + 1}") for i in range(4)}


class Echo(Environment):
    """Says a letter, so many times, and notes what it was told."""

    def __init__(self, times=2, says="k"):
        self.left, self.says, self.told = times, says, []

    def reset(self, problem):
        self.problem = problem

    def step(self, tokens, text):
        self.told.append((tuple(tokens), text))
        self.left -= 1
        return self.says if self.left >= 0 else Done()


def conversations(make, longest=40, **config):
    settings = EnvironmentConfig(name="own.py:Echo", **{"max_turns": 8} | config)
    chat = dict.fromkeys(PROBLEMS, False)
    return Conversations(
        settings, make, PROBLEMS, LetterTokenizer(), chat, lambda i, n: 100 * i + n, longest
    )


def talk(turns, longest=40):
    prompts, seeds = [[3, 4], [5, 6, 7], [3, 5], [6]], [11, 12, 13, 14]
    return LocalRollout(max_num_seqs=2).generate(prompts, Sampling(longest), seeds, turns=turns)


def test_each_response_has_an_environment_of_its_own():
    made = []

    def make():
        made.append(Echo())
        return made[-1]

    turns = conversations(make)
    found = talk(turns)
    # A response that was cut in its first turn needs none.
    assert 0 < len(made) <= 4
    assert len({id(e) for e in made}) == len({e.problem.index for e in made}) == len(made)
    for environment in made:
        response = found[environment.problem.index]
        own = [t for t, m in zip(response.tokens, response.sampled, strict=True) if m]
        told = [t for tokens, _ in environment.told for t in tokens]
        # All that was told was sampled; a last turn that was cut is told to nobody.
        assert own[: len(told)] == told
        assert len(told) == len(own) or response.finish_reason == "length"
    assert turns.counts.turns == sum(len(e.told) for e in made) + sum(
        r.finish_reason == "length" for r in found
    )
    assert turns.counts.failed == 0


@pytest.mark.parametrize("most", [1, 2, 3])
def test_turns_are_limited(most):
    turns = conversations(lambda: Echo(times=99), max_turns=most)
    for response in talk(turns):
        observed = sum(not own for own in response.sampled)
        assert observed <= most - 1


def test_no_response_is_longer_than_the_longest():
    for response in talk(conversations(lambda: Echo(9, "k" * 7), longest=12), longest=12):
        assert len(response.tokens) <= 12
        assert response.sampled[-1] == 1, "an observation that nobody answers is left out"


class Raises(Echo):
    def step(self, tokens, text):
        raise RuntimeError("out of order")


class Exits(Echo):
    def step(self, tokens, text):
        raise SystemExit(3)


class Hangs(Echo):
    def step(self, tokens, text):
        time.sleep(60)


class Strange(Echo):
    def step(self, tokens, text):
        return 7


class CannotBegin(Echo):
    def reset(self, problem):
        raise ValueError("no such row")


FAULTS = {
    Raises: "RuntimeError: out of order",
    Exits: r"it calls sys.exit\(3\)",
    Hangs: "a step takes longer than timeout_s = 0.05",
    Strange: "a step gives int; expected a text, or Done",
    CannotBegin: "ValueError: no such row",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_step_that_fails_ends_the_run_and_names_the_row(kind):
    with pytest.raises(RewardError, match=FAULTS[kind]) as caught:
        talk(conversations(kind, timeout_s=0.05))
    for words in ("own.py:Echo", "data.jsonl, line", "set rollout.environment.on_error: end"):
        assert words in str(caught.value)


@pytest.mark.parametrize("kind", FAULTS)
def test_or_ends_its_conversation_and_is_counted(kind):
    turns = conversations(kind, timeout_s=0.05, on_error="end")
    found = talk(turns)
    assert all(all(response.sampled) for response in found)
    assert turns.counts.failed == sum(r.finish_reason == "stop" for r in found) > 0


def test_this_turn_is_what_follows_the_last_observation():
    assert list(this_turn(Response((1, 2, 3), (0.0,) * 3, "stop"))) == [1, 2, 3]
    assert list(this_turn(Response((1, 2, 3), (0.0,) * 3, "stop", (1, 0, 1)))) == [3]
    assert list(this_turn(Response((1, 2), (0.0,) * 2, "unfinished", (1, 0)))) == []


OWN = """
from verl_hpc.environments.environment import Done, Environment

class Mine(Environment):
    def __init__(self, words):
        self.words = words
    def step(self, tokens, text):
        return self.words

def function():
    pass
"""


def test_one_of_the_users(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    name = f"{tmp_path}/own.py:Mine"
    make = environment_of(EnvironmentConfig(name=name, options={"words": "go on"}))
    assert make().step([], "") == "go on"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("own.py:Mine", {}, "options = {}: TypeError: .*words"),
        ("own.py:function", {}, "expected a class, a kind of"),
        ("own.py:Yours", {}, "defines no 'Yours'; it defines"),
        ("gone.py:Mine", {}, "no file"),
        (None, {"tags": 1}, "TypeError: .*tags"),
    ],
)
def test_environments_that_cannot_be_made(tmp_path, name, options, words):
    (tmp_path / "own.py").write_text(OWN)
    config = EnvironmentConfig(name=f"{tmp_path}/{name}" if name else "calculator", options=options)
    with pytest.raises(ConfigError, match=words):
        environment_of(config)
