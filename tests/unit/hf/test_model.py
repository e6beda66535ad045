"""A language model as its files say, and what they lack, or have besides."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from verl_hpc.errors import ModelError
from verl_hpc.hf.model import build_language_model, parameters_without_memory, resolved
from verl_hpc.hf.stored import stored_views
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.published import Published
from verl_hpc.testing.tiny import make_tiny_model


@pytest.fixture
def model(tmp_path):
    sizes = {"num_hidden_layers": 1, "num_local_experts": 2, "num_experts_per_tok": 1}
    return make_tiny_model(tmp_path, "granitemoe", **sizes)


def files_with(model, change):
    file = model / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return read_architecture(model)


NORM = "model.layers.0.input_layernorm.weight"


def test_tensors_besides_the_models_are_left_out(model):
    """Published files have layers for speculation that transformers leaves out."""
    before = resolved(read_architecture(model)).tensors()
    arch = files_with(model, lambda tensors: tensors.update(more=torch.ones(3)))
    assert "more" in arch.tensors()
    assert resolved(arch).tensors() == before


def test_only_files_of_another_head_lack_the_vocabularys(model):
    arch = files_with(model, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match="1 tensors that are not in its files, first lm_head"):
        resolved(arch)
    assert "lm_head.weight" not in resolved(arch, "score").tensors()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop(NORM), f"1 tensors that are not in its files, first {NORM}"),
        (lambda tensors: tensors.update({NORM: torch.ones(3)}), f"{NORM} has shape .3. in the"),
    ],
)
def test_files_that_do_not_fill_the_model(model, change, problem):
    with pytest.raises(ModelError, match=problem):
        resolved(files_with(model, change))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "none_such"}, "'none_such': transformers cannot build it: .*none_such"),
        ({"hidden_act": "none_such"}, "transformers cannot build it: KeyError: 'none_such'"),
    ],
)
def test_what_transformers_cannot_build(model, changes, problem):
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelError, match=problem):
        resolved(read_architecture(model))


def test_parameters_have_no_memory_and_buffers_their_values(model):
    arch = read_architecture(model)
    whole = build_language_model(arch, torch.float32)
    with parameters_without_memory():
        empty = build_language_model(arch, torch.float32)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    buffers = dict(empty.named_buffers())
    assert buffers and all(torch.equal(buffers[n], b) for n, b in whole.named_buffers())
    tied = empty.get_output_embeddings().weight is empty.get_input_embeddings().weight
    assert tied == (whole.get_output_embeddings().weight is whole.get_input_embeddings().weight)


def test_a_number_without_dimensions_is_refused(model):
    arch = read_architecture(model)
    whole = build_language_model(arch, torch.float32)
    whole.register_buffer("beta", torch.tensor(1.0))
    with pytest.raises(ModelError, match="beta is a number without dimensions"):
        stored_views(whole, arch.published.shapes)


def test_code_of_a_publisher_is_not_run(model, tmp_path):
    arch = read_architecture(model)
    (model / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = {**arch.published.config, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    build_language_model(
        replace(arch, published=Published(config, arch.published.shapes)), torch.float32
    )
    assert not (tmp_path / "ran").exists()
