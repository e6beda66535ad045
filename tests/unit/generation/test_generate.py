"""Responses of one engine: to which prompts, from which seeds, and when they are dropped."""

from dataclasses import replace

import pytest
import torch

from tests.unit.config.trees import parse
from tests.unit.ranks import on_ranks
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import DataError, TrainingError
from verl_hpc.generation.generate import _rewards, _rows, generate
from verl_hpc.generation.kept import KeptResponses
from verl_hpc.generation.rollout import Rollout
from verl_hpc.generation.slots import GenerateSettings, Slot
from verl_hpc.placement.layouts import Pool
from verl_hpc.rollout.protocol import Branch, Episode, Feed, Response, Sampling
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.step.batch import StepRows
from verl_hpc.step.placement import Placement
from verl_hpc.testing.local import LocalControl, LocalEngine
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import CPU, LetterTokenizer, local_place

TEXTS = ["ab", "cde", "abcdef", "k"]
PLACE = local_place("rollout")
ROWS = StepRows(3, [0, 1, 3])


class Problems:
    def read(self, rows):
        return [Problem(row, TEXTS[row]) for row in rows]


LIMITS = {"max_prompt_tokens": 5, "max_response_tokens": 6, "overlong_prompt": "drop"}


def settings(rollout=None, seed=11, **changes):
    given = LIMITS | {"num_samples": 2, "temperature": 0.8} | (rollout or {})
    config = parse(seed=seed, rollout=given)
    sampling = Sampling.from_config(config.rollout)
    found = GenerateSettings(Problems(), Encoder(LetterTokenizer()), config, sampling, 2)
    return replace(found, **changes)


def rollout(engine=None, place=PLACE, **changes):
    engine = engine or LocalRollout()
    return Rollout(place, engine.shard_map, engine, replica_control=LocalControl(), **changes)


def run(rows=ROWS, some=None, place=PLACE, **changes):
    (samples, columns), _ = generate(place, some or rollout(), settings(**changes), rows)
    return samples, columns


def test_every_prompt_is_answered_as_often_as_asked():
    samples, columns = run()
    assert [s.group for s in samples] == [0, 0, 1, 1, 2, 2]
    assert [s.index for s in samples] == [0, 1, 2, 3, 4, 5]
    assert [s.prompt_length for s in samples] == [2, 2, 3, 3, 1, 1]
    assert (samples.owners, columns.positions) == ({"rollout": [0] * 6}, [0, 1, 2, 3, 4, 5])
    for i, sample in enumerate(samples):
        tokens = columns["tokens"][i]
        text = TEXTS[ROWS.rows[sample.group]]
        assert tokens[: sample.prompt_length].tolist() == LetterTokenizer().encode(text)
        assert len(tokens) == sample.length
        assert columns["mask"][i].tolist() == [1] * sample.response_length
        assert len(columns["rollout_log_probs"][i]) == sample.response_length
        assert 1 <= sample.response_length <= 6
        assert sample.truncated == (int(tokens[-1]) != 0)
    assert {s.truncated for s in samples} == {True, False}


def test_the_engines_log_probs_are_the_trainers():
    """Equal weights give equal numbers, which the metric of the mismatch rests on."""
    samples, columns = run()
    trainer = LocalEngine()
    for i, output in enumerate(trainer.infer(columns["tokens"], 0.8)):
        ours = output.log_probs[samples.samples[i].prompt_length - 1 :]
        assert ours.tolist() == pytest.approx(columns["rollout_log_probs"][i].tolist(), abs=1e-5)


def test_a_response_depends_on_run_step_and_slot():
    def tokens(**changes):
        rows = replace(ROWS, step=changes.pop("step", 3))
        return [t.tolist() for t in run(rows, **changes)[1]["tokens"]]

    again = tokens()
    assert tokens() == again
    assert tokens(seed=12) != again
    assert tokens(step=4) != again
    assert tokens(purpose="evaluation") != again
    assert again[0] != again[1], "two responses to one prompt"


@pytest.mark.parametrize("num_engines", [2, 3])
def test_who_generates_changes_no_response(num_engines):
    """What an engine has is a part of what one alone would have."""
    _, alone = run()

    def work(control):
        groups = tuple((i,) for i in range(num_engines))
        here = Placement(Pool("rollout", groups), control.rank, control, CPU)
        _, columns = run(some=rollout(place=here), place=here)
        return [tokens.tolist() for tokens in columns["tokens"]]

    tokens_of_all = [tokens for part in on_ranks(num_engines, work) for tokens in part]
    assert tokens_of_all == [tokens.tolist() for tokens in alone["tokens"]]


def test_prompts_that_are_too_long_are_dropped_or_refused():
    rows = StepRows(3, [0, 2, 3])
    samples, columns = run(rows)
    assert [s.group for s in samples] == [0, 0, 2, 2]
    assert ([s.index for s in samples], len(columns["tokens"])) == ([0, 1, 4, 5], 4)
    with pytest.raises(DataError, match="max_prompt_tokens"):
        run(rows, rollout={"overlong_prompt": "error"})
    _, columns = run(rows, rollout={"overlong_prompt": "truncate_left"})
    assert columns["tokens"][2][:5].tolist() == LetterTokenizer().encode("bcdef")


