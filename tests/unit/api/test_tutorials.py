"""What tutorials do with these names that is more than a call: limits, what is read ahead, a user's
own critic, Megatron's model, and a step with every setting that they name."""

import os
import threading
import time
from importlib import import_module
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import verl_hpc
from tests.unit.api.conftest import share_of_vowels
from tests.unit.api.test_data import prompts as prompts_of
from tests.unit.api.test_data import write


class Counted(verl_hpc.ActorModel):
    """Keeps how many responses each call of its `generate` was asked for."""

    def __init__(self, model):
        super().__init__(model)
        self.sizes = []

    def generate(self, input_ids, **kwargs):
        self.sizes.append(len(input_ids))
        return super().generate(input_ids, **kwargs)


def test_a_manager_generates_no_more_than_its_limit_at_a_time(hf_model, tokenizer):
    actor = Counted(hf_model)
    manager = verl_hpc.RolloutManager(
        actor, tokenizer, num_samples=3, max_response_length=2, max_batch_size=2
    )
    assert len(manager.generate(["abc", "x", "y"])) == 9
    assert actor.sizes == [2, 2, 2, 2, 1]


def test_a_trainer_answers_rollout_batch_size_prompts_at_a_time(make_trainer, hf_model, prompts):
    actor = Counted(hf_model)
    trainer = make_trainer(actor_model=actor, rollout_batch_size=4, num_samples=2)
    trainer.step(prompts)
    assert actor.sizes == [8] * 4


class Waiting:
    """Rows that stand still until they are let go, and which of them were asked for."""

    def __init__(self, source):
        self.source, self.asked, self.gate = source, [], threading.Event()

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        self.asked.append(index)
        assert self.gate.wait(30)
        return self.source[index]


def test_workers_read_at_the_same_time_and_as_far_ahead_as_asked(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"prompt": f"p{i}"} for i in range(100)])
    provider = verl_hpc.DataProvider(path, "jsonl", prefetch_factor=2, num_workers=3)
    provider.source = source = Waiting(provider.source)
    reader = threading.Thread(target=provider.read, args=(5,))
    reader.start()
    wait_for(lambda: len(source.asked) == 3)
    # Each of three threads stands at the first row of a read of its own.
    assert sorted(source.asked) == [0, 5, 10]
    source.gate.set()
    reader.join()
    # The read that was handed out, and two for each worker behind it.
    wait_for(lambda: len(source.asked) == 7 * 5)
    time.sleep(0.05)
    assert sorted(source.asked) == list(range(35))
    assert provider.state_dict() == {"epoch": 0, "offset": 5}
    assert prompts_of(provider.read(5)) == [f"p{i}" for i in range(5, 10)]
    provider.close()


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("shape", ["(B, L)", "(B, L, 1)"])
def test_a_critic_of_a_users_gives_values_of_its_own(hf_model, tokenizer, shape):
    class Own(verl_hpc.CriticModel):
        calls = 0

        def forward(self, input_ids, attention_mask=None):
            Own.calls += 1
            values = super().forward(input_ids, attention_mask) + 0.5
            return values if shape == "(B, L)" else values[..., None]

    critic = Own(hf_model)
    trainer = verl_hpc.PPOTrainer(
        verl_hpc.ActorModel(hf_model),
        critic,
        tokenizer,
        {"critic_lr": 1e-2, "max_response_length": 3},
        reward_fn=share_of_vowels,
    )
    found = trainer.step(["one", "two"])
    # Before the first update the head is of zeros, and the rest is the user's.
    assert Own.calls > 0 and found["critic/vpred_mean"] == pytest.approx(0.5)
    assert critic.value_head.weight.abs().max() > 0


def megatron_model(vocab_size):
    """One of Megatron-core's, in the groups of this rank alone; its attention needs a GPU, so that
    torch's stands in for it."""
    import_module("verl_hpc.engines.megatron")  # first: it fits Megatron-core to CPUs
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    class Attention(torch.nn.Module):
        def __init__(self, *args, **kwargs):
            super().__init__()

        def forward(self, query, key, value, attention_mask, **_):
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return found.permute(2, 0, 1, 3).flatten(2)

    parallel_state.initialize_model_parallel(1, 1)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        gradient_accumulation_fusion=False,
    )
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(config, spec, vocab_size=vocab_size, max_sequence_length=64), parallel_state


class OfMegatron(verl_hpc.ActorModel):
    def forward(self, input_ids, attention_mask=None):
        length = input_ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
        return self.hf_model(input_ids, torch.arange(length).expand_as(input_ids), later)

    def generate(self, input_ids, max_new_tokens=20, **_):
        for _ in range(max_new_tokens):
            chances = self(input_ids)[:, -1].softmax(-1)
            input_ids = torch.cat([input_ids, torch.multinomial(chances, 1)], dim=1)
        return input_ids


@pytest.fixture
def variables_stay():
    """Megatron-core puts its choice of attention there, for programs started later, too."""
    with patch.dict(os.environ):
        yield


@pytest.mark.usefixtures("variables_stay")
def test_a_model_of_megatrons_is_bound_to_its_groups_and_trained(tokenizer, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, groups = megatron_model(len(tokenizer))
        actor = OfMegatron(model)
        tensor = verl_hpc.DeviceMesh("tensor", groups.get_tensor_model_parallel_group())
        pipeline = verl_hpc.DeviceMesh("pipeline", groups.get_pipeline_model_parallel_group())
        actor.set_device_mesh(tp_mesh=tensor, pp_mesh=pipeline)
        config = {"max_response_length": 4, "lr": 1e-2}
        trainer = verl_hpc.PPOTrainer(
            actor, None, tokenizer, config, reward_fn=lambda response, _: float(len(set(response)))
        )
        before = {name: p.detach().clone() for name, p in actor.named_parameters()}
        found = trainer.step([[5, 6, 7], [8, 9, 10]])
        assert found["actor/grad_norm"] > 0
        assert found["training/rollout_log_probs_diff_max"] < 1e-5
        assert not any(torch.equal(p, before[n]) for n, p in actor.named_parameters())
        trainer.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
        assert trainer.load_checkpoint(tmp_path) == 1
        groups.destroy_model_parallel()
    finally:
        dist.destroy_process_group()
