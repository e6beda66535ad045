"""Responses of a checkpoint that a run takes up."""

from types import SimpleNamespace

from tests.unit.config.trees import parse
from verl_hpc.generation.rollout import Rollout
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Response
from verl_hpc.testing.local import LocalControl
from verl_hpc.trainer.made_ahead import ahead_key, made_ahead, take_up

BASE = {"placement": {"train": "0", "rollout": "1-2"}, "rollout__staleness": 2}
RESPONSES = {
    ResponseId(purpose, step, slot, count): Response((slot,), (-0.5,), "stop", versions=(3,))
    for purpose, count in (("rollout", 7), ("greedy", 4))
    for step in (5, 6)
    for slot in range(count)
}


def config(**changes):
    return parse(**BASE | changes)


def run_of(given, index=0, num_engines=1, **of_place):
    place = SimpleNamespace(index=index, groups=range(num_engines), is_here=True, **of_place)
    return SimpleNamespace(
        config=given,
        rank=0,
        session=SimpleNamespace(control=LocalControl()),
        rollout=Rollout(place, None, None),
    )


def taken(run, key, same_data=True):
    def ahead(wanted):
        return {which: given for which, given in RESPONSES.items() if wanted(which)}

    step = SimpleNamespace(path="step_00000004", state=SimpleNamespace(ahead=key), ahead=ahead)
    take_up(run, step, same_data)
    return run.rollout.ahead


def test_engines_share_them_whatever_their_number():
    key = ahead_key(config())
    for num_engines in (1, 2, 3, 5):
        parts = [taken(run_of(config(), i, num_engines), key) for i in range(num_engines)]
        assert sum(map(len, parts)) == len(RESPONSES)
        assert {which: t for part in parts for which, t in part.items()} == RESPONSES


def test_they_are_dropped_where_they_would_be_others_and_that_is_told(caplog):
    key = ahead_key(config())
    same = {"optimizer__lr": 1.0, "rollout__max_num_seqs": 3, "steps": 9}
    assert taken(run_of(config(**same)), key) == RESPONSES
    assert not caplog.text
    others = {"seed": 8, "rollout__temperature": 0.5, "rollout__staleness": 1, "batch__size": 3}
    for name, value in (others | {"data__shuffle": False}).items():
        assert taken(run_of(config(**{name: value})), key) == {}
        assert "step_00000004: responses that it has of later steps are dropped" in caplog.text
        caplog.clear()
    assert taken(run_of(config()), key, same_data=False) == {}
    assert taken(run_of(config()), "") == {}, "a step of a run without staleness has none"


def test_a_run_without_staleness_has_no_key():
    assert ahead_key(config(rollout__staleness=0)) == ""


def test_a_checkpoint_has_those_of_later_steps_once():
    for leads in (True, False):
        run = run_of(config(), leads_group=leads)
        run.rollout.ahead = RESPONSES
        assert made_ahead(run, 5) == {w: t for w, t in RESPONSES.items() if leads and w.step == 6}
