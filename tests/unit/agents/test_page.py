"""docs/agents.md: its settings are those of a run, and its agent is one."""

import json
import re
import selectors
from pathlib import Path

import yaml

from tests.unit.agents.test_endpoint import serving, session
from tests.unit.config.trees import parse
from verl_hpc.agents.programs import ProgramJob, start_programs
from verl_hpc.rewards.sandbox.containment import Limits

PAGE = (Path(__file__).parents[3] / "docs" / "agents.md").read_text()


def block(kind):
    (text,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return text


def test_the_settings_of_the_page():
    assert parse(**yaml.safe_load(block("yaml"))).rollout.program.tool_parser == "hermes"


def test_the_agent_of_the_page(tmp_path):
    (tmp_path / "agent.py").write_text(block("python"))
    row = json.dumps({"prompt": "hi", "ground_truth": "yes"})
    with serving("yes") as (endpoint, _), selectors.DefaultSelector() as selector:
        recorded = session()
        address = endpoint.address, endpoint.open(0, recorded)
        where = "none", "none", str(tmp_path), [], Limits(timeout_s=60)
        program = start_programs().begin(ProgramJob(["python", "agent.py"], row, *address, *where))
        selector.register(program, selectors.EVENT_READ)
        while (ended := program.ended()) is None:
            selector.select()
        assert (ended.score, len(recorded.turns)) == ("1.0", 1), ended
