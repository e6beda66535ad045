"""Responses made ahead of the step that trains, in checkpoints: a run that was killed and resumed
trains on the responses that it would have trained on.

They belong to prompts of a step, not to ranks: a run that resumes on other ranks has them, too.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping

from verl_hpc.checkpoint.read import Step
from verl_hpc.config.run import RunConfig
from verl_hpc.generation.kept import rollout_key
from verl_hpc.rollout.partial import ResponseId, Tagged
from verl_hpc.step.operators.assign import share
from verl_hpc.trainer.context import RunContext

_logger = logging.getLogger(__name__)


def ahead_key(config: RunConfig) -> str:
    """What says which prompts are answered ahead, and how; empty where none are."""
    if not config.rollout.staleness:
        return ""
    facts = [rollout_key(config), config.batch.size, config.replays_experts]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def made_ahead(run: RunContext, step: int) -> Mapping[ResponseId, Tagged]:
    """What this rank writes into the checkpoint of a step: its engine's first rank has it all."""
    rollout = run.rollout
    if rollout is None or not rollout.place.is_here or not rollout.place.leads_group:
        return {}
    return {which: tagged for which, tagged in rollout.ahead.items() if which.step > step}


def take_up(run: RunContext, step: Step, same_data: bool) -> None:
    """Give engines the responses that a step has of later ones; every rank calls it.

    A run that would make them otherwise makes them anew.

    Raises:
        DamageError: on every rank, if a file of one is not as it was written.
    """
    rollout, key = run.rollout, step.state.ahead
    if rollout is None or not key:
        return
    if not same_data or key != ahead_key(run.config):
        if run.rank == 0:
            _logger.warning(
                "%s: responses that it has of later steps are dropped, since seed, rollout, data, "
                "batch.size or algorithm.router_replay are others now; they are generated anew",
                step.path,
            )
        return
    place = rollout.place

    def wanted(which: ResponseId) -> bool:
        return which.slot in share(which.num_slots, place.index, len(place.groups))

    rollout.ahead = run.session.control.together(
        lambda: step.ahead(wanted) if place.is_here else {}
    )
