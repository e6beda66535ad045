"""What tutorials do with these names that is more than a call: limits, what is read ahead, and a
user's own critic."""

import threading
import time

import pytest

import verl_hpc
from tests.unit.api.conftest import share_of_vowels
from tests.unit.api.test_data import prompts as prompts_of
from tests.unit.api.test_data import write
from tests.unit.waiting import wait_for


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
    metrics = trainer.step(["one", "two"])
    # Before the first update the head is of zeros, and the rest is the user's.
    assert Own.calls > 0 and metrics["critic/vpred_mean"] == pytest.approx(0.5)
    assert critic.value_head.weight.abs().max() > 0
