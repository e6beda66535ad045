"""Verdicts on what torch says of each rank's device: there is no GPU here."""

import pytest

from verl_hpc.runtime.device import Device
from verl_hpc.runtime.preflight.devices import TorchDevice, judge_torch

TORCH = "torch 2.13.0+cu130 (CUDA 13.0)"
LOST = "SLURM_GPUS_ON_NODE=1 promises GPUs, but torch sees none"


def on_gpu(node, **other):
    device = Device(node, "cuda:0", "NVIDIA H100", f"GPU-{node}")
    return TorchDevice(node, device, TORCH, "580.95.05", 78 * 2**30)._replace(**other)


def on_cores(node, trouble=None):
    return TorchDevice(node, Device(node, trouble=trouble), TORCH, None, None)


PRODUCT = f"{TORCH}, driver 580.95.05: a matrix product is right on 2 x NVIDIA H100, at least 77.0"
OTHER = on_gpu("n1", torch="torch 2.12.0+cu126 (CUDA 12.6)")
DEVICES = [
    ([on_gpu("n0"), on_gpu("n1", free_bytes=77 * 2**30)], 1, "ok", (), f"{PRODUCT} GiB free"),
    ([on_cores("n0")], 0, "ok", (), ""),
    ([on_cores("n0"), on_cores("n1")], 4, "fails", (), "gpus_per_node is 4"),
    ([on_gpu("n0"), on_cores("n1", LOST)], 1, "fails", ("n1",), "n1 (rank 1)"),
    ([on_gpu("n0"), on_cores("n1")], 1, "fails", ("n1",), "n1 (rank 1)"),
    ([on_cores("n0", LOST), on_cores("n1", LOST)], 1, "fails", (), ""),
    ([on_gpu("n0"), OTHER], 1, "fails", None, "torch 2.12.0+cu126 (CUDA 12.6) on n1"),
]


@pytest.mark.parametrize(("ranks", "gpus", "state", "blamed", "words"), DEVICES)
def test_verdicts_on_devices(ranks, gpus, state, blamed, words):
    """A node is blamed where others do better; what all lack is not a node's fault."""
    verdict = judge_torch(ranks, gpus)
    assert verdict.state == state and blamed in (verdict.nodes, None)
    assert words in f"{verdict.found} {verdict.todo}"
