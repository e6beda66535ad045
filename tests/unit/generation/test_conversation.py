"""Conversations of an engine with environments: limits, errors, and what is kept apart."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.generated import feed_of
from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.environments import processes
from verl_hpc.environments.helper import environment_of
from verl_hpc.environments.processes import Environments
from verl_hpc.errors import ConfigError, DataError, EnvironmentStepError
from verl_hpc.generation.conversation import Conversations
from verl_hpc.rollout.partial import this_turn
from verl_hpc.rollout.protocol import Response, Sampling, never
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import LetterTokenizer

PROBLEMS = [Problem(i, "q", origin=f"data.jsonl, line {i + 1}") for i in range(4)]

OWN = """
import ctypes, json, os, signal, subprocess, sys, time
from verl_hpc.environments.environment import Done, Environment

class Echo(Environment):
    "Says a letter, so many times, and notes what it was told."

    def __init__(self, notes, times=2, says="k"):
        self.notes, self.left, self.says, self.told = notes, times, says, []

    def reset(self, problem):
        self.problem = problem

    def step(self, tokens, text):
        self.told.append((tokens, text))
        name = f"{self.notes}/{self.problem.index}-{os.getpid()}.json"
        with open(name, "w") as file:
            json.dump(self.told, file)
        self.left -= 1
        return self.says if self.left >= 0 else Done()

class Raises(Echo):
    def step(self, tokens, text):
        raise RuntimeError("out of order")

class Exits(Echo):
    def step(self, tokens, text):
        raise SystemExit(3)

class ExitsAtOnce(Echo):
    def step(self, tokens, text):
        os._exit(3)

class Forks(Echo):
    def step(self, tokens, text):
        if os.fork() == 0:
            return "from a second process"
        os._exit(0)

class Hangs(Echo):
    def step(self, tokens, text):
        time.sleep(60)

class HangsDeaf(Echo):
    def step(self, tokens, text):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        time.sleep(60)

class Strange(Echo):
    def step(self, tokens, text):
        return 7

class Long(Echo):
    def step(self, tokens, text):
        return "k" * 2**21

class Silent(Echo):
    def step(self, tokens, text):
        return ""

class Prints(Echo):
    def step(self, tokens, text):
        for _ in range(2**10):
            print("x" * 2**20)
        return Done()

class CannotBegin(Echo):
    def reset(self, problem):
        raise ValueError("no such row")

class SlowToMake(Echo):
    def __init__(self, notes):
        super().__init__(notes)
        time.sleep(0.6)

class StartsOthers(Echo):
    def step(self, tokens, text):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(f"{self.notes}/child-{child.pid}", "w"):
            pass
        time.sleep(60)

class SlowForOne(Echo):
    "The first row's first step takes long; all others answer at once."
    waits = 3.0

    def step(self, tokens, text):
        if self.problem.index == 0:
            time.sleep(self.waits)
            self.waits = 0.0
        with open(f"{self.notes}/order", "a") as file:
            file.write(f"{self.problem.index} ")
        self.left -= 1
        return self.says if self.left >= 0 else Done()

def function():
    pass
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("environments") / "own.py"
    path.write_text(OWN)
    return path


def conversations(
    own, notes, kind, longest=40, options=(), problems=PROBLEMS, interrupted=never, **config
):
    options = {"notes": str(notes), **dict(options)}
    settings = EnvironmentConfig(name=f"{own}:{kind}", options=options, **{"max_turns": 8} | config)
    around = Encoder(LetterTokenizer()), lambda i, n: 100 * i + n, Sampling(longest)
    feed = feed_of([[3, 4], [5, 6, 7], [3, 5], [6]], [11, 12, 13, 14], interrupted=interrupted)
    return Conversations(feed, settings, Environments(settings), problems, *around)


def talk(turns, longest=40, num_seqs=2):
    """Responses, and failures of steps."""
    with closing(turns):
        LocalRollout(max_num_seqs=num_seqs).generate(turns, Sampling(longest))
    return turns.responses, list(turns.failures)


