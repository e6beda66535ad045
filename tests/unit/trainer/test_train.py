"""What a start says about its run directory."""

import os
from types import SimpleNamespace

import pytest

from tests.unit.config.trees import parse
from tests.unit.waiting import within
from verl_hpc.errors import ConfigError
from verl_hpc.trainer.train import _run_directory


def alone():
    """The session of a rank that is the only one."""
    control = SimpleNamespace(together=lambda work: work())
    return SimpleNamespace(world=SimpleNamespace(rank=0), control=control)


@pytest.mark.parametrize(
    ("mode", "told"), [(None, False), (0o700, False), (0o750, True), (0o711, True)]
)
def test_a_run_directory_that_others_may_enter_is_told_about(tmp_path, caplog, mode, told):
    config = parse(directory=str(tmp_path))
    if mode is not None:
        config.run_directory.mkdir()
        config.run_directory.chmod(mode)
    with _run_directory(alone(), config):
        assert config.run_directory.stat().st_mode & 0o777 == (mode or 0o700)
    said = f"other users may enter {config.run_directory}, "
    assert (said in caplog.text) == told
    assert caplog.text.count("chmod 700") == told


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "metrics.jsonl", "flow.txt", "facts.json", "report.html", "heartbeat.json",
     "ranks.json", "request_stop.json", "request_save.json"],
)  # fmt: skip
def test_what_a_run_cannot_write_is_named_before_its_work(tmp_path, name, kind):
    config = parse(directory=str(tmp_path))
    config.run_directory.mkdir()
    path = config.run_directory / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/nowhere/x")
    with pytest.raises(ConfigError, match=f"{name}: not a regular file.*delete it"):
        within(5, _run_directory(alone(), config).__enter__)
    assert [p.name for p in config.run_directory.iterdir()] == [name]
