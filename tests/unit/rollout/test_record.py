"""The course of a session: seconds in the model, and the turns of each row."""

from dataclasses import replace

from verl_hpc.rollout.record import SessionRecord, TurnRecord

TURNS = (
    TurnRecord(None, 2, 5, "stop", 10.0, 12.0),
    TurnRecord(0, 7, 8, "stop", 11.0, 14.0),  # asked for before the first one's end
    TurnRecord(0, 6, 9, "length", 20.0, 21.0),
    TurnRecord(None, 1, 2, "stop", 21.5, 22.0),
)
RECORD = SessionRecord("sums", TURNS, (1, 2, 3), 9.0, 30.0, "exited")


def test_seconds_in_which_turns_overlap_count_once():
    assert RECORD.model_s == 4.0 + 1.0 + 0.5
    assert RECORD.program_s == 21.0 - 5.5
    assert RECORD.num_tokens == 3 + 1 + 3 + 1


def test_a_row_has_the_turns_that_no_earlier_one_has():
    rows = [replace(RECORD, row=row).own_turns for row in range(4)]
    assert rows == [[0, 1], [2], [3], []]
