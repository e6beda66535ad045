"""A language model as its files say, and what they lack, or have besides."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from verl_hpc.checkpoint.weights import check_types, open_weights
from verl_hpc.errors import ModelError
from verl_hpc.hf.model import (
    build_language_model,
    parameters_without_memory,
    resolved,
    without_dropout,
)
from verl_hpc.hf.stored import places_of
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


@pytest.mark.parametrize("tied", [False, True])
def test_a_tensor_that_no_other_head_replaces_is_missed(tmp_path, tied):
    """Else it would be trained from zeros: with tied weights the embedding is the output layer."""
    model = make_tiny_model(tmp_path, "olmo2", num_hidden_layers=1, tied=tied)
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    arch = files_with(model, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=f"1 tensors that are not in its files, first {name}"):
        resolved(arch)
    if tied:
        with pytest.raises(ModelError, match=f"1 tensors that .* first {name}"):
            resolved(arch, "value")
    else:
        assert resolved(arch, "value").tensors().keys() == arch.tensors().keys()


def test_a_reward_model_lacks_all_of_the_output_layer(tmp_path):
    """The output layer of phi has a bias."""
    model = make_tiny_model(tmp_path, "phi", num_hidden_layers=1, head="score")
    arch = resolved(read_architecture(model), "score")
    assert not [name for name in arch.tensors() if name.startswith("lm_head")]


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
def test_files_without_the_prefix_of_the_base_model(tmp_path, family):
    """Both were published without it."""
    model = make_tiny_model(tmp_path, family, num_hidden_layers=1, tied=True)

    def without_prefix(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    arch = files_with(model, without_prefix)
    assert "h.0.mlp.c_fc.weight" in arch.tensors() or family != "gpt2"
    assert resolved(arch).tensors() == arch.tensors()


def test_the_embedding_of_the_token_that_pads_is_trained(tmp_path):
    """Texts may have it: it often ends them too."""
    arch = read_architecture(make_tiny_model(tmp_path, "olmo2", num_hidden_layers=1))
    assert arch.published.config["pad_token_id"] == 0
    model = build_language_model(arch, torch.float32)
    model(torch.tensor([[0, 1]])).logits.square().sum().backward()
    assert model.get_input_embeddings().weight.grad[0].abs().sum() > 0


def test_a_model_that_reads_to_the_right_is_refused(tmp_path):
    model = make_tiny_model(tmp_path, "bert", num_hidden_layers=1, is_decoder=True)
    arch = read_architecture(model)
    assert resolved(arch).tensors()
    file = model / "config.json"
    file.write_text(json.dumps(arch.published.config | {"is_decoder": False}))
    with pytest.raises(ModelError, match="'bert': it reads to the right too"):
        resolved(read_architecture(model))


def test_masks_that_a_model_does_not_read_are_left_out(tmp_path):
    """The files of Pythia have such masks."""
    model = make_tiny_model(tmp_path, "gpt_neox", num_hidden_layers=1)
    mask = {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8)}
    arch = files_with(model, lambda tensors: tensors.update(mask))
    weights = replace(open_weights(model), arch=resolved(arch))
    check_types(weights, model)
    bias = "gpt_neox.layers.0.attention.dense.bias"
    files_with(model, lambda tensors: tensors.update({bias: tensors[bias].to(torch.uint8)}))
    with pytest.raises(ModelError, match=f"{bias} is uint8; weights are read from float64"):
        check_types(replace(open_weights(model), arch=resolved(arch)), model)


def test_rows_that_are_two_dimensions_are_refused(model):
    whole = build_language_model(read_architecture(model), torch.float32)
    weight = whole.get_output_embeddings().weight.detach()
    with pytest.raises(ModelError, match="rows of lm_head.weight are two dimensions of x"):
        places_of(whole, {"x": weight.view(7, -1, weight.shape[1])})


def test_code_of_a_publisher_is_not_run(model, tmp_path):
    arch = read_architecture(model)
    (model / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = {**arch.published.config, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    build_language_model(
        replace(arch, published=Published(config, arch.published.shapes)), torch.float32
    )
    assert not (tmp_path / "ran").exists()


def test_nothing_is_drawn_in_training(tmp_path):
    """Families differ in the names of these settings, and some have them in a section."""
    drawn = {
        "attention_probs_dropout_prob": "bert",
        "hidden_dropout_prob": "bert",
        "layerdrop": "opt",
        "resid_pdrop": "gpt2",
        "router_jitter_noise": "mixtral",
        "dropout_p": "cpmant",
    }
    for name, family in drawn.items():
        config = AutoConfig.for_model(family, **{name: 0.5})
        assert getattr(without_dropout(config), name) == 0.0, name
    parts = AutoConfig.for_model("dbrx", attn_config={"attn_pdrop": 0.5})
    assert without_dropout(parts).attn_config.attn_pdrop == 0.0
    sizes = {"num_hidden_layers": 1, "is_decoder": True}
    arch = read_architecture(make_tiny_model(tmp_path, "bert", **sizes))
    model, tokens = build_language_model(arch, torch.float32), torch.tensor([[1, 2, 3]])
    assert torch.equal(model.train()(tokens).logits, model.eval()(tokens).logits)


@pytest.mark.parametrize("family", ["glm_moe_dsa", "deepseek_v32"])
def test_a_choice_of_tokens_depends_on_no_padding(tmp_path, family):
    """With two heads of an indexer many scores are 0, and torch takes any of equal ones."""
    sizes = {"num_hidden_layers": 2, "num_key_value_heads": 4, "index_n_heads": 2}
    directory = make_tiny_model(tmp_path, family, **sizes, index_topk=4, noise=0.05)
    model = build_language_model(read_architecture(directory), torch.float32)
    as_published = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.load_state_dict(as_published.state_dict())
    tokens = torch.arange(3, 41)[None]

    def moved_by_padding(module):
        with torch.no_grad():
            alone, padded = module(tokens[:, :30]).logits, module(tokens).logits[:, :30]
        return (padded - alone).abs().max().item()

    assert moved_by_padding(model) < 1e-5 < 0.01 < moved_by_padding(as_published)
