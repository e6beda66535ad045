"""What changes the fingerprint of a data set, and what does not."""

import pytest

from tests.unit.data.conftest import files, verl_row, write_jsonl
from verl_hpc.config.data import ReasoningGymConfig
from verl_hpc.data import fingerprint as module
from verl_hpc.data.fingerprint import fingerprint
from verl_hpc.errors import DataError

ROWS = [verl_row(0), verl_row(1)]


def generated(**settings):
    return ReasoningGymConfig(**{"task": "chain_sum", "size": 5, **settings})


def test_files_are_known_by_their_rows_not_by_their_places(tmp_path):
    (tmp_path / "moved").mkdir()
    first, second = (write_jsonl(tmp_path / f"{i}.jsonl", [ROWS[i]]) for i in (0, 1))
    moved = write_jsonl(tmp_path / "moved" / "0.jsonl", ROWS[:1])
    expected = fingerprint(files(first, second))
    assert (expected, len(expected)) == (fingerprint(files(moved, second)), 32)
    others = [files(second, first), files(first), files(first, second, limit=1)]
    others.append(files(first, second, answer_key="extra_info.answer"))
    assert len({expected, *map(fingerprint, others)}) == 5


def test_one_changed_answer_changes_it(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    before = fingerprint(files(path))
    path.write_bytes(path.read_bytes().replace(b'"2"', b'"3"'))
    assert fingerprint(files(path)) != before


@pytest.mark.parametrize(
    "change", [{"size": 6}, {"seed": 1}, {"split": "train"}, {"options": {"min_terms": 3}}]
)
def test_a_setting_of_a_task_changes_it(change):
    assert fingerprint(generated(**change)) != fingerprint(generated())


def test_another_version_of_the_library_changes_it(monkeypatch):
    before = fingerprint(generated())
    assert before == fingerprint(generated(seed=0))
    monkeypatch.setattr(module, "version", lambda name: "99")
    assert fingerprint(generated()) != before


def test_several_data_sets_have_one(tmp_path):
    one, other = generated(), generated(seed=1)
    assert len({fingerprint(one, other), fingerprint(other, one), fingerprint(one)}) == 3


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be read"):
        fingerprint(files(tmp_path / "gone.jsonl"))
