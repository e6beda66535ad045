"""Exports and imports that cannot be: one named error, and nothing left behind."""

import resource

import pytest

from tests.unit.ranks import on_ranks
from verl_hpc.checkpoint.convert import export_step, import_model
from verl_hpc.cli.main import main
from verl_hpc.errors import CheckpointError


def test_a_place_that_cannot_be_made(original, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"--out .*/file/out: Not a directory"):
        export_step(original, tmp_path / "file/out")


def test_a_disk_that_is_full(original, tmp_path):
    """A limit on file size stands in for the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"--out .*/out: .*File too large"):
            export_step(original, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["nothing", "a file", "a model"])
def test_what_is_no_step(model, tmp_path, capsys, name):
    (tmp_path / "a file").write_text("")
    (tmp_path / "a model").symlink_to(model)
    words = ["export", "--step", str(tmp_path / name), "--out", str(tmp_path / "out")]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"CheckpointError: --step {tmp_path / name}: no ")
    assert "Traceback" not in error


def test_a_pointer_to_a_step_that_is_gone(original, tmp_path):
    (tmp_path / "latest").symlink_to("step_00000009")
    with pytest.raises(CheckpointError, match="latest: no such directory"):
        export_step(tmp_path / "latest", tmp_path / "out")


def test_an_import_says_what_it_could_not_write_to(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory.*can be written") as caught:
        on_ranks(1, lambda control: import_model(control, model, tmp_path / "file"))
    assert "Free space" not in str(caught.value)
