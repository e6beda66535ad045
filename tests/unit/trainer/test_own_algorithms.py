"""An advantage and a policy loss in a file of the user's; nothing of the package is touched."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.config.trees import SMALLEST
from tests.unit.trainer.runs import block, loop, recipe_of, small_run
from verl_hpc.algorithms import advantages, losses, preferences
from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.choices import members
from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.algorithms.preference import PreferenceLoss
from verl_hpc.config.load import parse_config
from verl_hpc.errors import ConfigError

PAGE = (Path(__file__).parents[3] / "docs/algorithms.md").read_text(encoding="utf-8")


def test_the_page_says_what_every_estimator_does_with_rewards_of_tokens():
    section = PAGE.partition("### Rewards of tokens and turns\n")[2].partition("\n## ")[0]
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")][1:]
    names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(names) == sorted(members(advantages, Advantage))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The file of the page, in the working directory."""
    (tmp_path / "best.py").write_text(block(PAGE, "python", "BestOfGroup"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_of_the_page_trains(own):
    result, lines = loop(small_run(own, steps=3, **yaml.safe_load(block(PAGE, "yaml", "best.py"))))
    assert result.outcome == "finished"
    assert all(line["actor/grad_norm"] > 0 for line in lines)
    assert all(line["actor/ratio"] == pytest.approx(1, abs=0.1) for line in lines)


EVERYTHING = """
from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss
from verl_hpc.environments.environment import Done, Environment


class Signs(Advantage):
    "Above the mean of the step, or below."

    def __call__(self, batch):
        return torch.sign(batch.scores - batch.scores.mean())


class Plain(PolicyLoss):
    "REINFORCE."

    def __call__(self, tokens):
        return -tokens.advantages * tokens.log_probs, {"mine": tokens.mask.sum()}


class Echo(Environment):
    "Says the first letter of the prompt once."

    def reset(self, problem):
        self.says = [problem.prompt[0]]

    def step(self, tokens, text):
        return self.says.pop() if self.says else Done()


def two_turns(solution_str, turns, **_):
    return {"score": len(turns) / 3 + len(solution_str) / 100, "turns": len(turns)}
"""


def test_an_estimator_a_loss_a_reward_and_an_environment_of_one_file(tmp_path):
    """None of them is known to the package."""
    file = tmp_path / "mine.py"
    file.write_text(EVERYTHING, encoding="utf-8")
    algorithm = {"advantage": {"name": f"{file}:Signs"}, "loss": {"name": f"{file}:Plain"}}
    rollout = {"environment": {"name": f"{file}:Echo", "max_turns": 2}, "max_response_tokens": 12}
    changes = {f"rollout__{name}": value for name, value in rollout.items()}
    changes |= {"algorithm": algorithm, "reward__function": f"{file}:two_turns"}
    result, lines = loop(small_run(tmp_path, steps=3, **changes))
    assert result.outcome == "finished"
    assert all(line["actor/mine"] == 1 for line in lines), "of each token"
    assert all(line["actor/grad_norm"] > 0 for line in lines)
    assert max(line["rollout/turns/max"] for line in lines) == 2
    assert max(line["reward/turns"] for line in lines) > 1


def test_settings_of_the_file_reach_it(own):
    loss = []
    for weight in (1.0, 2.0):
        advantage = {"name": "best.py:BestOfGroup", "weight": weight}
        algorithm = {"advantage": advantage, "loss": {"name": "best.py:Unclipped"}}
        _, (line,) = loop(small_run(own, name=f"by-{weight}", steps=1, algorithm=algorithm))
        loss.append(line["actor/pg_loss"])
    assert loss[1] == pytest.approx(2 * loss[0])


OTHERS = """
from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.algorithms.loss import PolicyLoss

class Valued(Advantage):
    needs = frozenset({"values"})
    def __call__(self, batch):
        return batch.rewards - batch.values, batch.rewards

class Compared(Advantage):
    compares = True

class BySequence(PolicyLoss):
    aggregation = "seq-mean-token-mean"
    def __call__(self, tokens):
        return -tokens.log_probs * tokens.advantages, {}

def function(batch):
    return batch.scores
"""
CRITIC, ONE_SAMPLE = {"roles": {"critic": {}}}, {"rollout__num_samples": 1}


UNUSABLE = [
    ("advantage", "best.py:BestOfGroup", {"wieght": 1.0}, "wieght: no such setting; did you"),
    ("advantage", "best.py:BestOfGroup", {"weight": "x"}, "weight = 'x': Input should be"),
    ("advantage", "best.py:Unclipped", {}, "expected a class, a kind of .*advantage.Advantage"),
    ("loss", "best.py:BestOfGroup", {}, "expected a class, a kind of .*loss.PolicyLoss"),
    ("loss", "others.py:function", {}, "expected a class"),
    ("loss", "best.py:Best", {}, "defines no 'Best'"),
    ("loss", "gone.py:Best", {}, "algorithm.loss.name = gone.py:Best: no file gone.py"),
    ("advantage", "others.py:Valued", {}, r"needs values; give `roles: \{critic: \{\}\}`"),
    ("advantage", "others.py:Compared", ONE_SAMPLE, "set rollout.num_samples to at least 2"),
    ("advantage", "best.py:BestOfGroup", CRITIC, "needs no values; leave roles.critic out"),
]


@pytest.mark.parametrize(("section", "given", "changes", "words"), UNUSABLE)
def test_a_file_that_cannot_be_used(own, section, given, changes, words):
    (own / "others.py").write_text(OTHERS)
    run_changes = {name: value for name, value in changes.items() if "_" in name or name == "roles"}
    settings = {name: value for name, value in changes.items() if name not in run_changes}
    run_changes[f"algorithm__{section}"] = {"name": given, **settings}
    run = small_run(own, **run_changes)
    with pytest.raises(ConfigError, match=words):
        recipe_of(run)


def test_a_critic_for_an_advantage_of_the_users(own):
    (own / "others.py").write_text(OTHERS)
    run = small_run(own, steps=2, algorithm__advantage={"name": "others.py:Valued"}, **CRITIC)
    _, lines = loop(run)
    assert all("critic/vf_loss" in line for line in lines if "actor/loss" in line)


def test_an_aggregation_goes_with_a_loss_of_the_users(own):
    (own / "others.py").write_text(OTHERS)
    aggregations = {}
    for name, more in (("null", {}), ("given", {"algorithm__aggregation": "seq-mean-token-sum"})):
        loss = {"name": "others.py:BySequence"}
        settings = small_run(own, name=name, steps=1, algorithm__loss=loss, **more).settings
        aggregations[name] = (settings.policy.steps.aggregation, settings.value.aggregation)
    # The critic's loss is none of the policy's.
    assert aggregations == {
        "null": ("seq-mean-token-mean", "token-mean"),
        "given": ("seq-mean-token-sum", "seq-mean-token-sum"),
    }


def test_the_settings_of_the_page_are_settings():
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    for text in blocks:
        parse_config(SMALLEST | yaml.safe_load(text))


def test_the_page_names_every_algorithm():
    packages = ((advantages, Advantage), (losses, PolicyLoss), (preferences, PreferenceLoss))
    names = {name for package, base in packages for name in members(package, base)}
    assert not {name for name in names if f"| `{name}` |" not in PAGE}


NEEDED = {"dro": {"beta": 1.0}, "gdpo": {"rewards": ["score"]}}


ALGORITHMS = [
    *(("loss", name) for name in sorted(members(losses, PolicyLoss))),
    *(("advantage", name) for name in sorted(members(advantages, Advantage))),
]


@pytest.mark.parametrize(("section", "name"), ALGORITHMS)
def test_every_algorithm_trains(tmp_path, section, name):
    chosen = {f"algorithm__{section}": {"name": name, **NEEDED.get(name, {})}}
    _, lines = loop(small_run(tmp_path, steps=2, **chosen))
    assert all(line["actor/grad_norm"] > 0 for line in lines if "actor/grad_norm" in line)
