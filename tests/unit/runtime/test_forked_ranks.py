"""What keeps `train --ranks` from starting ranks."""

import pytest

from verl_hpc.cli.main import main
from verl_hpc.errors import LaunchError
from verl_hpc.runtime import forked_ranks

CONFIG = ["--config", "configs/run/quickstart.yaml"]


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "SLURM_JOB_ID"])
def test_a_launcher_has_started_this_process(monkeypatch, name):
    for other in forked_ranks._LAUNCHERS:
        monkeypatch.delenv(other, raising=False)
    forked_ranks.check_alone()
    monkeypatch.setenv(name, "3")
    with pytest.raises(LaunchError, match=f"{name} is set: a launcher has started"):
        forked_ranks.check_alone()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "0"], "LaunchError: --ranks 0: choose 1 or more"),
        (["--ranks", "2", "--bootstrap", "slurm"], "LaunchError: --ranks starts ranks that find"),
    ],
)
def test_what_makes_no_ranks_is_refused_before_anything_is_imported(
    monkeypatch, capsys, words, message
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr("verl_hpc.cli.train.Signals.listen", lambda _: None)
    assert main(["train", *words, *CONFIG]) == 1
    assert message in capsys.readouterr().err


def test_no_mpiexec(monkeypatch, tmp_path):
    monkeypatch.setattr(forked_ranks.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="there is no mpiexec beside"):
        forked_ranks._mpiexec()
