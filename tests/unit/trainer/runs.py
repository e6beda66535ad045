"""Runs of a second or less: tiny models, letters, and a reward for long responses."""

import json
import re

import pytest

from tests.unit.config.trees import parse
from verl_hpc.testing.local_run import engine_of, local_run
from verl_hpc.trainer.loop import Loop
from verl_hpc.trainer.recipes import find_recipe, make_recipe
from verl_hpc.trainer.records import open_records
from verl_hpc.trainer.state import START, restore

PROMPTS = ["ab", "cd", "abc", "k", "da", "ccc"]
HELD_OUT = ["bb", "ef", "gk"]
REWARD = "def score(response, ground_truth):\n    return len(response) / 10\n"


def files(directory, name, prompts):
    rows = [json.dumps({"prompt": prompt, "answer": prompt[::-1]}) for prompt in prompts]
    (directory / name).write_text("\n".join(rows), encoding="utf-8")
    return {"kind": "files", "paths": [str(directory / name)]}


def small_config(directory, prompts=PROMPTS, held_out=HELD_OUT, **changes):
    """The configuration of a run below `directory`; `held_out` None evaluates nothing."""
    (directory / "reward.py").write_text(REWARD, encoding="utf-8")
    given = {
        "directory": str(directory / "runs"),
        "data__train": files(directory, "train.jsonl", prompts),
        "reward__function": f"{directory}/reward.py:score",
        "model__dtype": "float32",
        "rollout__max_prompt_tokens": 3,
        "rollout__max_response_tokens": 5,
        "rollout__num_samples": 2,
        "batch__size": 2,
        "optimizer__lr": 1e-2,
        "metrics__terminal": "off",
        "metrics__report": False,
        "checkpoint__every": 0,
    }
    if changes.get("recipe") in ("dpo", "kto", "reward_model"):
        del given["reward__function"]
    if held_out is not None:
        given["data__evaluation"] = files(directory, "held_out.jsonl", held_out)
    return parse(**given | changes)


def length_is_worth_nothing(directory):
    """Settings: a reward for the length of responses, and a penalty that takes it away."""
    (directory / "length.py").write_text(
        "def score(response_ids, **_): return len(response_ids) / 10"
    )
    return {
        "reward__function": f"{directory}/length.py:score",
        "rollout__max_response_tokens": 5,
        "algorithm__overlong": {"buffer": 5, "factor": 0.5},
    }


def small_run(directory, signals=None, **changes):
    return local_run(small_config(directory, **changes), signals)


def recipe_of(run):
    return make_recipe(run, find_recipe(run.config.recipe, 60.0))


def loop(run, resumes=False):
    """Train to the end; the result and the loop's metrics, line by line."""
    recipe = recipe_of(run)
    restored = restore(run) if resumes else None
    with open_records(run, restored) as records:
        result = Loop(run, recipe, records).to_the_end(restored or START)
    return result, lines(run)


def lines(run):
    text = (run.config.run_directory / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def assert_same_for_micro_batches(make, sizes, names):
    """Metrics of a run, made by `make(name=...)`, are equal however its batches are split.

    Returns the metrics of the run with the first size, line by line.
    """
    by_size = []
    for size in sizes:
        run = make(name=f"by-{size}")
        engine_of(run, "actor").micro_batch = size
        by_size.append([{name: line[name] for name in names} for line in loop(run)[1]])
    for other in by_size[1:]:
        assert other == [pytest.approx(line, rel=1e-5, abs=1e-6) for line in by_size[0]]
    return by_size[0]


def block(page, language, holds):
    """The one fenced block of a language on a page that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (text,) = [text for text in blocks if holds in text]
    return text
