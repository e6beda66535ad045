"""A run whose model is named as on a hub."""

import json

import pytest

from tests.mpi.recipe_runs import run_tree
from tests.unit.sources.hubs import COMMIT, OTHER, hf_model
from verl_hpc.config.load import load_config, parse_config
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.trainer.train import train

pytestmark = pytest.mark.world(2)


def test_a_run_records_its_commit_and_resumes_with_no_other(
    here, tiny_model, shared_directory, monkeypatch
):
    limits = {"engine": "none", "max_prompt_tokens": 200, "max_response_tokens": 8}
    settings = {"recipe": "sft", "steps": 1, "batch": {"size": 2}, "checkpoint": {}}
    tree = run_tree("hub", "Org/Tiny", shared_directory, **settings, rollout=limits)
    hub, model = shared_directory / "hub", tiny_model()
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    with pytest.raises(ModelError, match="python -m verl_hpc fetch Org/Tiny"):
        train(here, parse_config(tree))
    if here.world.rank == 0:
        snapshot = hf_model(hub, "Org/Tiny", COMMIT, model)
    here.control.barrier()
    config = parse_config(tree)
    train(here, config)
    if here.world.rank == 0:
        recorded = load_config(config.run_directory / "config.yaml")
        assert recorded.model.path == str(snapshot)
        facts = json.loads((config.run_directory / "facts.json").read_text())
        assert facts["model"].startswith(f"Org/Tiny@{COMMIT} (")
        hf_model(hub, "Org/Tiny", OTHER, model)
    here.control.barrier()
    longer = tree | {"steps": 2}
    with pytest.raises(ConfigError) as caught:
        train(here, parse_config(longer))
    told = f"revision of model.path = Org/Tiny@{OTHER}, and was Org/Tiny@{COMMIT}"
    assert told in str(caught.value)
    longer["model"] = {"path": f"Org/Tiny@{COMMIT}", "dtype": "float32"}
    assert train(here, parse_config(longer)).progress.step == 2
