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


def test_gpus_that_compute():
    verdict = judge_torch([on_gpu("n0"), on_gpu("n1", free_bytes=77 * 2**30)], 1)
    assert verdict.state == "ok"
    assert verdict.found == (
        f"{TORCH}, driver 580.95.05: a matrix product is right on 2 x NVIDIA H100, at least 77.0 "
        "GiB free"
    )


def test_cores():
    assert judge_torch([on_cores("n0")], 0).state == "ok"
    verdict = judge_torch([on_cores("n0"), on_cores("n1")], 4)
    assert (verdict.state, verdict.nodes) == ("fails", ())
    assert "gpus_per_node is 4" in verdict.todo


@pytest.mark.parametrize("bad", [on_cores("n1", LOST), on_cores("n1")])
def test_one_node_without_its_gpus_is_blamed(bad):
    verdict = judge_torch([on_gpu("n0"), bad], 1)
    assert (verdict.state, verdict.nodes) == ("fails", ("n1",))
    assert "n1 (rank 1)" in verdict.found


def test_all_nodes_without_their_gpus_are_not_to_blame():
    verdict = judge_torch([on_cores("n0", LOST), on_cores("n1", LOST)], 1)
    assert (verdict.state, verdict.nodes) == ("fails", ())


def test_nodes_that_read_different_environments():
    verdict = judge_torch([on_gpu("n0"), on_gpu("n1", torch="torch 2.12.0+cu126 (CUDA 12.6)")], 1)
    assert verdict.state == "fails"
    assert "torch 2.12.0+cu126 (CUDA 12.6) on n1" in verdict.found
