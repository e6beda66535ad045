"""The three switches: off by default, and what each one lets happen."""

import json

import pytest
import torch

import verl_hpc
from verl_hpc.errors import ConfigError


def test_a_profile_is_written_where_it_is_asked_for(make_trainer, prompts, tmp_path):
    trainer = make_trainer(enable_profiling=True, output_dir=str(tmp_path), namespace="n")
    trainer.step(prompts[:2])
    trace = json.loads((tmp_path / "n" / "profiles" / "step_1.json").read_text())
    assert any("aten::" in str(event.get("name")) for event in trace["traceEvents"])
    quiet = make_trainer(output_dir=str(tmp_path / "off"))
    quiet.step(prompts[:2])
    assert not (tmp_path / "off").exists()


def test_debug_mode_keeps_values_and_looks_for_anomalies(make_trainer, prompts):
    seen = []

    def reward(response, reference):
        seen.append(torch.is_anomaly_enabled())
        return 0.0

    debugged = make_trainer(enable_debug_mode=True, reward_fn=reward)
    debugged.step(prompts[:2])
    assert {"advantages", "old", "reference"} <= set(debugged.debug_values)
    plain = make_trainer(reward_fn=reward)
    plain.step(prompts[:2])
    assert seen == [True] * 2 + [False] * 2
    with pytest.raises(ConfigError, match="debug_values needs enable_debug_mode"):
        _ = plain.debug_values


def test_code_that_came_with_a_model_has_to_be_allowed(hf_model, make_trainer, prompts):
    brought = type("Brought", (verl_hpc.ActorModel,), {"__module__": "transformers_modules.x.y"})
    with pytest.raises(ConfigError, match="Brought is code that came with a model"):
        make_trainer(actor_model=brought(hf_model))
    allowed = make_trainer(actor_model=brought(hf_model), allow_unsafe_operations=True)
    assert "loss" in allowed.step(prompts[:2])
