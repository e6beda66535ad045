"""A save that cannot be, or may not be: no step, nothing left, and the reason."""

import errno
import os

import pytest

from tests.unit.ranks import on_ranks
from verl_hpc.checkpoint import write
from verl_hpc.checkpoint.step_files import StepContents
from verl_hpc.checkpoint.store import complete_steps, prune, remove_torn
from verl_hpc.checkpoint.write import save_step
from verl_hpc.errors import CheckpointError, ConfigError


def save(root, number, **arguments):
    def work(control):
        return save_step(control, root, number, [], StepContents(), **arguments)

    return on_ranks(2, work)[0]


def test_who_has_lost_the_directory_makes_no_step(tmp_path):
    def lost():
        raise ConfigError("in use by another")

    good = save(tmp_path, 1)
    with pytest.raises(ConfigError, match="in use by another"):
        save(tmp_path, 2, check_owner=lost)
    assert complete_steps(tmp_path) == [good]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step_00000001"]


def test_two_saves_of_a_step_do_not_meet(tmp_path):
    """The second begins and ends while the first writes."""
    seen = []

    def look():
        seen.extend(p.name for p in tmp_path.iterdir() if p.name.endswith(".partial"))

    def save_another():
        look()
        save(tmp_path, 1, check_owner=look)

    save(tmp_path, 1, check_owner=save_another)
    assert len(set(seen)) == 2
    assert [p.name for p in complete_steps(tmp_path)] == ["step_00000001"]
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".partial")]


def test_what_a_life_that_ended_has_left_goes(tmp_path):
    good = save(tmp_path, 1)
    (tmp_path / ".step_00000002.00ff.partial").mkdir()
    (tmp_path / "step_00000003").mkdir()
    remove_torn(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", good.name]
    remove_torn(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free space there"),
        (errno.EDQUOT, "Free space there"),
        (errno.ENOENT, "See that this directory can be written from every node"),
        (errno.EROFS, "See that this directory can be written from every node"),
    ],
)
def test_the_advice_is_about_what_went_wrong(tmp_path, monkeypatch, code, advice):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(write, "make_real", fail)
    with pytest.raises(CheckpointError, match=f"{os.strerror(code)}.*{advice}"):
        save(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_step_beyond_the_last_is_none_of_those_that_are_kept(tmp_path):
    """Resume has found it damaged, or the run would not be before it."""
    names = [save(tmp_path, number).name for number in (1, 2, 3, 9)]
    prune(tmp_path, keep=2, last=3)
    assert [path.name for path in complete_steps(tmp_path)] == names[:0:-1]
