"""Actors and critics around models of transformers, and the groups they are bound to."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import verl_hpc
from verl_hpc.errors import ConfigError, ModelError


def test_an_actor_computes_and_generates_what_the_model_does(hf_model, tokenizer):
    actor, ids = verl_hpc.ActorModel(hf_model), tokenizer(["abc"], return_tensors="pt").input_ids
    assert torch.equal(actor(ids).logits, hf_model(ids).logits)
    found = actor.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(found, hf_model.generate(ids, max_new_tokens=4, do_sample=False))


def test_a_critic_of_the_same_model_is_trained_apart_or_refused(hf_model, tokenizer):
    actor, critic = verl_hpc.ActorModel(hf_model), verl_hpc.CriticModel(hf_model)
    ids = torch.tensor([[5, 6, 7]])
    assert critic(ids).shape == (1, 3)
    assert not {id(p) for p in actor.parameters()} & {id(p) for p in critic.parameters()}
    names = set(critic.logical_names().values())
    assert {"value_head.weight", "model.norm.weight"} <= names and "lm_head.weight" not in names
    critic = verl_hpc.CriticModel(hf_model, False)
    with pytest.raises(ModelError, match="critic_model shares .* with actor_model"):
        verl_hpc.PPOTrainer(actor, critic, tokenizer)


def compiled(module):
    return torch.compile(module, backend="eager")


def test_a_checkpoint_of_a_compiled_model_is_one_of_the_model(
    model_dir, hf_model, tokenizer, tmp_path
):
    config = {"lr": 1e-2, "kl_coef": 0.01, "max_response_length": 3}
    models = compiled(verl_hpc.ActorModel(hf_model)), compiled(hf_model)
    trainer = verl_hpc.PPOTrainer(*models, tokenizer, config)
    trainer.step(["one", "two"])
    trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    plain = AutoModelForCausalLM.from_pretrained(model_dir)
    again = verl_hpc.PPOTrainer(plain, plain, tokenizer, config)
    assert again.load_checkpoint(tmp_path) == 1
    trained = hf_model.state_dict()
    assert all(torch.equal(trained[name], p) for name, p in plain.state_dict().items())


def test_a_group_of_several_ranks_is_refused(hf_model):
    actor, mesh = verl_hpc.ActorModel(hf_model), verl_hpc.DeviceMesh("tensor")
    actor.set_device_mesh(tp_mesh=mesh)
    assert actor.tp_mesh is mesh
    four = SimpleNamespace(size=lambda: 4)
    with pytest.raises(ConfigError, match="tensor group has 4 ranks.*tensor_parallel: 4"):
        actor.set_device_mesh(verl_hpc.DeviceMesh("tensor", four))


def test_roles_by_name_on_their_device_in_their_type(model_dir):
    actor, critic = verl_hpc.get_actor_critic(
        str(model_dir), device_map={"actor": "cpu"}, dtype={"actor": "float16", "critic": "bf16"}
    )
    assert {p.dtype for p in actor.parameters()} == {torch.float16}
    assert {p.dtype for p in critic.parameters()} == {torch.bfloat16}
    assert len(verl_hpc.get_actor_critic(str(model_dir), device_map="auto")) == 2
    adapted = verl_hpc.HfModelAdapter(str(model_dir))
    assert adapted(torch.tensor([[1, 2]])).logits.shape[:2] == (1, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dtype": {"reward": "int4"}}, "int4: weights of int4 are neither trained nor scored"),
        ({"dtype": "floaty16"}, "floaty16: not an element type; did you mean float16"),
        ({"device_map": {"reward": "cpu"}}, "device_map\\['reward'\\]: get_actor_critic makes"),
        ({"device_map": {"actor": "cuda:77"}}, "no such device"),
        ({"device_map": {"actor": "cpu"}, "use_vllm": True}, "'cpu' with use_vllm: vLLM takes"),
    ],
)
def test_what_no_role_can_have_is_refused_by_name(model_dir, given, words):
    with pytest.raises(ConfigError, match=words):
        verl_hpc.get_actor_critic(str(model_dir), **given)


def test_a_model_whose_config_is_not_of_transformers_is_trained(hf_model, tokenizer, tmp_path):
    """Models of Megatron-core have a config of their own."""

    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.config = hf_model, SimpleNamespace(hidden_size=32)

    class Own(verl_hpc.ActorModel):
        def forward(self, input_ids, attention_mask=None):
            return self.hf_model.inner(input_ids, attention_mask=attention_mask)

        def generate(self, input_ids, **kwargs):
            return self.hf_model.inner.generate(input_ids, **kwargs)

    actor = Own(Inner())
    actor.set_device_mesh(verl_hpc.DeviceMesh("tensor"), verl_hpc.DeviceMesh("pipeline"))
    trainer = verl_hpc.PPOTrainer(actor, None, tokenizer, {"max_response_length": 3})
    assert "loss" in trainer.step(["one", "two"])
    trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    assert trainer.load_checkpoint(tmp_path) == 1
