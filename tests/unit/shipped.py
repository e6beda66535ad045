"""The configurations that are shipped, each with a model and on as many ranks as it is for."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.cluster.requests import ROOT
from tests.unit.cluster.test_launch_configs import MODELS, num_ranks, site_of, sizes_of
from tests.unit.layout.models import architecture, moe
from verl_hpc.config.load import load_config
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import Architecture, read_architecture
from verl_hpc.placement.layouts import RunLayouts, run_layouts

FILES = {path.stem: path for path in sorted((ROOT / "configs/run").rglob("*.yaml"))}
_EXAMPLE_RANKS = 4
"""Ranks that launch/quickstart.sh and launch/examples.sh start; other small runs take as many."""
_SIZES = dict(hidden_size=128, ffn_size=512, num_heads=4, num_kv_heads=2, head_size=32)


def laid_out(
    name: str, whole: bool = False
) -> tuple[RunConfig, Architecture, RunLayouts, Hardware]:
    """A shipped configuration, its model, layouts and nodes.

    Args:
        name: of the file in configs/run, or in examples/ there.
        whole: with all of the model's layers, and not two on each pipeline stage. Of a mixture a
            rank has two experts a layer either way. A model without a layer table is always whole.
    """
    config = load_config(FILES[name])
    if name in MODELS:
        arch = read_architecture(sizes_of(name), config.parallel.engine)
        ranks, per_node = num_ranks(name), site_of(name).ranks_per_node
    else:
        kind = moe if name == "moe" else architecture
        experts = {"num_experts": 8, "family": "qwen3_moe"} if name == "moe" else {}
        arch, ranks, per_node = kind(**_SIZES, **experts), _EXAMPLE_RANKS, 2
    arch = _smaller(arch, config, whole) if arch.is_mapped else arch
    hardware = Hardware(KINDS["H100-80" if name in MODELS else "cpu"], per_node)
    return config, arch, run_layouts(config, arch, ranks, ranks_per_node=per_node), hardware


def _smaller(arch: Architecture, config: RunConfig, whole: bool) -> Architecture:
    """Return a smaller model, of which as many stages are one layer short as of the whole one."""
    sizes = config.parallel
    stages = sizes.pipeline_parallel * sizes.virtual_pipeline
    short = -arch.num_layers % stages
    experts = min(2 * sizes.expert_parallel, arch.num_experts)
    layers = arch.num_layers if whole else 2 * stages - short
    return replace(arch, num_layers=layers, num_experts=experts)
