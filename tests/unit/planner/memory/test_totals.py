import pytest

from tests.unit.config.trees import parse
from tests.unit.layout.models import PUBLISHED
from verl_hpc.config.model import ModelConfig, OffloadConfig, ParallelConfig
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.hardware import KINDS, Hardware
from verl_hpc.planner.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.passes import update
from verl_hpc.planner.memory.role import resident
from verl_hpc.planner.memory.shape import RoleShape
from verl_hpc.planner.memory.totals import role_totals


def test_a_role_alone_is_what_the_ledger_says_of_it():
    arch = architecture_from(PUBLISHED["Llama-3.1-70B"][0] | {"max_position_embeddings": 8192})
    config = parse(
        parallel={"tensor_parallel": 8, "pipeline_parallel": 4, "sequence_parallel": True},
        offload={"gradients": True, "optimizer": True},
        rollout={"tensor_parallel": 8, "num_samples": 4},
    )
    layouts = run_layouts(config, arch, 64)
    run = ledger(config, arch, layouts, Hardware(KINDS["H100-80"], 8))
    role = config.role_settings["actor"]
    shape = RoleShape.of_role(role, arch, layouts.train["actor"], on_gpu=True)
    found = role_totals(shape, 16384, role.offload)

    def actors(name):
        phases = [p for p in run.all_phases if p.name == name]
        return max(sum(s for n, s in p.device.items() if n.startswith("actor.")) for p in phases)

    assert found.resident == actors("reshard")
    # What is resident is most on the last stage, by its norm; what works, on the first.
    assert found.resident + found.working == pytest.approx(actors("update"), rel=1e-5)
    assert found.generating == actors("generate")
    assert role_totals(shape, 16384).generating == found.resident
    assert role_totals(shape, 16384, OffloadConfig(parameters=True)).generating < found.resident


def test_no_stage_has_more():
    arch = architecture_from(PUBLISHED["Llama-3.1-70B"][0])
    sizes = TrainLayout(tp=8, pp=4, vpp=2)
    parallel = ParallelConfig(tensor_parallel=8, pipeline_parallel=4, virtual_pipeline=2)
    shape = RoleShape.of(arch, sizes, ModelConfig(path="none"), parallel)
    found = role_totals(shape, 4096)
    for stage in range(4):
        assert sum(resident(shape, stage).values()) <= found.resident
        assert sum(update(shape, stage, 4096).values()) <= found.working
