"""Rewards of a batch: what they become for the operators, and what is none."""

import functools
import math

import pytest
import torch

import verl_hpc
from verl_hpc.api.batch import numbers_of
from verl_hpc.errors import DataError


@pytest.fixture
def trainer(make_trainer):
    return make_trainer(kl_coef=0.0)


class Rewards(verl_hpc.RewardNode):
    def __init__(self, rewards):
        super().__init__()
        self.rewards = rewards

    def score(self, batch):
        return self.rewards


def test_rewards_that_are_no_numbers(trainer):
    batch = trainer.rollout(["one", "two"])
    for rewards in (
        *(None, 3, "ab", ["a", "b"], [None, None], {0: 1.0, 1: 0.5}),
        *([math.nan, 1.0], [math.inf, 1.0]),
    ):
        flow = verl_hpc.DataFlow().add_operator(verl_hpc.RolloutNode(trainer))
        flow.add_operator(Rewards(rewards)).add_operator(verl_hpc.UpdateNode(trainer))
        for take in (
            functools.partial(trainer.update, batch, rewards),
            functools.partial(batch.scored, rewards),
            functools.partial(flow.compile().run, prompts=["one", "two"]),
        ):
            told = "rewards = .*; expected a number for each response"
            with pytest.raises(DataError, match=told):
                take()


def test_rewards_may_be_any_iterable_of_numbers():
    two = [None, None]
    for rewards in ([1, 2.0], iter([1, 2]), torch.ones(2, 1) * torch.tensor([[1.0], [2.0]])):
        assert numbers_of(two, rewards) == [1.0, 2.0]
