"""Flows as tutorials write them, and the nodes of a training step."""

import pytest

import verl_hpc
from tests.unit.api.conftest import share_of_vowels
from verl_hpc.errors import ConfigError, DataError, FlowError, TrainingError


def test_a_value_that_nobody_gives_is_named():
    flow = verl_hpc.DataFlow().add_operator(verl_hpc.Operator("a", lambda: 1))
    flow.add_operator(verl_hpc.Operator("b", lambda a, rewrds: a))
    with pytest.raises(FlowError, match="needs 'rewrds'"):
        flow.compile()
    with pytest.raises(FlowError, match="has no operators"):
        verl_hpc.DataFlow().compile()
    with pytest.raises(FlowError, match="add_operator got int"):
        verl_hpc.DataFlow().add_operator(3)


def step_flow(trainer, *more):
    flow = verl_hpc.DataFlow("step")
    for node in (
        verl_hpc.RolloutNode(trainer),
        verl_hpc.RewardNode(share_of_vowels),
        *more,
        verl_hpc.UpdateNode(trainer),
    ):
        flow.add_operator(node)
    return flow


def test_a_flow_of_nodes_is_a_step(make_trainer, prompts, model_dir):
    expected = make_trainer().step(prompts)
    trainer = make_trainer(actor_model=verl_hpc.HfModelAdapter(str(model_dir)))
    found = step_flow(trainer).compile().run(prompts=prompts)
    assert found["metrics"] == expected
    assert found["rewardnode"] == [share_of_vowels(text, None) for text in found["responses"].texts]


class SafetyRewardNode(verl_hpc.RewardNode):
    """A user's own."""

    def score(self, batch):
        return [-1.0 if "x" in rollout.response else 0.0 for rollout in batch]


def test_a_reward_node_of_a_users_is_added_alone(make_trainer, prompts):
    trainer = make_trainer(max_response_length=8)
    flow = step_flow(trainer, SafetyRewardNode(weight=2.0))
    found = flow.compile().run(prompts=prompts)
    safety = found["safetyrewardnode"]
    assert set(safety) <= {0.0, -1.0}
    mean = sum(r + 2 * s for r, s in zip(found["rewardnode"], safety, strict=True)) / 16
    assert found["metrics"]["critic/score/mean"] == pytest.approx(mean)


def test_earlier_responses_are_replayed(make_trainer, prompts):
    trainer = make_trainer(replay=True)
    buffer = verl_hpc.ReplayBuffer(capacity=20, num_samples=4)
    pipeline = step_flow(trainer, buffer).compile()
    sizes = [len(pipeline.run(prompts=prompts)["replay"]) for _ in range(3)]
    assert sizes == [16, 20, 20] and len(buffer) == 20
    metrics = pipeline.run(prompts=prompts)["metrics"]
    assert metrics["training/rollout_log_probs_diff_mean"] > 1e-3  # of earlier weights


def test_what_nodes_cannot_do_is_named(make_trainer, prompts):
    """One cannot replay what nothing corrects, for example."""
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="replay: True"):
        step_flow(trainer, verl_hpc.ReplayBuffer()).compile()
    old = trainer.rollout(prompts)
    trainer.update(trainer.rollout(prompts), [float(i) for i in range(16)])
    with pytest.raises(TrainingError, match="log-prob"):
        trainer.update(old, [0.0] * 16)
    bare = verl_hpc.DataFlow().add_operator(verl_hpc.RolloutNode(trainer))
    with pytest.raises(ConfigError, match="no RewardNode"):
        bare.add_operator(verl_hpc.UpdateNode(trainer)).compile()
    with pytest.raises(DataError, match="1 rewards for 16 responses"):
        trainer.update(trainer.rollout(prompts), [1.0])


def test_a_manager_answers_texts_and_ids(hf_model, tokenizer):
    options = {"num_samples": 3, "max_response_length": 5, "max_batch_size": 2, "seed": 4}
    manager = verl_hpc.RolloutManager(hf_model, tokenizer, **options)
    responses = manager.generate(["abc", "x"], references=["r", "s"])
    assert len(responses) == 6 and [r.prompt for r in responses] == ["abc"] * 3 + ["x"] * 3
    assert [r.reference for r in responses] == ["r"] * 3 + ["s"] * 3
    assert all(len(r.log_probs) == len(r.response_ids) <= 5 for r in responses)
    again = verl_hpc.RolloutManager(hf_model, tokenizer, **options)
    assert again.generate(tokenizer(["abc", "x"]).input_ids).texts == responses.texts
    short = verl_hpc.RolloutManager(hf_model, tokenizer, max_prompt_length=2)
    with pytest.raises(DataError, match="the prompt has 3 tokens"):
        short.generate("abc")
