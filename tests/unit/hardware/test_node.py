import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import GIB, KINDS, Hardware, LinkFigures, gpu_kind
from verl_hpc.layout.link_model import Links


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


def test_names_are_read_in_any_case():
    assert gpu_kind("h100-80") is gpu_kind("H100-80")
    assert gpu_kind("mi300x").name == "MI300X"


@pytest.mark.parametrize(
    "device, names",
    [
        ("NVIDIA H100 80GB HBM3", {"H100-80", "H100-94"}),
        ("NVIDIA H100 NVL", {"H100-80", "H100-94"}),
        ("NVIDIA GH200 480GB", {"H100-96"}),
        ("NVIDIA H200", {"H200"}),
        ("NVIDIA H20", {"H20"}),
        ("NVIDIA A100-SXM4-80GB", {"A100-40", "A100-80"}),
        ("NVIDIA B200", {"B200"}),
        ("NVIDIA GB200", {"GB200"}),
        ("AMD Instinct MI300X", {"MI300X"}),
        ("NVIDIA L40", set()),
        ("cpu", {"cpu"}),
    ],
)
def test_the_drivers_name_of_a_device_says_which_kinds_it_may_be(device, names):
    assert {name for name, kind in KINDS.items() if kind.is_called(device)} == names


def test_links_by_default_are_those_of_an_h100():
    found = Hardware(KINDS["H100-80"], 8).links
    assert found.model_dump() == pytest.approx(Links().model_dump())


def test_what_a_site_says_comes_before_the_kind():
    given = LinkFigures(nvlink_gb_s=90.0, network_gb_s=12.5, memory_gb_s=1000.0, message_us=5.0)
    bare, told = Hardware(KINDS["A100-80"], 8), Hardware(KINDS["A100-80"], 8, given)
    assert (bare.nvlink_gb_s, bare.network_gb_s, bare.memory_gb_s) == (300.0, 45.0, 2039.0)
    assert (told.nvlink_gb_s, told.network_gb_s, told.memory_gb_s) == (90.0, 12.5, 1000.0)
    assert told.links.network_gb_s == 12.5 and told.links.message_us == 5.0
    assert told.links.nvlink_gb_s / bare.links.nvlink_gb_s == pytest.approx(90 / 300)
    assert told.links.memory_gb_s / bare.links.memory_gb_s == pytest.approx(1000 / 2039)


def test_without_nvlink_messages_take_pcie():
    assert Hardware(KINDS["L40S"], 8).nvlink_gb_s == KINDS["L40S"].pcie_gb_s
