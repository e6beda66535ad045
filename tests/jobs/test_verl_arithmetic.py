"""verl's own end-to-end test of PPO passes its bar on one rank and on TP2 x DP2.

Its data and weights come from the directory that the environment variable VERL_HPC_ARITHMETIC names
(default ../shared/data/verl_arithmetic); without it this is skipped.
"""

import os
from pathlib import Path

import pytest

from benchmarks.verl_arithmetic.run import BAR, RANKS, outcome, settings
from benchmarks.verl_arithmetic.set_up import set_up
from tests.jobs.launch import trained
from verl_hpc.metrics.log import read_metrics

ROOT = Path(__file__).parents[2]
SOURCE = ROOT.parent / "shared" / "data" / "verl_arithmetic"
SOURCE = Path(os.environ.get("VERL_HPC_ARITHMETIC", SOURCE))


@pytest.mark.slow
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("name", RANKS)
def test_ppo_passes_the_bar(name, tmp_path):
    if not SOURCE.is_dir():
        pytest.skip(f"no data in {SOURCE}; set VERL_HPC_ARITHMETIC to verl's arithmetic_sequence")
    set_up(SOURCE, tmp_path)
    config = ROOT / f"benchmarks/verl_arithmetic/{name}.yaml"
    trained(RANKS[name], config, *settings(tmp_path), timeout=14_300)
    found = outcome(read_metrics(tmp_path / name))
    print(found)
    assert found["start"] < 0.05 and found["first"] < 0.05
    assert found["best"] > BAR
    assert found["last_ten"] > BAR
