"""A whole run whose rewards run programs, some of them hostile."""

import json
from contextlib import suppress
from pathlib import Path

from tests.jobs.launch import trained, write_config

# How hostile programs end, run once a rank.
HOSTILE = """
from functools import cache

from verl_hpc.rewards.sandbox.containment import MIB, Limits
from verl_hpc.rewards.sandbox.sandbox import Sandbox

SANDBOX = Sandbox(Limits(timeout_s=5.0, cpu_s=1.0, memory_bytes=128 * MIB))
PROGRAMS = {
    "too_many_processes": "import os\\nwhile True: os.fork()",
    "out_of_memory": "x = []\\nwhile True: x.append(bytearray(10**7))",
    "output_too_large": "while True: print('x' * 10**6)",
    "timed_out": "while True: pass",
    "exited": "import os\\nos.kill(-1, 9)",
}


@cache
def endings():
    return {name: SANDBOX.run(text).ending for name, text in PROGRAMS.items()}


def score(solution_str, ground_truth, data_source, extra_info):
    return {"score": 1.0, **{name: ending == name for name, ending in endings().items()}}
"""


def helpers():
    """Processes of this machine that start programs."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"verl_hpc.rewards.sandbox.helper" in file.read_bytes().split(b"\0"):
                found.add(file.parent.name)
    return found


def test_a_run_with_programs_as_rewards(tree, tmp_path):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    truth = json.dumps({"inputs": ["1\n"], "outputs": ["1\n"]})
    rows = [{"prompt": f"Print {n}", "answer": truth} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    terms = {
        "code": {"function": "code", "options": {"timeout_s": 5.0, "memory_mib": 256}},
        "hostile": {"function": f"{tmp_path}/hostile.py:score", "timeout_s": 60.0},
        "brief": {"function": "length", "weight": 0.5, "options": {"cap": 6}},
    }
    changes = {
        "steps": 1,
        "data": {"train": {"kind": "files", "paths": [str(tmp_path / "rows.jsonl")]}},
        "reward": {"terms": terms, "smoothing": {}},
    }
    config = write_config(tmp_path / "config.yaml", tree | changes)
    before = helpers()
    trained(2, config)
    (line,) = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    verdicts = ("passed", "failed", "compile_error", "timed_out", "out_of_memory",
                "too_many_processes", "output_too_large", "killed")  # fmt: skip
    assert sum(line[f"reward/code/code_{verdict}"] for verdict in verdicts) == 1.0
    assert line["reward/code/code_passed"] == line["reward/code"] == 0.0
    for ending in ("too_many_processes", "out_of_memory", "output_too_large", "timed_out",
                   "exited"):  # fmt: skip
        assert line[f"reward/hostile/{ending}"] == 1.0
    assert line["reward/hostile"] == 1.0 and -1.0 <= line["reward/brief"] <= 0.0
    expected = line["reward/hostile"] + 0.5 * line["reward/brief"]
    assert abs(line["critic/score/mean"] - expected) < 1e-6
    assert abs(line["critic/rewards/mean"]) < 1e-6, "measured against their average"
    assert helpers() <= before
