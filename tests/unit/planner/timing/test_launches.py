"""What the host dispatches is the least time of a pass."""

from dataclasses import replace

import pytest

from tests.unit.cluster.requests import ROOT
from tests.unit.layout.models import PUBLISHED, moe
from verl_hpc.config.model import Fp8Config
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.adapters import AdapterShape
from verl_hpc.layout.architecture import architecture_from, read_architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.shape import RoleShape
from verl_hpc.planner.timing.launches import OUTSIDE, PER_LAYER, of_a_layer
from verl_hpc.planner.timing.lengths import Lengths
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.passes import infer_cost, launch_share, update_cost
from verl_hpc.planner.timing.workload import Workload

L8 = architecture_from(PUBLISHED["Llama-3.1-8B"][0])
H100 = Machine(Hardware(KINDS["H100-80"], 8))
ONE = RoleShape(L8, TrainLayout())
MODELS = ROOT / "configs/model"
TINY = Workload(8, 1, 8, Lengths(8, 8, 0.0), 1, 1, 16)
"""Eight micro-batches of sixteen tokens."""


def of_host(machine, micro_batches, passage):
    seconds = machine.efficiency.launches * (32 * passage[0] + passage[1])
    return pytest.approx(micro_batches * seconds)


def test_a_slow_host_bounds_small_micro_batches():
    slow = replace(H100, efficiency=replace(H100.efficiency, launches=60e-6, memory=1.0))
    forward, update = infer_cost(slow, ONE, TINY), update_cost(slow, ONE, TINY)
    for cost, i in ((forward, 0), (update, 1)):
        assert slow.seconds({"launches": cost["launches"]}) == of_host(
            slow, 8, (PER_LAYER["dense"][i], OUTSIDE[i])
        )
    assert "layers" not in forward and "layers" not in update
    # A host as fast as those of the source is ahead of the device.
    assert "launches" not in infer_cost(H100, ONE, TINY)


def test_the_share_halves_with_twice_the_tokens():
    work = Workload(256, 1, 512, Lengths(512, 512, 0.0), 1, 1, 8192)
    for trains in (False, True):
        small, large = (
            launch_share(H100, ONE, replace(work, max_tokens=tokens), trains)
            for tokens in (4096, 8192)
        )
        assert small == pytest.approx(2 * large)


def test_recomputed_layers_are_dispatched_again():
    slow = replace(H100, efficiency=replace(H100.efficiency, launches=1e-3))
    plain, again = (
        update_cost(slow, replace(ONE, recompute=recompute), TINY)["launches"]
        for recompute in ("none", "full")
    )
    assert again - plain == pytest.approx(8 * 32 * PER_LAYER["dense"].forward)


def more(base, *rows):
    """A row, and what each of `rows` has beyond a dense layer."""
    dense = PER_LAYER["dense"]
    return tuple(
        PER_LAYER[base][i] + sum(PER_LAYER[row][i] - dense[i] for row in rows) for i in (0, 1)
    )


QUANTISED = {"fp8": Fp8Config(recipe="blockwise")}
ADAPTED = {"adapters": AdapterShape(16)}
OVER_CONTEXT = {"layout": TrainLayout(cp=2, dp=2)}
LAYERS = [
    (L8, {}, more("dense")),
    (L8, QUANTISED, more("fp8")),
    (L8, ADAPTED, more("adapters")),
    (L8, OVER_CONTEXT, more("context parallelism")),
    (L8, {**ADAPTED, **OVER_CONTEXT}, more("adapters", "context parallelism")),
    (L8, {"engine": "fsdp", **ADAPTED}, more("fsdp")),
    (moe("qwen3_moe"), QUANTISED, more("experts", "fp8")),
    (read_architecture(MODELS / "GLM-4.5-Air.json"), {}, more("shared experts")),
    (read_architecture(MODELS / "DeepSeek-V3.json"), QUANTISED, more("latent attention", "fp8")),
]


@pytest.mark.parametrize(("arch", "changes", "expected"), LAYERS)
def test_a_layer_has_the_operations_of_what_it_does(arch, changes, expected):
    assert of_a_layer(replace(ONE, arch=arch, **changes)) == expected
