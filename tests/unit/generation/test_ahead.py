"""Scores that processes give while others are generated: those that the rank would give."""

from concurrent.futures import Future
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import feed_of
from tests.unit.generation.test_generate import PLACE, ROWS, TEXTS, rollout, settings
from tests.unit.rollout.scripted_turns import ScriptedTurns
from verl_hpc.config.reward import RewardConfig
from verl_hpc.data.problem import Problem
from verl_hpc.errors import RewardError
from verl_hpc.generation.ahead import AsyncScorer
from verl_hpc.generation.answers import Answer
from verl_hpc.generation.generate import ScoredAhead, generate
from verl_hpc.generation.score import ScoreSettings, score
from verl_hpc.generation.slots import slots_of
from verl_hpc.placement.layouts import Pool
from verl_hpc.rewards.request import batched
from verl_hpc.rewards.scorer import FunctionScorer, SumScorer, Term
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.step.placement import Placement
from verl_hpc.testing.local import LocalControl
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import CPU, LetterTokenizer


class Later:
    """Workers that score when the test says so, in the order that it gives."""

    def __init__(self):
        self.asked = []

    def score(self, scorers, request, step):
        future = Future()
        self.asked.append((scorers, request, step, future))
        return future

    def finish(self, order=None):
        for i in order or range(len(self.asked)):
            scorers, request, _, future = self.asked[i]
            future.set_result({s.setting: self._outcome(s, request) for s in scorers})

    @staticmethod
    def _outcome(scorer, request):
        try:
            return scorer([request])[0]
        except RewardError as error:
            return error


class AtOnce(Later):
    """They have finished before anybody waits."""

    def score(self, *asked):
        future = super().score(*asked)
        self.finish([len(self.asked) - 1])
        return future


def length(solution_str, ground_truth, **_):
    if solution_str.count("a") > 4:
        raise ValueError(f"five times a, in {solution_str}")
    return len(solution_str) + 10 * ground_truth


@batched
def rank_of(requests):
    """The place in the whole list, which one process with a part of it could not know."""
    return [sorted(r.response for r in requests).index(r.response) for r in requests]


def function(call=length, name="reward", **changes):
    return FunctionScorer(call, RewardConfig(**changes), name)


def both(**changes):
    """A scorer with a term of a response alone, and one of all together."""
    terms = [Term("own", 1.0, function(length, "reward.terms.own", **changes))]
    return SumScorer([*terms, Term("list", 0.5, function(rank_of, "reward.terms.list"))])


def answer(row, letters, truncated=False):
    tokens = tuple(LetterTokenizer().encode(letters))
    return Answer(Problem(row, "?", ground_truth=row), tokens, (1,) * len(tokens), truncated)


ANSWERS = st.builds(answer, st.integers(0, 2), st.text("abc", max_size=3), st.booleans())


@given(st.data(), st.lists(ANSWERS, max_size=12), st.sampled_from([function, both]))
def test_whatever_is_begun_and_whatever_order_it_ends_in(data, answers, make):
    scorer, workers = make(), Later()
    mine = ScoreSettings(scorer, LetterTokenizer(), None, AsyncScorer(workers))
    order = data.draw(st.permutations(range(len(answers))))
    begun = order[: data.draw(st.integers(0, len(answers)))]
    for i in begun:
        mine.begin(answers[i], 1)
    workers.finish(data.draw(st.permutations(range(len(begun)))) or None)
    mine.ahead._workers = rest = AtOnce()
    expected = replace(mine, ahead=None).scores(answers, 1)
    assert mine.scores(answers, 1) == expected
    # A call for each response, not for each text.
    assert len(begun) + len(rest.asked) == len(answers)


def test_the_error_is_that_of_the_first_response_whenever_it_came():
    workers = Later()
    mine = ScoreSettings(function(), LetterTokenizer(), None, AsyncScorer(workers))
    answers = [answer(0, "ab"), answer(1, "aaaaab"), answer(2, "aaaaac")]
    for one in reversed(answers):
        mine.begin(one, 1)
    workers.finish()
    with pytest.raises(RewardError, match="five times a, in aaaaab"):
        mine.scores(answers, 1)


def test_what_nobody_asked_for_is_forgotten_with_its_step():
    workers = AtOnce()
    mine = ScoreSettings(function(), LetterTokenizer(), None, AsyncScorer(workers))
    mine.begin(answer(0, "a"), 1)
    mine.begin(answer(0, "a"), 2)
    mine.ahead.forget_before(2)
    assert [s.value for s in mine.scores([answer(0, "a")], 2)] == [1.0]
    assert len(workers.asked) == 2
    mine.ahead.forget_before(3)
    assert not mine.ahead._begun


def scoring(workers, problems, scorer=None):
    return ScoreSettings(scorer or function(), LetterTokenizer(), problems, AsyncScorer(workers))


class Rows:
    """Row i asks for i."""

    def read(self, rows):
        return [Problem(row, TEXTS[row], ground_truth=row) for row in rows]


def test_responses_are_scored_as_they_end_and_asked_for_once():
    workers, problems = AtOnce(), Rows()
    mine = scoring(workers, problems)
    asking = settings(problems=problems, scoring=mine)
    seen = []
    engine = rollout()
    whole = engine.engine.generate

    def watched(*arguments, **rest):
        responses = whole(*arguments, **rest)
        seen.append(len(workers.asked))
        return responses

    engine.engine.generate = watched
    (samples, columns), _ = generate(PLACE, engine, asking, ROWS)
    assert seen == [len(samples)] == [6]
    responses, _ = score(PLACE, mine, ROWS, samples, columns)
    assert len(workers.asked) == 6
    expected, _ = score(PLACE, replace(mine, ahead=None), ROWS, samples, columns)
    assert responses.values == expected.values and len({*responses.values}) > 2


def test_a_conversation_is_scored_when_its_last_turn_has_ended():
    workers, problems = AtOnce(), Rows()
    mine = scoring(workers, problems)
    slots = slots_of(PLACE, settings(problems=problems, scoring=mine), ROWS)
    feed = ScoredAhead(feed_of([s.prompt for s in slots], range(6)), PLACE, mine, slots)
    turns = ScriptedTurns(feed, dict.fromkeys(range(6), 1), most=12)
    LocalRollout().generate(turns, Sampling(12))
    assert len(workers.asked) == 6
    assert {len(request.turns) for _, request, *_ in workers.asked} == {1, 3}


def test_ranks_of_an_engine_have_each_its_responses_scored():
    asked = []
    for rank in (0, 1):
        workers, problems = AtOnce(), Rows()
        place = Placement(Pool("rollout", ((0, 1),)), rank, LocalControl(), CPU)
        asking = settings(problems=problems, scoring=scoring(workers, problems))
        generate(place, rollout(), asking, ROWS)
        asked.append([request.response for _, request, _, _ in workers.asked])
    assert [len(part) for part in asked] == [3, 3]


def test_a_step_that_is_dropped_leaves_nothing_for_the_next():
    workers, problems = AtOnce(), Rows()
    mine = scoring(workers, problems)
    asking = settings(problems=problems, scoring=mine)
    answers = iter([False, False, True])
    leaving = rollout(wants_to_leave=lambda: next(answers))
    with pytest.raises(StepDropped):
        generate(PLACE, leaving, asking, ROWS)
    assert 0 < len(mine.ahead._begun) < 6
    (samples, columns), _ = generate(PLACE, rollout(), asking, replace(ROWS, step=4))
    assert sum(map(len, mine.ahead._begun.values())) == 6
    scores, _ = score(PLACE, mine, replace(ROWS, step=4), samples, columns)
    assert len(scores.values) == 6
