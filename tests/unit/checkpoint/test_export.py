"""Exports and imports that cannot be: one named error, and nothing left behind."""

import json
import resource

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.mpi.any_models import MODELS
from tests.unit.checkpoint.steps import STATE, write_step
from tests.unit.ranks import on_ranks
from verl_hpc.checkpoint import convert
from verl_hpc.checkpoint.convert import export_step, import_model
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.cli.main import main
from verl_hpc.errors import CheckpointError, ModelError
from verl_hpc.layout.box import Box
from verl_hpc.testing.tiny import make_tiny_model


def test_a_place_that_cannot_be_made(original, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"--out .*/file/out: Not a directory"):
        export_step(original, tmp_path / "file/out")


def test_a_disk_that_is_full(original, tmp_path):
    """A limit on file size stands in for the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"--out .*/out: .*File too large"):
            export_step(original, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["nothing", "a file", "a model"])
def test_what_is_no_step(model, tmp_path, capsys, name):
    (tmp_path / "a file").write_text("")
    (tmp_path / "a model").symlink_to(model)
    words = ["export", "--step", str(tmp_path / name), "--out", str(tmp_path / "out")]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"CheckpointError: --step {tmp_path / name}: no ")
    assert "Traceback" not in error


def test_a_pointer_to_a_step_that_is_gone(original, tmp_path):
    (tmp_path / "latest").symlink_to("step_00000009")
    with pytest.raises(CheckpointError, match="latest: no such directory"):
        export_step(tmp_path / "latest", tmp_path / "out")


def test_an_import_says_what_it_could_not_write_to(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory.*can be written") as caught:
        on_ranks(1, lambda control: import_model(control, model, tmp_path / "file"))
    assert "Free space" not in str(caught.value)


def test_a_component_with_a_score_head_becomes_a_classifier(model, tmp_path, capsys):
    from transformers import AutoModelForSequenceClassification

    step = write_step(model, tmp_path, heads={"judge": "score"})
    out = tmp_path / "out"
    words = ["export", "--step", str(step), "--out", str(out), "--component", "judge"]
    assert main(words) == 0
    classifier = AutoModelForSequenceClassification.from_pretrained(out, dtype=torch.float32)
    count = sum(parameter.numel() for parameter in classifier.parameters())
    assert f"{count:,} parameters, checksums verified" in capsys.readouterr().out
    weights = open_weights(step, "judge", head="score")
    expected = weights.read({"score.weight": Box.whole((1, 32))}, "float32")["score.weight"]
    assert torch.equal(classifier.score.weight, expected)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForSequenceClassification"]
    # Token 0 pads and ends texts: transformers would score the token before it.
    assert (config["eos_token_id"], config["pad_token_id"]) == (0, None)


def test_the_token_that_ends_a_turn_is_among_those_that_end_responses(model, tmp_path):
    file = "generation_config.json"
    before = json.loads((model / file).read_text())
    for number, (end, ends) in enumerate([(None, 0), (0, 0), (2, [0, 2])]):
        state = STATE.model_copy(update={"turn_end": end})
        step = write_step(model, tmp_path / f"root{number}", state=state)
        export_step(step, tmp_path / f"out{number}")
        found = json.loads((tmp_path / f"out{number}" / file).read_text())
        assert found == before | {"eos_token_id": ends}


def test_a_component_that_cannot_be_exported(model, tmp_path):
    step = write_step(model, tmp_path, heads={"critic": "value"})
    with pytest.raises(CheckpointError, match="--component judge: .* has none .*actor"):
        export_step(step, tmp_path / "out", component="judge")
    with pytest.raises(CheckpointError, match="--component critic: it has a value head.*actor"):
        export_step(step, tmp_path / "out", component="critic")
    assert not (tmp_path / "out").exists()


def test_a_model_with_fused_projections_comes_back_as_it_was(tmp_path):
    """Its checkpoint has several layers in one tensor, which no engine has."""
    model = make_tiny_model(tmp_path / "phi", "phi3", num_hidden_layers=2)
    (step,) = on_ranks(1, lambda control: import_model(control, model, tmp_path / "imported"))
    export_step(step, tmp_path / "out")
    before, after = (load_file(d / "model.safetensors") for d in (model, tmp_path / "out"))
    assert "model.layers.1.self_attn.qkv_proj.weight" in before
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_what_reads_back_differently_is_not_exported(original, tmp_path, monkeypatch):
    def spoilt(tensors, file, **more):
        save_file({name: tensor + 1 for name, tensor in tensors.items()}, file, **more)

    monkeypatch.setattr(convert, "save_file", spoilt)
    with pytest.raises(CheckpointError, match="reads back differently than it was written"):
        export_step(original, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "qwen2_moe", "gpt_oss"])
def test_layers_for_speculation_are_left_out_and_a_router_keeps_its_bias_in_float32(
    tmp_path, family
):
    fields = MODELS[family][1] | {"num_hidden_layers": 3}
    source = make_tiny_model(tmp_path / "model", family, noise=0.05, **fields)
    known = load_file(source / "model.safetensors")
    further = {"model.layers.3.eh_proj.weight": torch.zeros(2, 2)}
    save_file(known | further, source / "model.safetensors", metadata={"format": "pt"})
    (step,) = on_ranks(1, lambda control: import_model(control, source, tmp_path / "run"))
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        export_step(step, tmp_path / kind, dtype=kind)
        exported = load_file(tmp_path / kind / "model.safetensors")
        assert exported.keys() == known.keys()
        for name, tensor in exported.items():
            wanted = torch.float32 if name.endswith("correction_bias") else dtype
            assert torch.equal(tensor, known[name].to(wanted)) and tensor.dtype == wanted


def test_a_mixture_that_no_table_takes_is_exported_by_its_names(tmp_path):
    """A model without windows in its table, of which fully_shard trains transformers' class."""
    windows = {"sliding_window": 8, "max_position_embeddings": 64}
    source = make_tiny_model(tmp_path / "model", "mixtral", num_local_experts=4, **windows)
    with pytest.raises(ModelError, match="sliding_window = 8"):
        open_weights(source)
    (step,) = on_ranks(1, lambda control: import_model(control, source, tmp_path / "run"))
    export_step(step, tmp_path / "out")
    known, exported = (load_file(d / "model.safetensors") for d in (source, tmp_path / "out"))
    assert known.keys() == exported.keys()
    assert all(torch.equal(known[name], exported[name]) for name in known)
