"""Promised GPUs are used, or the job ends. torch's answers are stand-ins: there is no GPU here."""

import logging
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from verl_hpc.errors import ClusterError
from verl_hpc.runtime import device
from verl_hpc.runtime.device import (
    Device,
    check_devices,
    driver_version,
    find_device,
    promise_of_gpus,
)

NONE = {"VERL_HPC_GPUS_PER_NODE": "0", "SLURM_GPUS_ON_NODE": "0"}


VISIBLE = {"CUDA": ("0", "GPU-7b3e6e9a", "MIG-1c2d"), "ROCR": ("0,1",), "HIP": ("1",)}
PROMISES = [
    *({f"{kind}_VISIBLE_DEVICES": value} for kind, values in VISIBLE.items() for value in values),
    *({name: "4"} for name in ("SLURM_GPUS_ON_NODE", "VERL_HPC_GPUS_PER_NODE", "SLURM_JOB_GPUS")),
    {"SLURM_STEP_GPUS": "0,1"},
    NONE | {"CUDA_VISIBLE_DEVICES": "2"},
]


@pytest.mark.parametrize("environ", PROMISES)
def test_what_promises_gpus(environ):
    name, value = list(environ.items())[-1]
    assert promise_of_gpus(environ) == f"{name}={value}"


@pytest.mark.parametrize("empty", ["", "-1", "NoDevFiles", "none", "void"])
def test_what_promises_none(empty):
    lists = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    assert promise_of_gpus(NONE | dict.fromkeys(lists, empty)) is None
    assert promise_of_gpus({}) is None


class Cuda:
    """torch.cuda of a node; tensors stay on the cores."""

    def __init__(self, count, error=""):
        self.count, self.error = count, error

    def is_available(self):
        return self.count > 0

    def device_count(self):
        return self.count

    def init(self):
        if self.error:
            raise RuntimeError(self.error)

    def get_device_properties(self, index):
        return SimpleNamespace(name="NVIDIA H100", uuid=f"GPU-{index}")


def stand_in(monkeypatch, cuda, *, version="2.13.0+cu130", built="13.0", hip=None, product=None):
    def ones(*size, device):
        assert device.startswith("cuda:")
        if product is None:
            return torch.ones(*size)
        return product(size)

    fake = SimpleNamespace(
        cuda=cuda, ones=ones, __version__=version, version=SimpleNamespace(cuda=built, hip=hip)
    )
    monkeypatch.setitem(sys.modules, "torch", fake)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "_NVIDIA", tmp_path / "version")
    monkeypatch.setattr(device, "_AMD", tmp_path / "amdgpu")

    def write(version):
        (tmp_path / "version").write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Sep 23 2025\n"
            "GCC version: gcc version 12.3.0\n"
        )

    return write


def test_versions_of_drivers(driver, tmp_path):
    assert driver_version() is None
    (tmp_path / "amdgpu").mkdir()
    assert driver_version() == "amdgpu"
    (tmp_path / "amdgpu/version").write_text("6.10.5\n")
    assert driver_version() == "6.10.5"
    driver("550.54.15")
    assert driver_version() == "550.54.15"


PROMISE = {"SLURM_GPUS_ON_NODE": "4"}


UNSEEN = [
    ("2.13.0+cpu", None, None, "", "2.13.0+cpu is built without CUDA and ROCm (no GPU driver is"),
    ("2.13.0+cu130", "13.0", None, "", "13.0 finds no GPU driver; does the node have GPUs, and"),
    ("2.13.0+cu118", "11.8", "440.1", "It is too old", "needs driver 450 or newer, cannot use"),
    ("2.13.0+cu130", "13.0", "580.95.05", "", "it counts no GPU"),
]


@pytest.mark.parametrize("version, built, there, error, words", UNSEEN)
def test_a_promised_gpu_that_torch_does_not_see(
    monkeypatch, driver, version, built, there, error, words
):
    if there is not None:
        driver(there)
    stand_in(monkeypatch, Cuda(0, error), version=version, built=built)
    found = find_device("n3", 0, 4, PROMISE)
    assert found.name == "cpu"
    assert found.trouble.startswith("SLURM_GPUS_ON_NODE=4 promises GPUs, but torch")
    assert words in found.trouble
    assert find_device("n3", 0, 4, {}) == Device("n3"), "nobody has promised any"


@pytest.mark.parametrize("count, local_rank, name", [(4, 2, "cuda:2"), (1, 3, "cuda:0")])
def test_the_gpu_of_a_rank(monkeypatch, count, local_rank, name):
    stand_in(monkeypatch, Cuda(count))
    found = find_device("n0", local_rank, 4, PROMISE)
    assert found == Device("n0", name, "NVIDIA H100", f"GPU-{name[-1]}")
    stand_in(monkeypatch, Cuda(2))
    trouble = find_device("n0", 2, 4).trouble
    assert trouble.startswith("4 ranks and 2 GPUs; leave the node out (--directive=--exclude=n0)")


def test_two_masks_that_hide_all(monkeypatch, driver):
    """HIP counts what ROCR leaves, so that both with the number 4 leave none."""
    driver("6.10.5")
    stand_in(monkeypatch, Cuda(0, "No HIP GPUs are available"), built=None, hip="7.0")
    masks = {"ROCR_VISIBLE_DEVICES": "4", "HIP_VISIBLE_DEVICES": "4"}
    told = find_device("n0", 0, 1, masks).trouble
    assert told.endswith("(hidden by ROCR_VISIBLE_DEVICES=4, HIP_VISIBLE_DEVICES=4?)")


def test_a_gpu_that_does_not_compute(monkeypatch):
    def refuses(size):
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    stand_in(monkeypatch, Cuda(1), product=refuses)
    expected = "cuda:0 cannot be used: CUDA error: no kernel image is available"
    assert find_device("n0", 0, 1).trouble == expected


def gpu(host, index, model="NVIDIA H100"):
    return Device(host, f"cuda:{index}", model, f"GPU-{index}")


BAD = Device("n1", trouble="SLURM_GPUS_ON_NODE=2 promises GPUs, but torch sees none")
OWNERS = [gpu("n0", 0), gpu("n0", 1), gpu("n1", 0)]
JOBS = [
    (OWNERS, []),
    ([Device("n0"), Device("n1")], []),
    ([*OWNERS[:2], BAD, BAD],
     ["n1 (ranks 2, 3): SLURM_GPUS_ON_NODE=2 promises GPUs",
      "With runtime.device=cpu all ranks compute on their cores instead"]),
    ([OWNERS[0], Device("n1"), Device("n1")],
     ["n1 (ranks 1, 2) has no GPU, and n0 has NVIDIA H100"]),
    ([*OWNERS, OWNERS[2]], ["ranks 2 and 3 on n1", "GPU GPU-0", "--gpus-per-node=G"]),
]  # fmt: skip
"""What each rank has found, and what is said of it."""


@pytest.mark.parametrize(("devices", "words"), JOBS)
def test_jobs_whose_ranks_cannot_compute_together(devices, words):
    with pytest.raises(ClusterError) if words else nullcontext() as caught:
        check_devices(devices)
    assert [word for word in words if word not in str(caught.value)] == []


def test_gpus_of_several_kinds_are_told(caplog):
    with caplog.at_level(logging.WARNING, "verl_hpc.runtime"):
        check_devices([gpu("n0", 0), gpu("n1", 0, "NVIDIA A100")])
    assert "['NVIDIA A100', 'NVIDIA H100']" in caplog.text
