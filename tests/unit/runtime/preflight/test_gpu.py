"""GPU health, from recorded answers of nvidia-smi: there is no GPU here."""

import pytest

from tests.unit.programs import program
from verl_hpc.runtime.preflight.gpu import Gpu, judge_gpus, near_cores, read_gpus


@pytest.fixture
def tool(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    return lambda text: program(tmp_path / "nvidia-smi", text)


def test_the_tool(tool):
    assert read_gpus() == [], "without the tool there are none"
    tool("echo '0, 34, 0, 4, 81559, GPU-a, 00000000:17:00.0'")
    assert read_gpus() == [Gpu(0, 34, 0, 4 / 81559, "GPU-a")]
    tool("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert read_gpus() == "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"


def amd_device(driver, bus, **files):
    device = driver / bus
    files = {"mem_info_vram_used": 0, "mem_info_vram_total": 2**36, "unique_id": bus} | files
    files |= {"hwmon/hwmon3/temp1_input": 41000, "hwmon/hwmon3/temp2_input": 52000}
    files |= {"ras/umc_err_count": "ue: 0\nce: 7", "local_cpulist": "0-3"}
    for name, value in files.items():
        path = device / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def test_amds_gpus_are_read_from_their_driver(tool, tmp_path):
    driver = tmp_path / "amdgpu"
    amd_device(driver, "0000:c1:00.0")
    amd_device(driver, "0000:c6:00.0", mem_info_vram_used=2**35)
    (driver / "0000:c6:00.0/ras/gfx_err_count").write_text("ue: 3\nce: 0\n")
    (driver / "bind").touch()
    first, second = read_gpus(driver)
    assert first == Gpu(0, 52, 0, 0.0, "0000:c1:00.0", frozenset(range(4)))
    assert (second.uncorrected_errors, second.memory_used) == (3, 0.5)
    assert judge_gpus({"n0": [first]}, 1).state == "ok"
    verdict = judge_gpus({"n0": [first], "n1": [second]}, 1)
    assert verdict.nodes == ("n1",)
    assert "GPU 1 has 3 uncorrected memory errors" in verdict.found


def test_cores_near_a_device(tmp_path):
    (tmp_path / "0000:17:00.0").mkdir()
    (tmp_path / "0000:17:00.0/local_cpulist").write_text("0-3,8\n")
    assert near_cores("00000000:17:00.0", tmp_path) == {0, 1, 2, 3, 8}
    assert near_cores("00000000:65:00.0", tmp_path) is None
