"""Joules by operator. Files and a module stand in for RAPL and for NVML, which this machine may
lack: they count what the test says."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.trainer.runs import loop, small_run
from verl_hpc.metrics.meters import Counter, Meters, find_counters
from verl_hpc.trainer.loop import combined

RANGE_UJ = 65_712_999_613
"""max_energy_range_uj of the memory of a server."""


def add_zone(powercap: Path, zone: str, name: str, energy: int = 0) -> Path:
    directory = powercap / zone
    directory.mkdir(parents=True)
    (directory / "name").write_text(f"{name}\n")
    (directory / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (directory / "energy_uj").write_text(f"{energy}\n")
    return directory / "energy_uj"


@pytest.fixture
def nvml(monkeypatch):
    """Stands in for pynvml: one GPU, GPU-abc, that has used `millijoules`."""

    class NVMLError(Exception):
        pass

    state = SimpleNamespace(millijoules=5_000, error=None, NVMLError=NVMLError)

    def handle(uuid):
        if uuid != "GPU-abc":
            raise NVMLError("Not Found")

    def energy(_):
        if state.error is not None:
            raise state.error
        return state.millijoules

    module = SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None)
    module.nvmlDeviceGetHandleByUUID = handle
    module.nvmlDeviceGetTotalEnergyConsumption = energy
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return state


def test_every_joule_goes_to_the_operator_under_way(tmp_path, nvml):
    package = add_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    meters = Meters(find_counters("abc", reads_node=True, powercap=tmp_path))
    meters.enter("rollout")
    nvml.millijoules += 7_001
    package.write_text("3500000")
    meters.enter("update_actor")
    nvml.millijoules += 250
    meters.tick()
    nvml.millijoules += 250
    joules = {"other": (0.0, 0.0), "rollout": (7.001, 2.5), "update_actor": (0.5, 0.0)}
    expected = {f"energy_j/nvml/{operator}": gpu for operator, (gpu, _) in joules.items()}
    expected |= {f"energy_j/rapl/{operator}": cpu for operator, (_, cpu) in joules.items()}
    assert meters.drain() == expected
    nvml.millijoules += 1_000
    assert meters.drain()["energy_j/nvml/update_actor"] == 1.0


def test_sums_are_exact_however_often_a_counter_begins_again():
    """The counter is read over 300 random stretches, some of which pass the end of its range."""
    draw, true = random.Random(0), {"a": 0, "b": 0}
    total = RANGE_UJ - 5
    meters = Meters([Counter("rapl", lambda: total % RANGE_UJ, RANGE_UJ)])
    for _ in range(300):
        operator, used = draw.choice("ab"), draw.randrange(RANGE_UJ)
        meters.enter(operator)
        total += used
        true[operator] += used
    spent = meters.drain()
    assert total > 100 * RANGE_UJ
    assert [spent[f"energy_j/rapl/{name}"] for name in true] == [j / 1e6 for j in true.values()]


def test_cores_and_the_whole_platform_do_not_count_a_second_time(tmp_path):
    zones = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
    files = [add_zone(tmp_path, f"intel-rapl:{zone}", name) for zone, name in zones.items()]
    meters = Meters(find_counters(None, reads_node=True, powercap=tmp_path))
    for joules, file in zip((1, 10, 100, 1000, 10_000), files, strict=True):
        file.write_text(str(joules * 1_000_000))
    assert meters.drain() == {"energy_j/rapl/other": 1101.0}
    assert find_counters(None, reads_node=False, powercap=tmp_path) == []


def test_without_a_meter_that_can_be_read_nothing_is_told(tmp_path, nvml):
    """A directory in place of the file: as where only root may read it, also for root."""
    file = add_zone(tmp_path, "intel-rapl:0", "package-0")
    file.unlink()
    file.mkdir()
    assert find_counters("another", reads_node=True, powercap=tmp_path) == []
    nvml.error = nvml.NVMLError("Not Supported")
    assert find_counters("GPU-abc", reads_node=True, powercap=tmp_path / "none") == []
    meters = Meters([])
    meters.enter("rollout")
    assert meters.drain() == {}


def test_a_meter_that_fails_is_left_and_what_it_has_counted_stays(nvml, caplog):
    meters = Meters(find_counters("abc", reads_node=False))
    meters.enter("rollout")
    nvml.millijoules += 3_000
    meters.enter("reward")
    nvml.error = nvml.NVMLError("GPU is lost")
    assert meters.drain() == {"energy_j/nvml/other": 0.0, "energy_j/nvml/rollout": 3.0}
    assert "nvml is not read any more: GPU is lost" in caplog.text
    nvml.error = None
    assert meters.drain() == {}


def test_a_driver_that_was_loaded_anew_takes_nothing_away(nvml):
    meters = Meters(find_counters("abc", reads_node=False))
    nvml.millijoules = 10
    assert meters.drain() == {"energy_j/nvml/other": 0.0}


def test_ranks_joules_are_summed_and_the_slowest_rank_tells_the_seconds():
    gpu, cpu = "energy_j/nvml/reward", "energy_j/rapl/reward"
    ranks = [{"timing_s/step": 2.0, gpu: 1.5, cpu: 8.0}, {"timing_s/step": 3.0, gpu: 2.25}]
    assert combined(ranks) == {"timing_s/step": 3.0, gpu: 3.75, cpu: 8.0}
    assert combined([]) == {}


def test_a_run_records_all_that_its_meter_counted(tmp_path, monkeypatch):
    """The meter stands in for a GPU's: each time that it is read, another joule is used."""
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        return reads * 1_000_000

    monkeypatch.setattr(
        "verl_hpc.trainer.loop.find_counters", lambda *_, **__: [Counter("nvml", read)]
    )
    _, rows = loop(small_run(tmp_path))
    spent = [{k: v for k, v in row.items() if k.startswith("energy_j/nvml/")} for row in rows]
    for row, joules in zip(rows, spent, strict=True):
        operators = {k.split("/")[1] for k in row if k.startswith("timing_s/")} - {"step"}
        assert operators <= {name.split("/")[2] for name in joules}
    # The first read is where counting begins, and the last one is after the last step.
    assert sum(map(sum, (joules.values() for joules in spent))) == reads - 2
