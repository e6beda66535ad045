"""The lookup example: its questions, what is imitated, and its agent at a real endpoint."""

import json

from examples import lookups
from examples.lookups import CALL, EVALUATION_SHARE, main
from tests.unit.agents.test_endpoint import serving, session
from tests.unit.examples.programs import ended
from verl_hpc.data.split import is_held_out


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_questions_and_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(lookups, "ROWS", {"sft": 300, "rl": 100, "evaluation": 50})
    assert main(["--out", str(tmp_path), "--seed", "3"]) == 0
    for name in ("rl", "evaluation"):
        for row in read(tmp_path / f"{name}.jsonl"):
            ((said),) = (message["content"] for message in row["prompt"])
            assert is_held_out(said, EVALUATION_SHARE) == (name == "evaluation")
            steps, _, _, here = said.split()
            for _ in range(int(steps)):
                here = row["extra_info"]["links"][here]
            assert here == row["answer"]
    for row in read(tmp_path / "sft.jsonl"):
        question, *turns = (message["content"] for message in row["messages"])
        calls, told = turns[:-1:2], [question.split()[-1], *turns[1::2]]
        assert calls == [name.join(CALL) for name in told[:-1]]
        assert turns[-1] == told[-1]


def test_its_agent_answers_several_rows(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "1 steps from qm"}], "ground_truth": truth}
        | {"extra_info": {"links": {"qm": "xy", "xy": "qm"}}}
        for truth in ("xy", "qm")
    ]
    with serving("xy", tool_parser="hermes") as (endpoint, _):
        sessions = [session(), session()]
        result = ended(endpoint, sessions, rows, ["python", "lookup_agent.py"])
        assert (result.status, json.loads(result.score)) == (0, [1.0, 0.0]), result.output
        assert [len(recorded.turns) for recorded in sessions] == [1, 1]
    with serving("qm".join(CALL), tool_parser="hermes") as (endpoint, _):
        recorded = session()
        result = ended(endpoint, [recorded], rows[:1], ["python", "lookup_agent.py"])
        assert (result.status, json.loads(result.score)) == (0, [0.0]), result.output
        assert len(recorded.turns) == 5 and len(recorded.branches({})) == 1
