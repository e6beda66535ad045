"""Programs of an engine: what they ask for, their scores, limits and ends."""

import re
from contextlib import closing
from dataclasses import replace

import pytest

from tests.generated import feed_of
from verl_hpc.agents.programs import Ended
from verl_hpc.agents.programs import Programs as Starter
from verl_hpc.config.program import ProgramConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import ConfigError, EnvironmentStepError
from verl_hpc.generation.programs import ProgramHost, Programs, scores_of
from verl_hpc.rollout.protocol import Sampling, never
from verl_hpc.runtime.one_rank import LocalControl
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import LetterTokenizer

NUM = 4
PROBLEMS = [Problem(i, "q", origin=f"data.jsonl, line {i + 1}") for i in range(NUM)]

AGENT = """
import json, os, pathlib, sys, time, urllib.request

def say(text, **more):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/completions",
        json.dumps({"model": "policy", "prompt": text, "max_tokens": 4} | more).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    return text + json.load(urllib.request.urlopen(request))["choices"][0]["text"]

row = json.load(open(os.environ["VERL_HPC_ROW"]))
"""
WRITES = 'pathlib.Path(os.environ["VERL_HPC_SCORE"]).write_text({})'


@pytest.fixture(scope="module")
def host_of():
    """Makes the host of a program; there is one starter of programs a process."""
    hosts = []

    def make(code, tmp_path, **config):
        agent = tmp_path / "agent.py"
        agent.write_text(AGENT + code)
        config = {"command": ["python", str(agent)], "sandbox": "none", "network": "node"} | config
        limits = {"max_prompt_tokens": 8, "max_response_tokens": 40}
        rollout = RolloutConfig.model_validate({"program": config, **limits})
        hosts.append(ProgramHost(rollout, Encoder(LetterTokenizer())))
        return hosts[-1]

    yield make
    for host in hosts:
        host.endpoint.stop()


def run(host, interrupted=never, num_seqs=2, problems=PROBLEMS):
    """Responses, and failures of programs."""
    feed = feed_of([[3, 4]] * NUM, [1] * NUM, interrupted=interrupted)
    around = problems, lambda i, n: 1000 * i + n % 1000, LocalControl()
    with closing(Programs(feed, host.config, host, *around)) as programs:
        LocalRollout(max_num_seqs=num_seqs).generate(programs, Sampling(40))
    return feed.responses, list(programs.failures)


def test_each_row_has_a_program_whose_turns_are_a_row_and_whose_score_is_kept(host_of, tmp_path):
    code = "say(say('a' * (1 + row['index'])) + 'b')\n" + WRITES.format("str(row['index'] / 4)")
    host = host_of(code, tmp_path, max_programs=2)
    responses, failures = run(host)
    assert not failures
    for index, response in enumerate(responses):
        (branch,) = response.episode.branches
        assert len(branch.prompt) == 1 + index
        assert 2 <= sum(response.sampled) <= 8
        assert len(response.sampled) - sum(response.sampled) >= 1, "the b between the turns"
        assert response.episode.score == index / 4
    # The same seeds give the same responses, in whichever order programs ask.
    assert run(host, num_seqs=1)[0] == responses


def test_the_course_of_a_program_is_recorded(host_of, tmp_path):
    code = (
        "first = say('a' * 5)\ntime.sleep(0.2)\nsay(first + 'b'); say('c')\nprint('done so far')\n"
    )
    responses, _ = run(host_of(code + WRITES.format("'1'"), tmp_path))
    for response in responses:
        record = response.episode.record
        assert (record.ending, record.failure) == ("exited", "")
        assert record.output.strip() == "done so far"
        assert [turn.parent for turn in record.turns] == [None, 0, None]
        assert record.leaves == (1, 2)
        assert [replace(record, row=row).own_turns for row in (0, 1)] == [[0, 1], [2]]
        for row, branch in enumerate(response.episode.branches):
            own = [record.turns[number] for number in replace(record, row=row).own_turns]
            sampled = [place for turn in own for place in range(turn.start, turn.stop)]
            flags = enumerate(branch.response.sampled, len(branch.prompt))
            assert sampled == [place for place, is_own in flags if is_own]
            assert own[-1].stop == len(branch.prompt) + len(branch.response.tokens)
        first, second, _ = record.turns
        assert second.begun - first.ended >= 0.2
        assert record.begun <= first.begun < first.ended < record.ended
        assert record.program_s >= 0.2


def test_several_rows_share_a_program(host_of, tmp_path):
    code = f"pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\nrows, scores = row, []\n"
    code += "for row in rows:\n    os.environ['OPENAI_API_KEY'] = row['key']\n"
    code += "    say('a' * (1 + row['index']))\n"
    code += "    scores.append({'score': row['index'], 'turns': [1]} if row['index'] else None)\n"
    host = host_of(code + WRITES.format("json.dumps(scores)"), tmp_path, max_rows=3, max_programs=1)
    responses, failures = run(host)
    assert not failures
    assert len([*tmp_path.glob("[0-9]*")]) == 2, "programs of 3 rows and of 1"
    for index, response in enumerate(responses):
        (branch,) = response.episode.branches
        assert len(branch.prompt) == 1 + index
        assert response.episode.score == (index or None)
        assert len(branch.rewards) == bool(index)


def test_a_list_of_scores_is_that_of_all_rows(host_of, tmp_path):
    code = WRITES.format("'[1]'")
    with pytest.raises(EnvironmentStepError, match=r"wrote '\[1\]' .* in a list for its 2 rows"):
        run(host_of(code, tmp_path, max_rows=2))
    responses, failures = run(host_of("sys.exit(3)", tmp_path, max_rows=2, on_error="end"))
    assert len(failures) == NUM / 2
    assert [response.episode.score for response in responses] == [0] * NUM


