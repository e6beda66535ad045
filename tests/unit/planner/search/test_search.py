"""What a search finds is what a run executes."""

from dataclasses import replace

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.planner.search.test_exhaustive import DEEP
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.planner.memory.ledger import ledger_on
from verl_hpc.planner.search.emit import applied, overrides_of
from verl_hpc.planner.search.search import search
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step

SMALL = replace(DEEP, num_layers=4, num_heads=8, vocab_size=32000)
PPO = {
    **GAE,
    "algorithm__kl": {"placement": "reward"},
    "rollout__max_prompt_tokens": 256,
    "rollout__max_response_tokens": 1024,
}
REWARD = {"roles": {"reward": {"path": "models/reward"}}}


def machine(ranks_per_node=4, memory_gib=None):
    kind = KINDS["A100-80"]
    if memory_gib is not None:
        kind = replace(kind, memory_gib=memory_gib)
    return Machine(Hardware(kind, ranks_per_node))


def the_best(num_ranks=8, per_node=4, **changes):
    config = parse(**PPO, **REWARD, **changes)
    archs, on = dict.fromkeys(config.role_settings, SMALL), machine(per_node)
    return config, archs, on, search(config, archs, on, num_ranks)


def executed(config, candidate, archs, on):
    """The ledger of the run that executes a candidate."""
    chosen = applied(config, overrides_of(config, candidate))
    return ledger_on(chosen, archs, candidate.num_ranks, on.hardware)


def test_every_candidate_is_a_run_of_the_seconds_that_it_promises():
    """PPO has the paper's fifteen placements."""
    config, archs, on, result = the_best()
    assert result.placements == len(result.ranking) + len(result.misfits) == 15
    for candidate in result.ranking:
        run = executed(config, candidate, archs, on)
        step = predict_step(run.config, archs, run.layouts, on)
        assert step.seconds == pytest.approx(candidate.seconds)
        assert step.operators == pytest.approx(candidate.operators)
    # What is found does not depend on what the file said.
    again = applied(config, overrides_of(config, result.ranking[-1]))
    assert search(again, archs, on, 8).best.seconds == pytest.approx(result.best.seconds)


def test_where_nothing_can_be_laid_out_or_fits():
    with pytest.raises(ConfigError, match="6 ranks fill no whole number of nodes of 4"):
        the_best(6)
    config = parse(**PPO)
    archs = dict.fromkeys(config.role_settings, SMALL)
    with pytest.raises(ConfigError, match="nothing fits on 2 ranks"):
        search(config, archs, machine(4, 2.0), 2)


def test_a_reference_that_starts_from_an_adapter_stays_in_the_actors_engine():
    """Its own engine would have to start from the adapter, too."""
    config, archs, on, found = the_best(lora={"path": "adapter"})
    assert found.placements == 5  # of actor and reference as one, critic and reward
    assert len(found.ranking) + len(found.misfits) == 5
    for candidate in found.ranking:
        run = executed(config, candidate, archs, on)
        assert run.config.role_settings["reference"].shares == "actor"
        assert run.layouts.train["reference"] == run.layouts.train["actor"]
