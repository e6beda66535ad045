"""Save responses generated ahead in checkpoints, so that a killed and resumed run trains on the
same responses as without the interruption.

They belong to prompts of a step, not to ranks, so they can be resumed on a different number of
ranks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping

from verl_hpc.checkpoint.read import Step
from verl_hpc.config.run import RunConfig
from verl_hpc.generation.kept import rollout_key
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Response
from verl_hpc.step.operators.assign import share
from verl_hpc.trainer.context import RunContext

_logger = logging.getLogger(__name__)


def ahead_key(config: RunConfig) -> str:
    """Return a key of the settings that decide responses generated ahead; empty without
    staleness."""
    if not config.rollout.staleness:
        return ""
    runs = list(config.by_task.values()) or [config]
    facts = [f for run in runs for f in (rollout_key(run), run.batch.asked, run.replays_experts)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def made_ahead(run: RunContext, step: int) -> Mapping[ResponseId, Response]:
    """Return the responses that this rank saves with a step; an engine's first rank saves all.

    Of conversations it saves the finished ones: nothing keeps what a program or an environment that
    runs has in memory.
    """
    rollout = run.rollout
    if rollout is None or not rollout.place.is_here or not rollout.place.leads_group:
        return {}
    config = run.config.rollout
    whole = config.program is not None or config.environment is not None
    later = {which: response for which, response in rollout.ahead.items() if which.step > step}
    return {which: r for which, r in later.items() if r.is_finished or not whole}


def take_up(run: RunContext, step: Step, same_data: bool) -> None:
    """Restore the responses to later steps from a checkpoint; every rank calls it.

    They are dropped if this run would generate them differently.

    Raises:
        DamageError: on every rank, if a file is damaged.
    """
    rollout, key = run.rollout, step.state.ahead
    if rollout is None:
        return
    rollout.forget()
    if not key:
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
