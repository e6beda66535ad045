"""Programs and conversations that go on while an engine's weights change between its calls."""

import itertools
from contextlib import closing
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests.generated import Until, feed_of
from tests.unit.generation.test_conversation import OWN
from tests.unit.generation.test_generate import rollout, settings
from tests.unit.generation.test_programs import NUM, PROBLEMS, WRITES, host_of, run
from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.prompts import Encoder
from verl_hpc.environments.processes import Environments
from verl_hpc.generation.conversation import Conversations, LiveConversations
from verl_hpc.generation.generate import generate
from verl_hpc.generation.programs import LivePrograms, Programs
from verl_hpc.rollout.partial import versioned
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.runtime.one_rank import LocalControl
from verl_hpc.step.batch import StepRows
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import LetterTokenizer, local_place

SAMPLED, GREEDY = Sampling(40), Sampling(40, temperature=0.0)
__all__ = ["host_of"]


def in_parts(turns_of, sampling, factor, between=lambda version: None):
    """Responses of calls that end after three steps each, and the model of each call.

    Args:
        turns_of: makes the feed of a call from a plain one, the rows that it has, and a version.
        factor: of the weights after each call.
        between: called with the version before each call.
    """
    engine, known, models = LocalRollout(max_num_seqs=2), {}, []
    while rows := [i for i in range(NUM) if i not in known or not known[i].is_finished]:
        version = len(models)
        between(version)
        models.append(deepcopy(engine._model))
        steps = itertools.count(1)
        prefixes = [known.get(i) for i in rows]
        feed = feed_of([[3, 4]] * len(rows), [7 * version + i for i in rows], prefixes)
        until = Until(feed, lambda _, steps=steps: next(steps) >= 3)
        with closing(turns_of(until, rows, version)) as turns:
            engine.generate(turns, sampling)
        for row, before, after in zip(rows, prefixes, feed.responses, strict=True):
            known[row] = versioned(after, before or replace(after, versions=()), version)
        for weight in engine.weights.values():
            weight.mul_(factor)
    return [known[i] for i in range(NUM)], models


def assert_scored_by_their_versions(prompt, response, models):
    """The oracle reads all tokens at once by the model of each version."""
    assert len(response.versions) == len(response.tokens)
    assert list(response.versions) == sorted(response.versions)
    for at, own in enumerate(response.sampled):
        token, version = response.tokens[at], response.versions[at]
        read = torch.tensor([*prompt, *response.tokens[:at]])
        with torch.no_grad():
            row = models[version](read)[-1].log_softmax(-1)
        assert not own or response.log_probs[at] == pytest.approx(float(row[token]), abs=1e-5)


@pytest.fixture
def two_turns(host_of, tmp_path):
    """A host of programs of two turns, which note that they begin."""
    code = f"with open({str(tmp_path)!r} + f'/{{row[\"index\"]}}', 'a') as file: file.write('x')\n"
    code += "say(say('a' * (1 + row['index'])) + 'b')\n" + WRITES.format("'1'")
    return host_of(code, tmp_path)


def programs_of(host, live):
    def make(feed, rows, version):
        around = [PROBLEMS[i] for i in rows], lambda i, n: 1000 * rows[i] + n % 1000, LocalControl()
        keys = [("rollout", i) for i in rows]
        return Programs(
            feed, host.config, host, *around, keys=keys, version=version, live=live
        )  # fmt: skip

    return make


def test_programs_live_on_and_their_tokens_keep_their_versions(two_turns, tmp_path):
    live, aside = LivePrograms(), []

    def between(version):
        if version == 1:  # an evaluation, whose programs speak to the same endpoint
            aside.extend(run(two_turns)[0])

    responses, models = in_parts(programs_of(two_turns, live), SAMPLED, 0.9, between)
    assert not live.keys and not live.asks
    assert [response.episode.score for response in (*aside, *responses)] == [1.0] * 2 * NUM
    branches = [branch for response in responses for branch in response.episode.branches]
    assert len(branches) == NUM
    for branch in branches:
        assert_scored_by_their_versions(branch.prompt, branch.response, models)
    assert any(len(set(branch.response.versions)) > 1 for branch in branches)
    assert {(tmp_path / str(i)).read_text() for i in range(NUM)} == {"xx"}, "each begins once"


