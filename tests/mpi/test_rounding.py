"""What makes a step cheaper computes the same but for rounding, each in itself.

Sharing prefixes, oneDNN's products, Adam in one kernel, micro-batches that fill a pipeline,
samples of a prompt on one replica, and gradients that are read in place of messages add up the same
numbers in another way (benchmarks/results/2026-11-same-weights-cpu.md).
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tests.jobs.launch import tensors_of
from tests.mpi.recipe_runs import RECIPES, configure, finish, write_reward
from tests.mpi.test_steps import LAYOUTS, SETTINGS
from tests.slow import REASON, all_slow
from verl_hpc.engines.megatron import data_parallel, optimizer, products
from verl_hpc.engines.shared import micro_batches
from verl_hpc.step.operators import assign

pytestmark = pytest.mark.world(4)

UNIT = 2.0**-23
"""The spacing of float32 between 1 and 2, where the largest weights are, those of norms."""


def without_shared_prefixes(patch):
    patch.setattr(micro_batches, "num_shared", lambda sequences: [0] * len(sequences))


def without_onednn(patch):
    patch.setattr(products, "matmul", torch.matmul)


def without_fused_adam(patch):
    patch.setattr(optimizer, "_fuse", lambda adam: None)


def without_pipeline_fill(patch):
    def plan(self, sequences, together=1):
        shared = micro_batches.num_shared(sequences)
        lengths = [len(s) for s in sequences]
        units, sizes = micro_batches.share_units(lengths, shared, self.max_tokens, together)
        found = micro_batches.micro_batches(sizes, self.max_tokens, self._multiple)
        bins = [[i for unit in chosen for i in units[unit]] for chosen in found]
        return micro_batches.Plan(bins, shared)

    patch.setattr(micro_batches.Planner, "plan", plan)


def without_prompts_on_one_replica(patch):
    deal = assign._groups

    def apart(settings, *others):
        return deal(replace(settings, shares_prompts=False), *others)

    patch.setattr(assign, "_groups", apart)


def without_reading_gradients(patch):
    patch.setattr(data_parallel, "_processes", lambda group: None)


CAUSES = {
    "prefixes": without_shared_prefixes,
    "products": without_onednn,
    "adam": without_fused_adam,
    "fill": without_pipeline_fill,
    "deal": without_prompts_on_one_replica,
    "gradients": without_reading_gradients,
}


@pytest.fixture(scope="module")
def trained(here, tiny_model, shared_directory):
    """`trained(recipe, layout, leave_out)`: tensors after two steps without causes."""

    @cache
    def get(recipe, layout, leave_out=()):
        config = configure(
            f"{recipe}-{layout}-without-{'-'.join(leave_out) or 'none'}",
            tiny_model(),
            shared_directory,
            parallel=LAYOUTS[layout],
            **SETTINGS,
            reward={"function": write_reward(here, shared_directory)},
            **RECIPES[recipe],
        )
        with pytest.MonkeyPatch.context() as patch:
            for cause in leave_out:
                CAUSES[cause](patch)
            finish(here, config)
        return tensors_of(config.run_directory / "checkpoints" / "latest")

    return get


def differing(now, before):
    """Names of tensors that have other bits; all are near each other."""
    assert before.keys() == now.keys()
    for name in now:
        np.testing.assert_allclose(now[name], before[name], rtol=0, atol=4 * UNIT)
    return {name for name in now if now[name].tobytes() != before[name].tobytes()}


@pytest.mark.slow(reason=REASON)
@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("dp4", {"prefixes", "products", "adam", "deal", "gradients"}),
        ("tp2-pp2", {"prefixes", "adam", "fill"}),
    ],
)
def test_each_cause_is_rounding(trained, layout, expected):
    """`expected` are those that these two steps feel. On some CPUs so few of oneDNN's products have
    other bits that Adam's two steps round them away."""
    now = trained("ppo", layout)
    felt = {cause for cause in CAUSES if differing(now, trained("ppo", layout, (cause,)))}
    assert felt in (expected, expected - {"products"})


@pytest.mark.parametrize(
    ("recipe", "layout"),
    [
        # Filling a pipeline, and all the rest.
        ("sft", "tp2-pp2"),
        ("ppo", "dp4"),
        *all_slow(*(("ppo", name) for name in LAYOUTS if name != "dp4")),
        *all_slow(("sft", "dp4"), ("grpo", "dp4")),
    ],
)
def test_all_of_them_together_are_rounding(trained, recipe, layout):
    assert differing(trained(recipe, layout), trained(recipe, layout, tuple(CAUSES)))