def test_each_response_has_an_environment_of_its_own(own, tmp_path):
    responses, failures = talk(conversations(own, tmp_path, "Echo"))
    notes = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    # A response that was cut in its first turn needs none.
    assert 0 < len(notes) <= 4
    assert len({name.partition("-")[0] for name in notes}) == len(notes), "one a row"
    assert len({name.partition("-")[2] for name in notes}) == len(notes), "one a process"
    for name, told in notes.items():
        response = responses[int(name.partition("-")[0])]
        own_tokens = [t for t, m in zip(response.tokens, response.sampled, strict=True) if m]
        said = [token for tokens, _ in told for token in tokens]
        # All that was told was sampled; a last turn that was cut is told to nobody.
        assert own_tokens[: len(said)] == said
        assert len(said) == len(own_tokens) or response.finish_reason == "length"
    assert not failures


@pytest.mark.parametrize("most", [2, 3])
def test_turns_are_limited(own, tmp_path, most):
    turns = conversations(own, tmp_path, "Echo", options={"times": 99}, max_turns=most)
    for response in talk(turns)[0]:
        assert sum(not own for own in response.sampled) <= most - 1


def test_no_response_is_longer_than_the_longest(own, tmp_path):
    turns = conversations(own, tmp_path, "Echo", 12, {"times": 9, "says": "k" * 7})
    found, _ = talk(turns, longest=12)
    for response in found:
        assert len(response.tokens) <= 12
        assert response.sampled[-1] == 1, "an observation that nobody answers is left out"
        # With one more token to answer it in it would have been there.
        assert (response.finish_reason == "length") == (len(response.tokens) + 7 >= 12)
    assert any(r.finish_reason == "length" and len(r.tokens) < 12 for r in found)


def test_a_slow_step_delays_its_own_response_alone(own, tmp_path):
    talk(conversations(own, tmp_path, "SlowForOne"))
    order = (tmp_path / "order").read_text().split()
    assert set(order) >= {"0", "1"}, "the first one and others have turns"
    others = [number for number in order if number != "0"]
    assert order[: len(others)] == others, "the others were done before the slow one's first step"


FAULTS = {
    "Raises": "RuntimeError: out of order",
    "Exits": r"it calls sys.exit\(3\)",
    "ExitsAtOnce": "its process has ended",
    "Forks": "its process has ended",
    "Hangs": "a step takes longer than timeout_s = 0.3",
    "HangsDeaf": "a step takes longer than timeout_s = 0.3, and did not end",
    "Strange": "a step gives int; expected a text, or Done",
    "Long": "a step says 2,097,152 characters; at most 1,048,576",
    "CannotBegin": "ValueError: no such row",
    "Silent": "a step says nothing",
}


def test_a_step_that_fails_ends_the_run_and_names_the_row(own, tmp_path):
    with pytest.raises(EnvironmentStepError, match=FAULTS["Raises"]) as caught:
        talk(conversations(own, tmp_path, "Raises"))
    for words in ("own.py:Raises", "data.jsonl, line", "set rollout.environment.on_error: end"):
        assert words in str(caught.value)


