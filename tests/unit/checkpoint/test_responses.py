import pytest

from verl_hpc.checkpoint.responses import read_responses, write_responses
from verl_hpc.errors import CheckpointError
from verl_hpc.rollout.protocol import Response

RESPONSES = {
    7: Response((1, 2, 3), (-0.5, -1.0, -0.25), "stop"),
    2: Response((151_000,), (-3.5,), "length"),
}


def test_what_is_written_is_read(tmp_path):
    write_responses(tmp_path, 0, "k", RESPONSES)
    write_responses(tmp_path, 3, "k", {9: Response((), (), "stop")})
    write_responses(tmp_path, 4, "other", {})
    assert list(read_responses(tmp_path)) == [
        ("k", RESPONSES),
        ("k", {9: Response((), (), "stop")}),
        ("other", {}),
    ]


def test_the_last_of_two_writes_counts(tmp_path):
    write_responses(tmp_path, 0, "k", RESPONSES)
    write_responses(tmp_path, 0, "new", {})
    assert list(read_responses(tmp_path)) == [("new", {})]


def test_a_step_without_any(tmp_path):
    assert list(read_responses(tmp_path)) == []


def test_a_damaged_file_is_told(tmp_path):
    responses = {s: Response((s,) * 50, (-1.0,) * 50, "stop") for s in range(50)}
    write_responses(tmp_path, 0, "k", responses)
    (file,) = (tmp_path / "rollout").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(bytes([9, 0, 0, 0] * 20))] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"replica_00000\.h5"):
        list(read_responses(tmp_path))


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(CheckpointError, match="replica_00000"):
        write_responses(tmp_path / "gone", 0, "k", RESPONSES)
