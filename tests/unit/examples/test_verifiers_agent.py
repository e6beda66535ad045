"""Environments of the real package verifiers, in a virtual environment of its own, as a program."""

import json
import os
import subprocess
import sys

import pytest

from tests.unit.agents.test_endpoint import serving, session
from tests.unit.examples.programs import EXAMPLES, ended

ADDS = '''
import verifiers.v1 as vf

class Tools(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

class Data(vf.TaskData):
    answer: str

class Adds(vf.Task[Data]):
    @vf.reward
    async def right(self, trace):
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace):
        return float(trace.num_turns < 3)

class WithTools(Adds):
    @classmethod
    def toolsets(cls, config):
        return [Tools(vf.ToolsetConfig())]

class Sums(vf.Taskset[{task}, vf.TasksetConfig]):
    def load(self):
        for a in range(4):
            data = Data(prompt=f"{{a}}+2", system_prompt="Add.", answer=str(a + 2))
            yield {task}(data, self.config.task)

__all__ = ["Sums"]

if __name__ == "__main__":
    Tools.run()
'''


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python that has verifiers, and two environments."""
    directory = tmp_path_factory.mktemp("verifiers") / "venv"
    if ready := os.environ.get("VERL_HPC_VERIFIERS"):
        directory.symlink_to(ready)
    else:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        pip = [directory / "bin/python", "-m", "pip", "install", "-q", "verifiers[ta]==0.4.0"]
        if subprocess.run(pip, check=False).returncode:
            pytest.skip("verifiers[ta]==0.4.0 cannot be installed from the package index here")
    (packages,) = directory.glob("lib/python*/site-packages")
    for name, task in (("plain_sums", "Adds"), ("tool_sums", "WithTools")):
        (packages / f"{name}.py").write_text(ADDS.format(task=task))
    yield str(directory / "bin/python")
    for file in packages.glob("*_sums.py"):
        file.unlink()


def rows_of(python, name, tmp_path):
    command = [python, "verifiers_agent.py", name, "--write", tmp_path / "rows.jsonl"]
    subprocess.run([*command, "--first", "1", "--num", "2"], cwd=EXAMPLES, check=True)
    return [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_environment_plays_rows_of_its_own_data(python, tmp_path):
    rows = rows_of(python, "plain_sums", tmp_path)
    assert [row["extra_info"]["task"]["answer"] for row in rows] == ["3", "4"]
    assert [message["content"] for message in rows[0]["prompt"]] == ["Add.", "1+2"]
    command = [python, "verifiers_agent.py", "plain_sums"]
    with serving("4") as (endpoint, _):
        sessions = [session(), session()]
        result = ended(endpoint, sessions, rows, command, "bubblewrap")
        assert (result.status, json.loads(result.score)) == (0, [0.5, 1.5]), result.output
        assert [len(recorded.turns) for recorded in sessions] == [1, 1]
    with serving("4") as (endpoint, _):
        broken = {**rows[0], "extra_info": {"task": {"prompt": "1+2"}}}
        result = ended(endpoint, [session()], [broken], command, "bubblewrap")
        assert result.status == 1 and "answer" in result.output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_model_calls_tools_of_an_environment(python, tmp_path):
    (row, _) = rows_of(python, "tool_sums", tmp_path)
    call = '<tool_call>\n{"name": "tools_add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    with serving(call, most_turns=3, tool_parser="hermes") as (endpoint, _):
        recorded = session()
        environment = json.dumps({"taskset": {"id": "tool_sums"}, "agent": {"max_turns": 2}})
        command = [python, "verifiers_agent.py", environment]
        result = ended(endpoint, [recorded], [row], command, "bubblewrap")
        assert (result.status, json.loads(result.score)) == (0, [0.5]), result.output
        (branch,) = recorded.branches({})
        assert len(recorded.turns) == 2 and 0 in branch.response.mask


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_games_of_hangman(python, tmp_path):
    code = "import hangman; hangman.NUM_TASKS, hangman.NUM_IMITATED = 80, 20; hangman.main()"
    subprocess.run([python, "-c", code, "--out", tmp_path], cwd=EXAMPLES, check=True)
    files = {path.stem: path.read_text().splitlines() for path in tmp_path.glob("*.jsonl")}
    words = {n: {json.loads(row)["answer"] for row in files[n]} for n in ("rl", "evaluation")}
    assert words["evaluation"] and not words["rl"] & words["evaluation"]
    assert len(files["sft"]) == 20
    for row in files["sft"]:
        said = [m for m in json.loads(row)["messages"] if m["role"] != "system"]
        letters = [m["content"].strip("[]") for m in said[1::2]]
        assert 0 < len(letters) == len({*letters}), "no letter is named twice"
        assert said[-1]["role"] == "assistant", "the last turn ends the game"
