"""The coding agent example: bugs fail their tests, repairs pass them, chats are the agent's."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from examples.bugs import repositories, score
from examples.bugs.repositories import ACTION, EVALUATION_SHARE, NAMES, REPAIR, SUBMIT, SYSTEM
from verl_hpc.data.split import is_held_out

SETTINGS = yaml.safe_load(
    Path(repositories.__file__, "../../mini_swe_agent/mini.yaml").resolve().read_text()
)
OPERATORS = {name: operator for operator, names in NAMES.items() for name in names}
HEADER = re.compile(r"def (\w+)\((\w), (\w)\):\n")


def drawn(seed, num_rows=8):
    return list(repositories.draw(num_rows, seed, held_out=seed == "evaluation"))


def repository_of(row, directory):
    ((name, source),) = row["extra_info"]["files"].items()
    (directory / name).write_text(source)
    return name, source


def repair(name, source, directory, operator=None):
    function, a, b = HEADER.match(source).groups()
    value = f"{a} {operator or OPERATORS[function]} {b}"
    command = REPAIR.format(value=value, module=name.removesuffix(".py"))
    subprocess.run(["sh", "-c", command], cwd=directory, check=True)


@pytest.mark.parametrize("row", drawn("rl 0", 4))
def test_only_the_repair_passes(row, tmp_path):
    test = json.loads(row["answer"])
    name, source = repository_of(row, tmp_path)
    assert not score.passes(test, tmp_path)
    repair(name, source, tmp_path)
    assert score.passes(test, tmp_path)


def test_every_other_operator_fails():
    values = [
        [compute(*c) for c in repositories.CALLS] for compute in repositories.COMPUTE.values()
    ]
    assert len({*map(tuple, values)}) == len(NAMES)


@pytest.mark.parametrize("code", ["def add(", "while True: pass", "print(1)\ndef add(a, b): ..."])
def test_broken_code_fails(code, tmp_path, monkeypatch):
    monkeypatch.setattr(score, "TIMEOUT_S", 0.5)
    (tmp_path / "re.py").write_text(code)
    test = {"file": "re.py", "function": "add", "calls": [[1, 2]], "values": [3]}
    assert not score.passes(test, tmp_path)


def test_the_score_is_written(tmp_path, monkeypatch):
    (row,) = drawn("evaluation", 1)
    (tmp_path / "repository").mkdir()
    repair(*repository_of(row, tmp_path / "repository"), tmp_path / "repository")
    (tmp_path / "row").write_text(json.dumps({"ground_truth": row["answer"]}))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VERL_HPC_ROW", str(tmp_path / "row"))
    monkeypatch.setenv("VERL_HPC_SCORE", str(tmp_path / "score"))
    score.main()
    assert (tmp_path / "score").read_text() == "1.0"


def test_chats_to_imitate_are_as_the_agent_writes_them():
    agent, model = SETTINGS["agent"], SETTINGS["model"]
    assert (agent["system_template"], agent["instance_template"]) == (SYSTEM, "{{task}}")
    lengths = set()
    for row in drawn("sft 0", 200):
        system, task, *said = row["messages"]
        assert (system["role"], task["role"], system["content"]) == ("system", "user", SYSTEM)
        replies, told = said[::2], said[1::2]
        assert {reply["role"] for reply in replies} == {"assistant"}
        assert {message["role"] for message in told} == {"user"}
        for reply in replies:
            assert len(re.findall(model["action_regex"], reply["content"], re.DOTALL)) == 1
        assert replies[-1]["content"] == ACTION.format(command=SUBMIT)
        lengths.add(len(replies))
    assert lengths == {2, 3}


def test_no_task_or_function_of_evaluation_is_in_training():
    for seed in ("rl 3", "sft 3", "evaluation"):
        for row in drawn(seed, 100):
            said = row.get("prompt") or row["messages"]
            assert is_held_out(said[1]["content"], EVALUATION_SHARE) == (seed == "evaluation")
            for source in row.get("extra_info", {}).get("files", {}).values():
                function = " ".join(HEADER.match(source).groups())
                assert is_held_out(function, EVALUATION_SHARE) == (seed == "evaluation")
    assert drawn("evaluation") == drawn("evaluation")
