"""InfiniBand of a node: the kernel's files are made here, and the verbs library is a stand-in."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from verl_hpc.errors import ClusterError
from verl_hpc.runtime import environment, session
from verl_hpc.runtime.fabric import (
    Fabric,
    check_fabric,
    has_slingshot,
    network_of,
    read_fabric,
    trouble,
    wanted_infiniband,
)

VERBS = """
#include <string.h>
struct device { const char *name; int opens; };
static struct device devices[] = { DEVICES };
static struct device *list[sizeof devices / sizeof *devices + 1];
struct device **ibv_get_device_list(int *count) {
    *count = sizeof devices / sizeof *devices;
    for (int i = 0; i < *count; i++) list[i] = &devices[i];
    return list;
}
const char *ibv_get_device_name(struct device *d) { return d->name; }
void *ibv_open_device(struct device *d) { return d->opens ? d : 0; }
int ibv_close_device(void *d) { return 0; }
void ibv_free_device_list(struct device **l) { memset(l, 0, sizeof list); }
"""


def kernel(directory, ports):
    """The kernel's directory of adapters, by their names."""
    for name, (layer, state) in ports.items():
        port = directory / "class" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text(f"{state}\n")
    return directory / "class"


def library(directory, devices):
    """A library that knows these devices, each with whether it can be opened."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    listed = ", ".join(f'{{"{name}", {int(opens)}}}' for name, opens in devices.items())
    (directory / "verbs.c").write_text(VERBS.replace("DEVICES", listed))
    words = ["cc", "-shared", "-fPIC", "-o", "libverbs.so", "verbs.c"]
    subprocess.run(words, check=True, cwd=directory)
    return str(directory / "libverbs.so")


UP, DOWN, ROCE = ("InfiniBand", "4: ACTIVE"), ("InfiniBand", "1: DOWN"), ("Ethernet", "4: ACTIVE")
ONE, BOTH = ("mlx5_0",), ("mlx5_0", "mlx5_1")
ADAPTERS = [
    ({}, None, Fabric(), None),
    ({"mlx5_0": UP, "mlx5_1": DOWN, "mlx5_2": ROCE}, None, Fabric(ONE),
     "mlx5_0 up, but libibverbs.so.1 is missing: install libibverbs1"),
    (dict.fromkeys(BOTH, UP), {"mlx5_0": True, "mlx5_1": False}, Fabric(BOTH, BOTH, ONE), None),
    ({"mlx5_0": UP}, {"irdma0": True}, Fabric(ONE, ("irdma0",), ("irdma0",)),
     "mlx5_0 up, but libibverbs has no driver for it: install ibverbs-providers"),
    ({"mlx5_0": UP}, {"mlx5_0": False}, Fabric(ONE, ONE),
     "mlx5_0 up, but cannot be opened: is /dev/infiniband there"),
]  # fmt: skip
"""Ports, the library's devices if there is one, what is read, and what is wrong."""


@pytest.mark.parametrize(("ports", "devices", "fabric", "words"), ADAPTERS)
def test_adapters_and_why_they_cannot_be_used(tmp_path, ports, devices, fabric, words):
    verbs = "libnone.so.1" if devices is None else library(tmp_path, devices)
    assert read_fabric(kernel(tmp_path, ports), verbs) == fabric
    why = trouble(fabric)
    assert why is None if words is None else why.startswith(words)


SAYS = "n0 [0] NCCL INFO"
NCCL_LOGS = [
    ("", None),
    (f"{SAYS} NET/IB : No device found\n{SAYS} Using network Socket\n", "Socket"),
    (f"{SAYS} Using network IB\n{SAYS} DMA-BUF is used\n", "IB"),
    (f"{SAYS} Using network AWS Libfabric\n", "AWS Libfabric"),
]


@pytest.mark.parametrize("log, network", NCCL_LOGS)
def test_the_network_that_nccl_says_it_uses(log, network):
    assert network_of(log) == network


class OneRank:
    """The control plane of a job whose ranks all are alike."""

    def any(self, flag):
        return flag

    def together(self, work):
        return work()


@pytest.fixture
def environ(monkeypatch):
    system = SimpleNamespace(environ={"SLURMD_NODENAME": "n7"})
    monkeypatch.setattr(environment, "os", system)
    return system.environ


GOOD, BAD = Fabric(("mlx5_0",), ("mlx5_0",), ("mlx5_0",)), Fabric(("mlx5_0",), ())


WANTED = [
    ({}, GOOD, 2, True),
    ({}, GOOD, 1, False),
    ({}, Fabric(), 2, False),
    ({"NCCL_NET": "IB"}, Fabric(), 2, False),
    ({"NCCL_NET": "IB"}, BAD, 2, True),
    ({"NCCL_NET": "Socket"}, BAD, 2, False),
    ({"NCCL_IB_DISABLE": "1"}, BAD, 2, False),
    ({"NCCL_NET_PLUGIN": "ofi"}, BAD, 2, False),
    ({"NCCL_NET_PLUGIN": "none"}, GOOD, 2, True),
    ({"NCCL_NET_PLUGIN": ""}, GOOD, 2, True),
]


@pytest.mark.parametrize("chosen, fabric, num_nodes, wanted", WANTED)
def test_infiniband_is_wanted_between_nodes_unless_the_site_chose(
    environ, chosen, fabric, num_nodes, wanted
):
    environ |= chosen
    assert wanted_infiniband(OneRank(), num_nodes, lambda: fabric) == (fabric if wanted else None)


def test_a_node_whose_adapters_cannot_be_used_is_refused(environ):
    check_fabric(GOOD)
    with pytest.raises(ClusterError, match="n7: InfiniBand mlx5_0 up, but .*ibverbs-providers"):
        check_fabric(BAD)


@pytest.mark.parametrize(
    "fabric, limited, network",
    [(GOOD, None, "IB"), (BAD, None, "Socket"), (GOOD, "64 KiB", "Socket")],
)
def test_the_doctor_takes_tcp_where_a_run_is_refused(
    environ, monkeypatch, fabric, limited, network
):
    monkeypatch.setattr(session.fabric, "wanted_infiniband", lambda *_: fabric)
    asked = []
    look = lambda **_: asked.append(1) or limited  # noqa: E731
    monkeypatch.setattr(session.limits, "trouble", look)
    world = SimpleNamespace(num_nodes=2, host="n7")
    if network == "Socket":
        with pytest.raises(ClusterError, match="n7: "):
            session.choose_network(world, OneRank(), refuse=True)
    asked.clear()
    assert session.choose_network(world, OneRank(), refuse=network == "IB") == fabric
    assert (len(asked), environ["NCCL_NET"]) == (1, network)


def test_slingshot_is_known_by_the_class_of_its_driver(tmp_path):
    assert not has_slingshot(tmp_path / "class")
    (tmp_path / "class/cxi0").mkdir(parents=True)
    assert has_slingshot(tmp_path / "class")
