"""Every shipped configuration is predicted."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.layout.models import PUBLISHED
from verl_hpc.config.load import load_config
from verl_hpc.config.role import SPAN
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step

CONFIGS = sorted((Path(__file__).parents[4] / "configs" / "run").rglob("*.yaml"))
MODEL = replace(architecture_from(PUBLISHED["Llama-3.1-8B"][0]), max_positions=131072)
MIXTURE = replace(architecture_from(PUBLISHED["Qwen3-30B-A3B"][0]), max_positions=131072)
DEEPSEEK = architecture_from(PUBLISHED["DeepSeek-V3"][0])
H100 = Machine(Hardware(KINDS["H100-80"], 8))


def ranks_of(config):
    """Return the ranks of its placement, or 32; more where stages leave too few for experts."""
    spans = [SPAN.fullmatch(text) for text in config.placement.values()]
    lasts = [int(span[3] or span[2]) for span in spans if span and not span[1]]
    if config.parallel.expert_parallel > 1:
        return 256
    return max(lasts) + 1 if lasts else 32


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_step_of_it_takes_time(path):
    config = load_config(path)
    model = MIXTURE if config.parallel.expert_parallel > 1 else MODEL
    if config.model.router is not None:  # whose bias few models have
        model = DEEPSEEK
    layouts = run_layouts(config, model, ranks_of(config), ranks_per_node=8)
    step = predict_step(config, model, layouts, H100)
    assert 0.0 < step.seconds < 1e5 and 0.0 < step.utilisation < 1.0
    trained = [name for name, role in config.role_settings.items() if role.trainable]
    updates = [name for name in step.operators if name.startswith("update")]
    assert len(updates) == len(trained)
    assert ("rollout" in step.operators) == config.samples_to_train
