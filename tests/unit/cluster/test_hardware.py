import pytest

from verl_hpc.cluster.hardware import hardware_of, host_bytes
from verl_hpc.cluster.site import Site
from verl_hpc.errors import ConfigError


def site(**fields) -> Site:
    return Site.model_validate(dict(name="here", gpus_per_node=4, cores_per_node=64) | fields)


def test_a_site_names_its_gpus():
    found = hardware_of(site(gpu="A100-80", links={"nvlink_gb_s": 250.0}))
    assert (found.kind.name, found.ranks_per_node) == ("A100-80", 4)
    assert found.links.nvlink_gb_s == 250.0


def test_another_kind_may_be_asked_for():
    assert hardware_of(site(gpu="A100-80"), "H200").kind.name == "H200"


def test_a_site_without_gpus_computes_on_cores():
    assert hardware_of(site(gpus_per_node=0, tasks_per_node=2)).kind.name == "cpu"


def test_a_site_that_does_not_say_is_refused():
    with pytest.raises(ConfigError, match=r"site here: gpu is not given.*H100-80"):
        hardware_of(site())


@pytest.mark.parametrize(
    "fields, gib",
    [
        ({"memory": "0"}, None),
        ({"memory": None}, None),
        ({"memory": "900G"}, 900),
        ({"memory": "2T"}, 2048),
        ({"memory": "1024"}, 1),
        ({"memory": "900G", "host_memory_gib": 880.0}, 880),
    ],
)
def test_the_memory_of_a_node(fields, gib):
    assert host_bytes(site(**fields)) == (None if gib is None else gib * 2**30)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"gpu": "H100"}, "H100-80, H100-94"),
        ({"gpu": "cpu"}, "is no GPU"),
        ({"gpu": "H200", "gpus_per_node": 0, "tasks_per_node": 1}, "leave one of them out"),
    ],
)
def test_a_profile_with_another_gpu_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        site(**fields)