def test_greedy_programs_in_parts_are_those_in_one(two_turns):
    responses, models = in_parts(programs_of(two_turns, LivePrograms()), GREEDY, 1.0)
    assert len(models) > 2
    feed = feed_of([[3, 4]] * NUM, [1] * NUM)
    with closing(programs_of(two_turns, None)(feed, range(NUM), 0)) as programs:
        LocalRollout(max_num_seqs=2).generate(programs, GREEDY)
    for part, whole in zip(responses, feed.responses, strict=True):
        (one,), (other,) = part.episode.branches, whole.episode.branches
        assert one.prompt == other.prompt
        assert replace(one.response, versions=()) == replace(other.response, versions=())


def test_conversations_live_on_too(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    config = EnvironmentConfig(name=f"{path}:Echo", options={"notes": str(tmp_path)}, max_turns=8)
    environments = Environments(config)

    def conversations(live):
        def make(feed, rows, version):
            around = Encoder(LetterTokenizer()), lambda i, n: 1000 * rows[i] + n, SAMPLED
            problems = [PROBLEMS[i] for i in rows]
            keys = [("rollout", i) for i in rows]
            return Conversations(
                feed, config, environments, problems, *around, keys=keys, live=live
            )  # fmt: skip

        return make

    live = LiveConversations()
    responses, models = in_parts(conversations(live), SAMPLED, 0.9)
    assert not live.turns and not live.waiting
    for response in responses:
        assert_scored_by_their_versions([3, 4], response, models)
    assert any(len(set(response.versions)) > 1 for response in responses)
    names = [file.stem.partition("-") for file in tmp_path.glob("*.json")]
    assert len({row for row, _, _ in names}) == len(names) > 0, "an environment a row"
    responses, _ = in_parts(conversations(LiveConversations()), GREEDY, 1.0)
    feed = feed_of([[3, 4]] * NUM, [1] * NUM)
    with closing(conversations(None)(feed, range(NUM), 0)) as whole:
        LocalRollout(max_num_seqs=2).generate(whole, GREEDY)
    assert [replace(response, versions=()) for response in responses] == feed.responses


def test_what_is_not_taken_is_ended_and_forgotten(host_of, tmp_path):
    """A step takes the prompts whose programs end first; those of the next step go on."""
    # The programs of row 0 end once those of row 3 have begun; the others do not end.
    code = "import glob\n"
    code += f"mine = {str(tmp_path)!r} + f'/{{row[\"index\"]}}-{{os.getpid()}}'\n"
    code += "open(mine, 'w').close(); say('a')\n"
    code += f"begun = {str(tmp_path)!r} + '/3-*'\n"
    code += "while row['index'] or len(glob.glob(begun)) < 2: time.sleep(0.01)"
    host = host_of(code, tmp_path)
    some, given = rollout(LocalRollout(max_num_seqs=2)), settings(ahead=True, programs=host)
    batch = given.config.batch.model_copy(update={"size": 1, "spare_prompts": 1})
    given = replace(given, config=given.config.model_copy(update={"batch": batch}))
    rows = StepRows(3, [1, 0], [StepRows(4, [3, 0])])
    (samples, columns), metrics = generate(local_place("rollout"), some, given, rows)
    assert [(s.index, s.group) for s in samples] == [(2 * 64, 1), (3 * 64, 1)]
    assert metrics["batch/prompts_dropped"] == 1
    assert {v for row in columns["versions"] for v in row.tolist()} == {0}
    # Row 1 is dropped; the programs of row 3 wait for the next call.
    assert {which[1:3] for which in some.ahead} == {(3, 2), (3, 3), *((4, s) for s in range(4))}
    assert {("rollout", 4, 0), ("rollout", 4, 1)} <= some.live.keys
    assert {step for _, step, _ in some.live.keys} == {4}
    some.forget()
    assert not some.live.keys and not some.ahead
