"""The judge of the real runs finds the bad ends that it is fed."""

import json

import h5py
import numpy as np
import pytest

from tests.fuzz.cases import Case
from tests.fuzz.judge import LAST, fault

NAMED = "DataError: problems.jsonl, line 1: no prompt; mend the line\n"
FAILED = f"\nverl_hpc: rank 0 of 1 on node7 failed in read model, data and reward: {NAMED}"
LEFT = "\nverl_hpc: rank 0 on node7 failed in reward: it left with status 0 and no message\n"
KILLED = "\nverl_hpc: rank 0 on node7 failed in reward: it was ended by SIGSEGV\n"
TRACEBACK = "Traceback (most recent call last):\n"
ENDS = ("error", "same", "same or error", "either", "gone")


def ended(directory, status, output, weight=None):
    """A run that has ended so; with a last step of this one weight, or without one."""
    directory.mkdir()
    (directory / "end.json").write_text(json.dumps({"status": status, "seconds": 1.0}))
    (directory / "output.txt").write_text(output)
    if weight is not None:
        (directory / LAST).mkdir(parents=True)
        with h5py.File(directory / LAST / "index.h5", "w") as file:
            file["weights/norm"] = np.full(3, weight, np.float32)
    return directory


@pytest.fixture
def told(tmp_path):
    """Judges an end."""
    undisturbed = ended(tmp_path / "undisturbed", 0, "", 1.0)

    def judge(end, status, output, weight=None, **fields):
        case = Case("x", lambda place: None, end, **fields)
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        return fault(case, ended(directory, status, output, weight), undisturbed)

    return judge


@pytest.mark.parametrize("end", ["error", "same or error", "either"])
@pytest.mark.parametrize("output", [NAMED, FAILED, f"a note\n{NAMED}", f"{NAMED}Abort(1)\n"])
def test_a_named_error_is_clean(told, end, output):
    assert told(end, 1, output) is None


def test_a_success_is_clean(told):
    assert [told(end, 0, "", 1.0) for end in ("same", "same or error", "either")] == [None] * 3
    assert told("either", 0, "a note\n", 2.0) is None


@pytest.mark.parametrize(("status", "output"), [(1, LEFT), (3, LEFT), (-11, KILLED)])
def test_a_death_that_is_told_is_clean_only_where_it_belongs(told, status, output):
    assert told("gone", status, output) is None
    assert all(told(end, status, output) for end in ENDS if end != "gone")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("status", "output"),
    [
        *((0, output) for output in ("", LEFT)),
        *((status, NAMED) for status in (2, 85, -6, None)),
        *((status, "") for status in (1, -11)),
        (1, "KeyError: 5\n"),
        (1, "OSError: no such file\n"),
        (1, "SomeOtherError: x\n"),
        (1, "a warning: OSError: it has nothing to do with it\n"),
        (1, "WARNING: DataError: in the middle of a line\n"),
        (1, "DataError: \n"),
        (1, TRACEBACK + NAMED),
        (1, NAMED + "x" * 10**6),
        (1, FAILED.replace("DataError", "KeyError")),
    ],
)
def test_a_bad_end_is_found(told, end, status, output):
    assert told(end, status, output) is not None


@pytest.mark.parametrize("end", ENDS)
def test_a_success_is_judged_by_its_weights_and_words(told, end):
    assert "traceback" in told(end, 0, TRACEBACK, 1.0)
    assert "characters" in told(end, 0, "x" * 10**6, 1.0)
    assert "not finite" in told(end, 0, "", float("nan"))
    assert "not finite" in told(end, 1, NAMED, float("inf"))
    assert end == "either" or told(end, 0, "", 2.0) is not None


def test_only_what_a_case_prints_itself_may_be_long(told):
    assert told("same", 0, "x" * 10**6, 1.0, most_bytes=10**6) is None
    assert "characters" in told("same", 0, "x" * 10**6, 1.0, most_bytes=10**6 - 1)


def test_no_failure_may_stand_for_the_weights_of_the_undisturbed_run(told):
    assert told("same", 1, NAMED) is not None
