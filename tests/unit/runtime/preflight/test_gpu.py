"""GPU health, from recorded answers of nvidia-smi: there is no GPU here."""

import pytest

from tests.unit.runtime.test_binding import binding
from verl_hpc.runtime.preflight.gpu import (
    Gpu,
    judge_gpus,
    judge_nearness,
    near_cores,
    parse_gpus,
    read_gpus,
)

GOOD = "0, 34, 0, 4, 81559\n1, 36, 0, 4, 81559\n"


ID = ", GPU-a, 00000000:17:00.0"


def node(text):
    """The GPUs of an answer, whose rows lack the names."""
    return parse_gpus("".join(f"{row}{ID}\n" for row in text.splitlines()))


def test_rows():
    assert node("3, 41, 2, 0, 81559\n") == [Gpu(3, 41, 2, 0.0, "GPU-a")]
    assert node("0, [N/A], [N/A], [N/A], 81559\n") == [Gpu(0, None, None, None, "GPU-a")]
    assert node("") == []


def test_healthy_nodes():
    verdict = judge_gpus({"n0": node(GOOD), "n1": node(GOOD)}, 2)
    assert verdict.state == "ok"
    assert verdict.found.startswith("4 GPUs, at most 36 C")


def test_nodes_without_gpus():
    states = [judge_gpus({"n0": [], "n1": []}, expected).state for expected in (0, None, 8)]
    assert states == ["ok", "ok", "fails"]


SICK = [
    (node("0, 34, 5, 4, 81559\n1, 36, 0, 4, 81559\n"), "GPU 0 has 5 uncorrected memory errors"),
    (node("0, 34, 0, 4, 81559\n1, 91, 0, 4, 81559\n"), "GPU 1 is at 91 C"),
    (node("0, 34, 0, 40000, 81559\n1, 36, 0, 4, 81559\n"), "GPU 0 has 49% of its memory in u"),
    (node("0, 34, 0, 4, 81559\n"), "1 GPUs of 2"),
    (node(""), "0 GPUs of 2"),
    ("nvidia-smi: driver mismatch", "nvidia-smi: driver mismatch"),
]


@pytest.mark.parametrize("bad, words", SICK)
def test_a_sick_node(bad, words):
    verdict = judge_gpus({"n0": node(GOOD), "n1": bad}, 2)
    assert (verdict.state, verdict.nodes) == ("fails", ("n1",))
    assert f"n1: {words}" in verdict.found


def test_memory_errors_that_the_driver_does_not_tell():
    assert judge_gpus({"n0": node("0, 34, [N/A], 4, 81559\n")}, 1).state == "unknown"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(text):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    return write


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


def test_ranks_on_the_other_socket():
    bindings = [binding(0, range(8), device="cuda:0"), binding(1, range(8, 16), device="cuda:1")]
    first, second = frozenset(range(8)), frozenset(range(8, 16))
    (verdict,) = judge_nearness(bindings, [first, second])
    assert verdict.state == "ok"
    (verdict,) = judge_nearness(bindings, [second, second])
    assert verdict.state == "fails"
    assert "rank 0 on n0 has 0-7, not 8-15" in verdict.found
    assert judge_nearness(bindings, [None, None]) == []
