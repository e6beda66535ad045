"""What a start says about its run directory."""

from types import SimpleNamespace

import pytest

from tests.unit.config.trees import parse
from verl_hpc.trainer.train import _run_directory


@pytest.mark.parametrize(
    ("mode", "told"), [(None, False), (0o700, False), (0o750, True), (0o711, True)]
)
def test_a_run_directory_that_others_may_enter_is_told_about(tmp_path, caplog, mode, told):
    config = parse(directory=str(tmp_path))
    if mode is not None:
        config.run_directory.mkdir()
        config.run_directory.chmod(mode)
    control = SimpleNamespace(together=lambda work: work())
    session = SimpleNamespace(world=SimpleNamespace(rank=0), control=control)
    with _run_directory(session, config):
        assert config.run_directory.stat().st_mode & 0o777 == (mode or 0o700)
    said = f"other users may enter {config.run_directory}, "
    assert (said in caplog.text) == told
    assert caplog.text.count("chmod 700") == told
