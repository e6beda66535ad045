import json

import pytest

from verl_hpc.cluster.hardware import hardware_of, host_bytes, links_of
from verl_hpc.cluster.site import Site
from verl_hpc.errors import ConfigError
from verl_hpc.layout.link_model import Links


def site(**fields) -> Site:
    return Site.model_validate(dict(name="here", gpus_per_node=4, cores_per_node=64) | fields)


def test_a_site_names_its_gpus_and_another_kind_may_be_asked_for():
    hardware = hardware_of(site(gpu="A100-80", links={"nvlink_gb_s": 250.0}))
    facts = hardware.kind.name, hardware.ranks_per_node, hardware.nvlink_gb_s
    assert facts == ("A100-80", 4, 250.0)
    assert hardware_of(site(gpu="A100-80"), "H200").kind.name == "H200"
    with pytest.raises(ConfigError, match=r"site here: gpu is not given.*H100-80"):
        hardware_of(site())


def test_the_memory_of_a_node():
    gib = {"0": None, None: None, "900G": 900, "2T": 2048, "1024": 1}
    expected = {memory: size and size * 2**30 for memory, size in gib.items()}
    assert {memory: host_bytes(site(memory=memory)) for memory in gib} == expected
    assert host_bytes(site(memory="900G", host_memory_gib=880.0)) == 880 * 2**30


FIGURES = {"memory_gib": 47.4, "bfloat16_tflops": 364.0, "hbm_gb_s": 960.0}


def test_a_gpu_by_figures_of_the_profile():
    hardware = hardware_of(site(gpu="RTX 6000 Ada", gpu_figures=FIGURES))
    kind = hardware.kind
    assert (kind.name, kind.memory_gib, kind.hbm_gb_s) == ("RTX 6000 Ada", 47.4, 960.0)
    assert kind.tflops == {"bfloat16": 364.0, "float16": 364.0, "float32": 45.5}
    assert hardware.nvlink_gb_s == 32.0, "over PCIe"
    assert kind.is_called("NVIDIA RTX 6000 Ada Generation")
    assert not kind.is_called("NVIDIA RTX A6000")
    assert "gpu_figures of the site profile" in " ".join(hardware.assumptions)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"gpu": "RTX", "gpu_figures": FIGURES | {"memory_gib": -1.0}}, "gpu_figures.memory_gib"),
        ({"gpu": "RTX", "gpu_figures": {"memory_gib": 1.0}}, "bfloat16_tflops"),
        ({"gpu": "h100-80", "gpu_figures": FIGURES}, "figures of H100-80 are known"),
        ({"gpu_figures": FIGURES}, "gpu_figures without gpu"),
        ({"gpu": "RTX"}, "gpu = 'RTX': no such kind; choose one of .*give the figures"),
        ({"gpu": "H100"}, "H100-80, H100-94"),
        ({"gpu": "cpu"}, "cpu is no GPU"),
        ({"gpu": "H200", "gpus_per_node": 0, "tasks_per_node": 1}, "leave one of them out"),
    ],
)
def test_gpus_and_figures_that_are_wrong_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        site(**fields)


def test_a_network_that_nobody_gives_is_assumed():
    def network(hardware):
        return [line for line in hardware.assumptions if line.startswith("The network")]

    (line,) = network(hardware_of(site(gpu="H200")))
    assert "45 GB/s a GPU" in line and "links.network_gb_s" in line
    assert network(hardware_of(site(gpu="H200", links={"network_gb_s": 20.0}))) == []


def test_ranks_on_cores_are_assumed_to_have_one_each():
    cores = hardware_of(site(gpus_per_node=0, tasks_per_node=2))
    assert cores.kind.name == "cpu"
    assert "core of its own" in " ".join(cores.assumptions)
    assert "core of its own" not in " ".join(hardware_of(site(gpu="H200")).assumptions)


def test_links_of_a_site_that_does_not_say_which_gpus_it_has_are_an_h100s():
    assert links_of(site()).model_dump() == pytest.approx(Links().model_dump())
    assert links_of(site(links={"network_gb_s": 20.0})).network_gb_s == 20.0


MEASURED = {
    "measured_at": "2026-11-24T10:00:00+00:00", "site": "here", "nodes": 2, "ranks_per_node": 4,
    "device": "NVIDIA H100 80GB HBM3", "device_memory_gib": 78.5, "host_memory_gib": 1000.25,
    "network_gb_s": 41.5,
}  # fmt: skip
NVL = {"device": "NVIDIA H100 NVL", "device_memory_gib": 93.1}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(MEASURED))
    return file


def test_what_was_measured_comes_before_the_profile(path):
    fields = {"gpu": "H100-80", "host_memory_gib": 900.0, "links": {"network_gb_s": 20.0}}
    by_option = hardware_of(site(**fields), measured=str(path))
    assert by_option == hardware_of(site(**fields, measured=str(path)))
    assert by_option.device_bytes == int(78.5 * 2**30)
    assert by_option.host_bytes == int(1000.25 * 2**30)
    assert by_option.network_gb_s == by_option.links.network_gb_s == 41.5
    (line,) = [line for line in by_option.assumptions if line.startswith("Measured")]
    assert line == (
        f"Measured on 2 nodes of site here on 2026-11-24 ({path}): memory of a GPU 78.50 GiB, host "
        "memory of a node 1,000.25 GiB, network 41.50 GB/s a rank."
    )


def test_what_was_not_measured_is_the_profiles(path):
    path.write_text(json.dumps({n: v for n, v in MEASURED.items() if not n.endswith("_gb_s")}))
    hardware = hardware_of(site(gpu="H100-80", links={"network_gb_s": 20.0}), measured=str(path))
    assert hardware.network_gb_s == 20.0


@pytest.mark.parametrize(
    "change, words",
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "device = NVIDIA A100-SXM4-80GB.*has H100-80"),
        (NVL, "it has 93.1 GiB, and a H100-80"),
        ({"ranks_per_node": 8}, "8 ranks a node: the site profile has 4"),
        ({"ranks_per_node": 0}, "ranks_per_node = 0"),
        ({"measured_at": "yesterday"}, "measured_at = 'yesterday': expected a date and time of"),
        ({"speed": 1.0}, "speed: no such setting"),
        ({"nodes": None}, "nodes"),
    ],
)
def test_a_file_of_other_hardware_or_none_of_the_doctors_is_refused(path, change, words):
    path.write_text(json.dumps(MEASURED | change))
    with pytest.raises(ConfigError, match=words) as caught:
        hardware_of(site(gpu="H100-80"), measured=str(path))
    assert str(path) in str(caught.value) and "doctor --nodes" in str(caught.value)
    with pytest.raises(ConfigError, match=f"site here: measured = {path}"):
        hardware_of(site(gpu="H100-80", measured=str(path)))


@pytest.mark.parametrize("text", [None, "", "{", "[]", "\xff"])
def test_a_file_that_cannot_be_read_is_refused(path, text):
    path.unlink() if text is None else path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"--measured .*measured.json") as caught:
        hardware_of(site(gpu="H100-80"), measured=str(path))
    assert "doctor --nodes" in str(caught.value)
