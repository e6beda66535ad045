"""What None, or a value of another kind, in the place of an argument is answered with."""

import functools
import math

import pytest
import torch

import verl_hpc
from tests.unit.api.conftest import share_of_vowels
from verl_hpc.errors import ConfigError, DataError, ModelError, RewardError


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: verl_hpc.register_reward(None), "register_reward: function = None; .*callable"),
        (lambda: verl_hpc.HfModelAdapter(None), "HfModelAdapter: model_name = None; .*string"),
        (lambda: verl_hpc.HfModelAdapter("x", device="nope"), "HfModelAdapter: device = 'nope'"),
        (lambda: verl_hpc.get_actor_critic(None), "get_actor_critic: model_name = None; .*string"),
        (lambda: verl_hpc.get_actor_critic("x", use_vllm=3), "get_actor_critic: use_vllm = 3"),
        (lambda: verl_hpc.VLLMActorModel(None), "VLLMActorModel: model_name = None; .*string"),
        (lambda: verl_hpc.VLLMActorModel("x", "2"), "VLLMActorModel: tensor_parallel_size = '2'"),
        (lambda: verl_hpc.vLLMActor(None), "vLLMActor: llm_engine is NoneType; expected vllm.LLM"),
        (lambda: verl_hpc.vLLMAdapter(None), "vLLMAdapter: actor = None; expected a vLLMActor"),
        (lambda: verl_hpc.RolloutNode(None), "RolloutNode: trainer = None; .*PPOTrainer"),
        (lambda: verl_hpc.UpdateNode(None), "UpdateNode: trainer = None; .*PPOTrainer"),
        (lambda: verl_hpc.RewardNode(None), "RewardNode: give reward_fn, or a subclass its own"),
    ],
)
def test_of_what_is_made(call, words):
    with pytest.raises(ConfigError, match=f"^{words}"):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: verl_hpc.ActorModel(None), "ActorModel: hf_model is NoneType; expected"),
        (lambda: verl_hpc.CriticModel(None), "CriticModel: hf_model is NoneType, which has no dec"),
        (lambda: verl_hpc.PPORoleUpdater(None), "PPORoleUpdater: model is NoneType; expected"),
    ],
)
def test_of_models(call, words):
    with pytest.raises(ModelError, match=f"^{words}"):
        call()


def test_of_a_manager(hf_model, tokenizer):
    with pytest.raises(ModelError, match="^RolloutManager: actor is NoneType; expected an Actor"):
        verl_hpc.RolloutManager(None, tokenizer)
    with pytest.raises(ConfigError, match="^RolloutManager: tokenizer is needed"):
        verl_hpc.RolloutManager(verl_hpc.ActorModel(hf_model), None)


@pytest.mark.parametrize("function", [lambda response, reference: 0.0, functools.partial(abs)])
def test_a_reward_without_a_name(function):
    with pytest.raises(RewardError, match="has no name to be known by; define it with def"):
        verl_hpc.register_reward(function)


def test_a_registered_reward_is_what_was_given():
    @verl_hpc.register_reward
    def of_nothing_given(response, reference):
        return 0.0

    assert verl_hpc.register_reward(of_nothing_given) is of_nothing_given


@pytest.fixture
def trainer(make_trainer):
    return make_trainer(kl_coef=0.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.save_checkpoint(None), "save_checkpoint: path = None"),
        (lambda t: t.save_checkpoint("x", "yes"), "save_checkpoint: save_optimizer = 'yes'"),
        (lambda t: t.load_checkpoint(None), "load_checkpoint: path = None"),
        (lambda t: t.rewards(None), "rewards: batch = None; .*Batch"),
        (lambda t: t.update(None, None), "update: batch = None; .*Batch"),
        (lambda t: t.add_metrics_exporter(None), "NoneType has no write"),
    ],
)
def test_of_a_trainer(trainer, call, words):
    with pytest.raises(ConfigError, match=words):
        call(trainer)


@pytest.mark.parametrize(
    "rewards",
    [None, 3, "ab", ["a", "b"], [None, None], {0: 1.0, 1: 0.5}, [math.nan, 1.0], [math.inf, 1.0]],
)
def test_rewards_that_are_no_numbers(trainer, rewards):
    batch = trainer.rollout(["one", "two"])
    for take in (functools.partial(trainer.update, batch), batch.scored):
        with pytest.raises(DataError, match="^rewards = .*; expected a number for each response"):
            take(rewards)

    class Rewards(verl_hpc.RewardNode):
        def score(self, batch):
            return rewards

    flow = verl_hpc.DataFlow().add_operator(verl_hpc.RolloutNode(trainer))
    flow.add_operator(Rewards()).add_operator(verl_hpc.UpdateNode(trainer))
    with pytest.raises(DataError, match="rewards = .*; expected a number for each response"):
        flow.compile().run(prompts=["one", "two"])


def test_rewards_may_be_a_tensor(trainer):
    batch = trainer.rollout(["one", "two"])
    rewards = [share_of_vowels(text, None) for text in batch.texts]
    assert trainer.update(batch, torch.tensor(rewards))["critic/score/mean"] == pytest.approx(
        sum(rewards) / 2
    )
