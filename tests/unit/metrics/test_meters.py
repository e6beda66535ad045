"""Seconds and joules by operator, none of them counted twice. Files and a module stand in for RAPL
and for NVML, which this machine may lack: they count what the test says."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.trainer.runs import loop, small_run
from verl_hpc.metrics import meters as module
from verl_hpc.metrics.meters import CLOCKS, Meters, find_counters, joules

RANGE_UJ = 65_712_999_613
"""max_energy_range_uj of the memory of a server."""


@pytest.fixture
def clock(monkeypatch):
    """Stands in for the clocks; CPUs work a quarter of its time."""
    state = SimpleNamespace(now_s=100)
    reads = (lambda: state.now_s * 10**9, lambda: state.now_s * 10**9 // 4)
    clocks = [replace(c, read=read) for c, read in zip(CLOCKS, reads, strict=True)]
    monkeypatch.setattr(module, "CLOCKS", clocks)
    return state


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


def energy(meters):
    return {name: value for name, value in meters.drain().items() if name.startswith("energy_j/")}


def spent(**seconds):
    """What clocks say of these seconds by operator."""
    times = {f"timing_s/{name}": value for name, value in seconds.items()}
    return times | {f"cpu_s/{name}": value / 4 for name, value in seconds.items()}


def test_operators_add_up_and_the_step_is_all_the_time(clock):
    meters = Meters()
    for operator, seconds in (("rollout", 2), ("reward", 1), ("rollout", 3), ("", 4)):
        meters.enter(operator)
        clock.now_s += seconds
    assert meters.drain() == spent(rollout=5.0, reward=1.0, step=10.0)
    clock.now_s += 2
    assert meters.drain() == spent(step=2.0)


def test_a_block_that_raises_is_timed(clock):
    meters = Meters()
    with pytest.raises(ZeroDivisionError), meters.during("update"):
        clock.now_s += 1
        raise ZeroDivisionError
    clock.now_s += 1
    assert meters.drain() == spent(update=1.0, step=2.0)


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
    of_operator = {"other": (0.0, 0.0), "rollout": (7.001, 2.5), "update_actor": (0.5, 0.0)}
    expected = {f"energy_j/nvml/{operator}": gpu for operator, (gpu, _) in of_operator.items()}
    expected |= {f"energy_j/rapl/{operator}": cpu for operator, (_, cpu) in of_operator.items()}
    assert energy(meters) == expected
    nvml.millijoules += 1_000
    assert energy(meters)["energy_j/nvml/update_actor"] == 1.0


def test_sums_are_exact_however_often_a_counter_begins_again():
    """The counter is read over 300 random stretches, some of which pass the end of its range."""
    draw, true = random.Random(0), {"a": 0, "b": 0}
    total = RANGE_UJ - 5
    meters = Meters([joules("rapl", lambda: total % RANGE_UJ, RANGE_UJ)])
    for _ in range(300):
        operator, used = draw.choice("ab"), draw.randrange(RANGE_UJ)
        meters.enter(operator)
        total += used
        true[operator] += used
    counted = energy(meters)
    assert total > 100 * RANGE_UJ
    assert [counted[f"energy_j/rapl/{name}"] for name in true] == [j / 1e6 for j in true.values()]


def test_cores_and_the_whole_platform_do_not_count_a_second_time(tmp_path):
    zones = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
    files = [add_zone(tmp_path, f"intel-rapl:{zone}", name) for zone, name in zones.items()]
    meters = Meters(find_counters(None, reads_node=True, powercap=tmp_path))
    for used, file in zip((1, 10, 100, 1000, 10_000), files, strict=True):
        file.write_text(str(used * 1_000_000))
    assert energy(meters) == {"energy_j/rapl/other": 1101.0}
    assert find_counters(None, reads_node=False, powercap=tmp_path) == []


def test_without_a_meter_that_can_be_read_nothing_is_told(tmp_path, nvml):
    """A directory in place of the file: as where only root may read it, also for root."""
    file = add_zone(tmp_path, "intel-rapl:0", "package-0")
    file.unlink()
    file.mkdir()
    assert find_counters("another", reads_node=True, powercap=tmp_path) == []
    nvml.error = nvml.NVMLError("Not Supported")
    assert find_counters("GPU-abc", reads_node=True, powercap=tmp_path / "none") == []


def test_a_meter_that_fails_is_left_and_what_it_has_counted_stays(nvml, caplog):
    meters = Meters(find_counters("abc", reads_node=False))
    nvml.millijoules = 10
    assert energy(meters) == {"energy_j/nvml/other": 0.0}, "its driver was loaded anew"
    meters.enter("rollout")
    nvml.millijoules += 3_000
    meters.enter("reward")
    nvml.error = nvml.NVMLError("GPU is lost")
    assert energy(meters) == {"energy_j/nvml/other": 0.0, "energy_j/nvml/rollout": 3.0}
    assert "energy_j/nvml is not read any more: GPU is lost" in caplog.text
    nvml.error = None
    assert energy(meters) == {}


def test_a_run_records_all_that_its_meter_counted(tmp_path, monkeypatch):
    """The meter stands in for a GPU's: each time that it is read, another joule is used."""
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        return reads * 1_000_000

    monkeypatch.setattr(
        "verl_hpc.trainer.records.find_counters", lambda *_, **__: [joules("nvml", read)]
    )
    _, rows = loop(small_run(tmp_path))
    of_steps = [{k: v for k, v in row.items() if k.startswith("energy_j/nvml/")} for row in rows]
    for row, of_step in zip(rows, of_steps, strict=True):
        operators = {k.split("/")[1] for k in row if k.startswith("timing_s/")} - {"step"}
        assert operators <= {name.split("/")[2] for name in of_step}
    # The first read is where counting begins, and the last one is after the last step.
    assert sum(map(sum, (of_step.values() for of_step in of_steps))) == reads - 2