@pytest.mark.parametrize("kind", FAULTS)
def test_or_ends_its_conversation_and_is_counted(own, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(processes, "LATE_S", 0.5)
    found, failures = talk(conversations(own, tmp_path, kind, timeout_s=0.3, on_error="end"))
    assert all(all(response.sampled) for response in found)
    assert len(failures) == sum(r.finish_reason == "stop" for r in found) > 0
    assert all(re.search(FAULTS[kind], failure) for failure in failures)


def test_what_a_step_prints_is_cut(own, tmp_path, capfd):
    found, failures = talk(conversations(own, tmp_path, "Prints"))
    ended = sum(response.finish_reason == "stop" for response in found)
    assert ended > 0
    assert not failures
    assert len(capfd.readouterr().out) <= ended * (2**18 + 100)


def children(notes):
    return [int(path.name.partition("-")[2]) for path in notes.glob("child-*")]


def assert_end(*started):
    """Processes end within ten seconds."""
    deadline = time.monotonic() + 10
    while any(map(_runs, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert started and not any(map(_runs, started))


def test_what_a_step_has_started_ends_with_its_conversation(own, tmp_path):
    talk(conversations(own, tmp_path, "StartsOthers", timeout_s=1.0, on_error="end"))
    assert_end(*children(tmp_path))


def _runs(process):
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_also_if_it_ends_before_it_has_said_a_word(own, tmp_path):
    settings = EnvironmentConfig(name=f"{own}:StartsOthers", options={"notes": str(tmp_path)})
    environments = Environments(settings)
    conversation = environments.begin(PROBLEMS[0])
    conversation.tell([1], "a")
    deadline = time.monotonic() + 30
    while not children(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    conversation.end()
    (child,) = children(tmp_path)
    assert_end(child)


LEAVES = """
import sys
from tests.generated import feed_of
from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.problem import Problem
from verl_hpc.environments.processes import Environments

if __name__ == "__main__":
    name, options = sys.argv[1], {}
    if name != "python":
        options = {"notes": sys.argv[2]}
    environments = Environments(EnvironmentConfig(name=name, options=options))
    conversation = environments.begin(Problem(0, "q"))
    conversation.tell([1], "<python>while True: pass</python>")
    print("leaves", flush=True)
"""


@pytest.mark.parametrize("kind", ["python", "HangsDeaf"])
def test_nothing_is_left_of_a_rank_that_is_gone(own, tmp_path, kind):
    """Whoever waits for the end of its output is not kept waiting."""
    name = kind if kind == "python" else f"{own}:{kind}"
    words = [sys.executable, "-c", LEAVES, name, str(tmp_path)]
    assert subprocess.check_output(words, text=True, timeout=60) == "leaves\n"


def test_an_environment_is_made_once(own, tmp_path):
    """What takes long there takes no time of a step."""
    found, failures = talk(conversations(own, tmp_path, "SlowToMake", timeout_s=0.5))
    assert not failures and not all(all(response.sampled) for response in found)


def test_so_many_conversations_at_a_time(own, tmp_path):
    turns = conversations(own, tmp_path, "SlowForOne", max_conversations=1)
    alive = []
    begin = turns._steps._environments.begin

    def counted(problem):
        alive.append(len(turns._steps._conversations))
        return begin(problem)

    turns._steps._environments.begin = counted
    talk(turns)
    assert len(alive) > 1
    assert set(alive) == {0}, "none beside another"


def test_an_engine_that_waits_for_a_tool_is_interrupted(own, tmp_path):
    start = time.monotonic()
    ends = {"timeout_s": 60.0, "interrupted": lambda: time.monotonic() > start + 4}
    turns = conversations(own, tmp_path, "Hangs", **ends)
    responses, _ = talk(turns, num_seqs=4)
    assert time.monotonic() < start + 30
    assert "unfinished" in {r.finish_reason for r in responses}, "those that wait"


def test_processes_end_with_the_helper(own, tmp_path):
    settings = EnvironmentConfig(name=f"{own}:Hangs", options={"notes": str(tmp_path)})
    environments = Environments(settings)
    conversation = environments.begin(PROBLEMS[0])
    conversation.tell([1], "a")
    assert conversation.answer() is None
    process = conversation._process
    os.kill(process, 0)
    environments._helper.process.kill()
    environments._helper.process.wait()
    assert_end(process)


def test_a_row_that_cannot_be_read_is_an_error_of_the_data(own, tmp_path):
    def unreadable():
        raise DataError("data.parquet, row 3: damaged")

    problems = [Problem(i, "q", columns=unreadable) for i in range(4)]
    with pytest.raises(DataError, match="row 3: damaged"):
        talk(conversations(own, tmp_path, "Echo", problems=problems))


def test_this_turn_is_what_follows_the_last_observation():
    assert list(this_turn(Response((1, 2, 3), (0.0,) * 3, "stop"))) == [1, 2, 3]
    assert list(this_turn(Response((1, 2, 3), (0.0,) * 3, "stop", (1, 0, 1)))) == [3]
    assert list(this_turn(Response((1, 2), (0.0,) * 2, "unfinished", (1, 0)))) == []


def test_one_of_the_users(own):
    config = EnvironmentConfig(name=f"{own}:Echo", options={"notes": ".", "says": "go on"})
    assert environment_of(config).says == "go on"


UNFIT_ENVIRONMENTS = [
    ("own.py:Echo", {}, "options = {}: TypeError: .*notes"),
    ("own.py:function", {}, "expected a class, a kind of"),
    ("own.py:Yours", {}, "defines no 'Yours'; it defines"),
    ("gone.py:Mine", {}, "no file"),
    (None, {"tags": 1}, "TypeError: .*tags"),
]


@pytest.mark.parametrize(("name", "options", "words"), UNFIT_ENVIRONMENTS)
def test_environments_that_cannot_be_made(own, name, options, words):
    config = EnvironmentConfig(
        name=f"{own.parent}/{name}" if name else "calculator", options=options
    )
    with pytest.raises(ConfigError, match=words):
        Environments(config).check()
