"""Batches of several data sets, one of them a directory: on all ranks, and after a kill."""

import json

import pytest
import yaml

from tests.mpi.placed_runs import configure, run, run_again
from tests.mpi.recipe_runs import BATCH, ROLLOUT

pytestmark = pytest.mark.world(2, 4, often=2)

PROMPTS = 4
CHAINS = {"kind": "reasoning_gym", "task": "chain_sum", "size": 4}
OWN = """
import random

class Own:
    def rows(self):
        for _ in range(3):  # other rows at each start
            yield {"prompt": f"{random.random()}=", "answer": "1"}
"""


def settings(here, model, directory):
    rows = [{"prompt": f"{i}+{i + 1}=", "answer": str(2 * i + 1)} for i in range(9)]
    folder = directory / "sums"
    if here.world.rank == 0:
        folder.mkdir(exist_ok=True)
        for number in range(3):
            part = rows[3 * number : 3 * number + 3]
            (directory / "own.py").write_text(OWN)
            (folder / f"part-{number}.jsonl").write_text("\n".join(map(json.dumps, part)))
    here.control.barrier()
    sets = {
        "sums": {"weight": 0.75, "source": {"kind": "files", "paths": [str(folder)]}},
        "chains": {"weight": 0.125, "source": CHAINS},
        "own": {"weight": 0.125, "source": {"kind": "source", "path": f"{directory}/own.py:Own"}},
    }
    return configure(
        directory,
        model,
        f"mixed-{here.world.size}",
        "rl",
        steps=8,
        parallel={"tensor_parallel": 2},
        rollout=ROLLOUT,
        data={"train": {"kind": "mix", "sets": sets}},
        batch=BATCH | {"mini_batches": 1, "size": PROMPTS},
        checkpoint={"every": 1, "keep": 99},
    )


def of_steps(rows):
    """Rows without times."""
    return [{n: v for n, v in row.items() if n.startswith(("set/", "actor/"))} for row in rows]


def test_a_mixed_run_that_is_killed_ends_with_the_same_bits(here, tiny_model, shared_directory):
    config = settings(here, tiny_model(), shared_directory)
    rows = run(here, config)
    counts = {
        n: [row.get(f"set/{n}/prompts", 0) for row in rows] for n in ("sums", "chains", "own")
    }
    assert [sum(pair) for pair in zip(*counts.values(), strict=True)] == [PROMPTS] * 8
    assert sum(counts["sums"]) == 24  # two epochs of 16 rows, 12 of each from sums
    for row in rows:
        names = [n for n in counts if f"set/{n}/critic/score/mean" in row]
        means = sum(row[f"set/{n}/critic/score/mean"] * row[f"set/{n}/prompts"] for n in names)
        assert means / PROMPTS == pytest.approx(row["critic/score/mean"])
    written = yaml.safe_load((config.run_directory / "config.yaml").read_text())
    paths = written["data"]["train"]["sets"]["sums"]["source"]["paths"]
    assert [path.rpartition("/")[2] for path in paths] == [f"part-{i}.jsonl" for i in range(3)]
    again, differences = run_again(here, config, range(6, 9), shared_directory)
    assert of_steps(again) == of_steps(rows)
    assert differences == []
