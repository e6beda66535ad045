import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.planner.hardware import GIB, KINDS, Hardware, gpu_kind


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_kind_has_its_figures_and_their_source(kind):
    assert kind.source
    assert min(kind.tflops.values()) > 0
    assert min(kind.hbm_gb_s, kind.pcie_gb_s) > 0
    assert kind.tflops["float32"] <= kind.tflops["bfloat16"]


def test_a_gpu_has_less_memory_than_its_data_sheet_says():
    sheet = {"A100-40": 40, "A100-80": 80, "H100-80": 80, "H200": 141, "B200": 180, "L40S": 48}
    for name, gigabytes in sheet.items():
        assert 0.9 * gigabytes * 1e9 < KINDS[name].memory_bytes < 1.07 * gigabytes * 1e9, name


def test_an_unknown_kind_names_those_there_are():
    with pytest.raises(ConfigError, match=r"gpu = 'H100': no such kind; choose one of .*H100-80"):
        gpu_kind("H100")


def test_cores_share_the_memory_of_their_node():
    cores = Hardware(KINDS["cpu"], ranks_per_node=4, host_bytes=64 * GIB)
    assert cores.device_bytes == cores.host_bytes_per_rank == 16 * GIB
    assert Hardware(KINDS["cpu"], 4).device_bytes is None


def test_measured_memory_comes_before_the_kinds():
    bare, told = (Hardware(KINDS["H100-80"], 8, measured_device_bytes=m) for m in (None, 70 * GIB))
    assert bare.device_bytes == KINDS["H100-80"].memory_bytes
    assert told.device_bytes == 70 * GIB
