"""Runs an example's agent at an endpoint, as a run does."""

import json
import selectors
from pathlib import Path

from verl_hpc.agents.programs import ProgramJob, start_programs
from verl_hpc.rewards.sandbox.containment import Limits

EXAMPLES = str(Path(__file__).parents[3] / "examples")
LIMITS = Limits(timeout_s=120.0, cpu_s=120.0, memory_bytes=2**31, tasks=256)


def ended(endpoint, sessions, rows, command, sandbox="none"):
    """The end of a program that gets all rows, one for each session."""
    keyed = [
        {**row, "key": endpoint.open(index, recorded)}
        for index, (row, recorded) in enumerate(zip(rows, sessions, strict=True))
    ]
    where = sandbox, "none", EXAMPLES, [], LIMITS
    program = start_programs().begin(
        ProgramJob(command, json.dumps(keyed), endpoint.address, "", *where)
    )
    with selectors.DefaultSelector() as selector:
        selector.register(program, selectors.EVENT_READ)
        while (result := program.ended()) is None:
            selector.select()
    return result