def test_turns_in_parallel_are_branches(host_of, tmp_path):
    code = "from threading import Thread\n"
    code += "asks = [Thread(target=say, args=(text,)) for text in ('ab', 'cd', 'cd')]\n"
    code += "[ask.start() for ask in asks]; [ask.join() for ask in asks]\n"
    responses, _ = run(host_of(code, tmp_path))
    for response in responses:
        assert response.episode.score is None
        branches = response.episode.branches
        assert [len(branch.prompt) for branch in branches] == [2, 2, 2]
        assert all(all(branch.response.sampled) for branch in branches)


FAULTS = {
    "sys.exit('out of order')": "exited with status 1: out of order",
    "say('a', n=2)": "n = 2 would change what the model says",
    "time.sleep(600)": r"timed out \(more than 1.5 s\)",
    "say('a' * 60)": "context_length|HTTP Error 400",
    WRITES.format("'high'"): "it wrote 'high' into the file of VERL_HPC_SCORE; expected a number",
    WRITES.format("'NaN'"): "it wrote 'NaN'",
    "os.kill(os.getpid(), 9)": r"killed \(by signal 9\)",
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_program_that_fails_is_counted_and_scores_0(host_of, tmp_path, code):
    if "n=2" in code or "60" in code:
        code = f"try:\n    {code}\nexcept Exception as error:\n    sys.exit(error.read().decode())"
    limits = {"timeout_s": 1.5} if "sleep" in code else {}
    responses, failures = run(host_of(code, tmp_path, on_error="end", **limits))
    words = next(words for given, words in FAULTS.items() if given in code)
    assert len(failures) == NUM
    for failure in failures:
        assert re.search(words, failure), failure
    for response in responses:
        assert response.episode.score == 0
        assert response.episode.record.ending in ("failed", "timed_out", "killed")
        # A program that takes no turn has a row of which nothing is learned.
        assert response.sampled == (0,) and response.episode.branches[0].prompt == (3, 4)


def test_or_ends_the_run_and_names_the_row(host_of, tmp_path):
    with pytest.raises(EnvironmentStepError, match=r"data.jsonl, line \d: exited with status 3"):
        run(host_of("sys.exit(3)", tmp_path))


def test_an_interrupted_call_ends_its_programs(host_of, tmp_path):
    asked = []
    code = f"say('a'); pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(600)"

    def interrupted():
        asked.append(len([*tmp_path.iterdir()]) > NUM)
        return asked[-1]

    responses, _ = run(host_of(code, tmp_path), interrupted)
    assert all(response.finish_reason == "unfinished" for response in responses)
    assert asked[-1]


def test_what_cannot_be_started_is_an_error_at_start(host_of, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"rollout.program.directory = .*none: there is no such"):
        host_of("", tmp_path, directory=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"rollout.program.image = .*none: there is nothing here"):
        host_of("", tmp_path, image=str(tmp_path / "none"), sandbox="bubblewrap")
    # As where bubblewrap is not installed, or may make no namespaces.
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces >&2; exit 1")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("verl_hpc.generation.programs.start_programs", Starter)
    with pytest.raises(ConfigError, match=r"rollout.program.sandbox = bubblewrap: .*no namespaces"):
        host_of("", tmp_path, sandbox="bubblewrap")


def test_a_command_scores_programs_that_do_not_see_the_answer(host_of, tmp_path):
    read = "json.load(open(os.environ['VERL_HPC_ROW']))['ground_truth']"
    code = f"say('a'); pathlib.Path('answer').write_text(repr({read}))\n" + WRITES.format("'1'")
    (tmp_path / "score").mkdir()
    scorer = tmp_path / "score/score.py"
    words = f"said = pathlib.Path.home() / 'answer'; said = said.read_text(), {read}\n"
    scorer.write_text(f"import json, os, pathlib\n{words}" + WRITES.format("str(said[1] / 4)"))
    scorer.write_text(scorer.read_text() + "\nassert said[0] == 'None'")
    score = {"command": ["python", "score.py"], "directory": str(scorer.parent)}
    problems = [replace(problem, ground_truth=problem.index) for problem in PROBLEMS]
    responses, failures = run(host_of(code, tmp_path, score=score), problems=problems)
    assert not failures
    assert [response.episode.score for response in responses] == [i / 4 for i in range(NUM)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sandbox": "apptainer"}, "sandbox: bubblewrap, and in image the path of the .sif"),
        ({"image": "i.sif", "sandbox": "none"}, "image = i.sif with sandbox = none"),
        ({"sandbox": "none", "network": "none"}, "which closes no network"),
    ],
)
def test_settings_that_do_not_go_together(settings, words):
    with pytest.raises(ValueError, match=words):
        ProgramConfig.model_validate({"command": ["true"], "network": "node"} | settings)


def test_scores():
    def of(text):
        (scored,) = scores_of(Ended("exited", 0, "", text, 1.0, ""), 1)
        return scored

    assert of("0.5") == (0.5, {})
    assert of(" \n") == of(None) == (None, {})
    assert of('{"score": 1}') == (1.0, {})
    assert of('{"turns": [0.25, 0.5]}') == (0.75, {0: 0.25, 1: 0.5})
    assert of('{"score": 2, "turns": [1]}') == (2.0, {0: 1.0})
    for text in ("[]", "{}", '"1"', '{"turns": 1, "score": 1}', '{"turns": ["1"]}', "1e999", "]"):
        with pytest.raises(ValueError, match="expected a number"):
            of(text)
