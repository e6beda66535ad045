"""Sessions on the timeline: when they were in the model, and when outside."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.metrics.test_samples_view import answer, group, turn
from tests.unit.metrics.test_timeline_view import headings, split_run
from verl_hpc.metrics.samples import SampleLog, SampleSession
from verl_hpc.metrics.session_lanes import session_lanes
from verl_hpc.metrics.timeline_view import timeline_card


def session(begun: float | None, model_s: float, program_s: float) -> SampleSession:
    return SampleSession("exited", "", "", 3, 1, model_s, program_s, begun)


def spans(lane) -> list[tuple[str, float, float]]:
    return [(one.operator, one.start, one.stop) for one in lane.intervals]


def test_turns_in_parallel_are_one_time_in_the_model(tmp_path):
    """From 11 to 20: turns from 12 to 14 and, in another branch, from 13 to 15; one from 17 on."""
    first = answer(
        "",
        turns=[turn(0, begun=12.0, model_s=2.0), turn(2, 0, begun=17.0, model_s=1.0)],
        session=session(11.0, 4.0, 5.0),
    )
    other = answer("", turns=[turn(1, begun=13.0, model_s=2.0)], branch=1)
    old = answer("", turns=[turn(0)], session=session(None, 4.0, 5.0))
    log = SampleLog(tmp_path, None)
    log.write(7, "train", [group("p", answer()), group("q", answer(), first, other, old)])
    log.write(8, "train", [group("p", answer())])
    (lane,) = session_lanes(tmp_path, [6, 7, 8], 10.0)
    assert (lane.name, lane.group) == ("2.2", "sessions of step 7")
    assert spans(lane) == [
        ("outside", 1.0, 2.0),
        ("in the model", 2.0, 4.0),
        ("in the model", 4.0, 5.0),
        ("outside", 5.0, 7.0),
        ("in the model", 7.0, 8.0),
        ("outside", 8.0, 10.0),
    ]
    (late,) = session_lanes(tmp_path, [7], 13.5)
    assert spans(late)[:2] == [("in the model", 0.0, 0.5), ("in the model", 0.5, 1.5)]


def test_the_timeline_has_them_below_the_ranks(tmp_path):
    split_run(tmp_path)
    assert "in the model" not in timeline_card(tmp_path, range(2, 5), {})
    one = answer("", turns=[turn(0, begun=22.0)], session=session(21.0, 0.5, 6.5))
    SampleLog(tmp_path, None).write(3, "train", [group("p", one, replace(one))])
    card = timeline_card(tmp_path, range(2, 5), {})
    assert headings(card) == ["train", "rollout", "sessions of step 3"]
    assert card.count("<title>step 3, in the model, 0.5s</title>") == 2
    assert "named by its prompt and response" in card