def same(one, other):
    """Whether columns of tensors are equal."""
    pairs = [(a, b) for name in one.values for a, b in zip(one[name], other[name], strict=True)]
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_preempted_rank_drops_the_step_and_keeps_finished_responses():
    answers = iter([False, False, False, True])
    kept = KeptResponses()
    with pytest.raises(StepDropped):
        run(some=rollout(wants_to_leave=lambda: next(answers, True), kept=kept))
    assert sorted(kept.by_slot) == [0, 1, 2]
    # The next start generates the rest, and ends with what an uninterrupted one has.
    some = rollout(Counted(), kept=kept)
    again = run(some=some)[1]
    assert some.engine.num_prompts == 3
    assert same(again, run(some=rollout(kept=KeptResponses()))[1])


class Counted(LocalRollout):
    num_prompts = 0

    def generate(self, feed, sampling):
        self.num_prompts += len(feed.requests)
        super().generate(feed, sampling)


def test_evaluation_is_greedy_once_a_prompt_and_not_interrupted():
    some = rollout(wants_to_leave=lambda: True)
    greedy = settings().greedily(Problems(), "evaluation")
    (samples, columns), _ = generate(PLACE, some, greedy, ROWS)
    assert [s.group for s in samples] == [0, 1, 2]
    engine = LocalEngine()
    for i, sample in enumerate(samples):
        tokens = columns["tokens"][i]
        for end in range(sample.prompt_length, len(tokens)):
            every = torch.cat([tokens[:end].repeat(12, 1), torch.arange(12)[:, None]], 1)
            best = [float(o.log_probs[-1]) for o in engine.infer(list(every))]
            assert int(tokens[end]) == best.index(max(best))


def test_a_model_that_gives_no_numbers_ends_the_run():
    class Broken(LocalRollout):
        def generate(self, feed, sampling):
            super().generate(feed, sampling)
            feed.responses[0] = replace(feed.responses[0], log_probs=(float("nan"),))

    with pytest.raises(TrainingError, match="infinite or NaN"):
        run(some=rollout(Broken()))


class Halfway(LocalRollout):
    """Begins what is not waited for, and leaves it in flight two tokens further."""

    def generate(self, feed, sampling):
        whole = Feed(feed.requests)
        super().generate(whole, sampling)
        for i, request in feed.next(0):
            response, end = whole.responses[i], len(request.prefix.tokens) + 2
            if feed.stops(asks=False) and len(response.tokens) > end:
                response = Response(response.tokens[:end], response.log_probs[:end], "unfinished")
            feed.ended(i, response)


def test_responses_in_flight_continue_under_the_weights_of_then():
    some = rollout(Halfway())
    first, later = StepRows(3, [0, 1]), StepRows(4, [3, 0])

    def at(rows, version):
        some.version = version
        (samples, columns), metrics = generate(PLACE, some, settings(ahead=True), rows)
        return samples, columns, metrics

    samples, columns, _ = at(replace(first, upcoming=[later]), 2)
    assert [s.group for s in samples] == [0, 0, 1, 1]
    assert {v for row in columns["versions"] for v in row.tolist()} == {2}
    expected = [(n, s, 4) for n in (3, 4) for s in range(4)]
    assert sorted(which[1:] for which in some.ahead) == expected
    begun = {(which.step, which.slot): begun for which, begun in some.ahead.items()}
    for weight in some.engine.weights.values():
        weight.mul_(0.5)
    samples, columns, _ = at(later, 3)
    assert {which.step for which in some.ahead} == {4}
    continued = 0
    for slot, sample in enumerate(samples):
        before = begun[4, slot]
        count = len(before.tokens)
        response = columns["tokens"][slot][sample.prompt_length :]
        assert tuple(response[:count].tolist()) == before.tokens
        log_probs = columns["rollout_log_probs"][slot]
        assert log_probs[:count].tolist() == pytest.approx(before.log_probs)
        assert columns["versions"][slot].tolist() == [2] * count + [3] * (len(response) - count)
        continued += len(response) > count
    assert continued > 0


class Idle(LocalRollout):
    """Nothing may be asked of it."""

    def generate(self, feed, sampling):
        assert not feed.requests


def test_what_was_made_ahead_is_not_made_again():
    """A start finds it in a checkpoint, greedy answers too, and nothing begins."""
    some, rows = rollout(Halfway()), StepRows(3, [0, 1], [StepRows(4, [3, 0])])
    sampled = settings(ahead=True)
    asked = sampled, sampled.greedily(sampled.problems, "greedy")
    first = [generate(PLACE, some, asked[0], rows)]
    some.engine = LocalRollout()
    first.append(generate(PLACE, some, asked[1], rows))
    other = rollout(Idle())
    other.ahead, other.version = some.ahead, 7
    again = [generate(PLACE, other, one, rows) for one in asked]
    assert other.ahead == some.ahead
    for one, another in zip(first, again, strict=True):
        ((samples, columns), metrics), ((others, other_columns), measured) = one, another
        assert (others, measured) == (samples, metrics)
        assert same(columns, other_columns)


def test_each_leaf_of_a_program_has_the_whole_score():
    """Turns earn 1, 0.5 and 2, and the score is their sum. The last token of each leaf has what the
    other one's turns earn."""
    first = Branch((1,), Response((2, 3, 4, 5), (0.0,) * 4, "stop", (1, 1, 0, 1)), {1: 1.0, 3: 0.5})
    second = Branch((1,), Response((2, 3, 6, 7), (0.0,) * 4, "stop", (0, 0, 0, 1)), {3: 2.0})
    whole = replace(first.response, episode=Episode((first, second), 3.5))
    rows = _rows(Slot(1, 2, 0, 0, Problem(0, "a"), (1,)), whole, 64)
    assert [slot.index for slot, _ in rows] == [128, 129]
    given = [_rewards(response).tolist() for _, response in rows]
    assert given == [[0.0, 1.0, 0.0, 2.5], [0.0, 0.0, 0.0, 3.5]]
