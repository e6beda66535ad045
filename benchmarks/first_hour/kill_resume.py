"""A whole run that is killed by SIGKILL and started again: it makes the lost steps as before.

Both starts do the steps behind the last save from the same state. On CPU ranks their metrics are
equal; on a GPU those of the first such step agree but for the order of sums.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import machine, report
from benchmarks.gpu.setting import Figure
from benchmarks.gpu_smoke import PACKAGES, Part, markdown
from benchmarks.launch import REPOSITORY, last_lines
from benchmarks.models import numbers_prompt
from verl_hpc.checkpoint.schema import step_number
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.metrics.log import Row, read_metrics
from verl_hpc.testing.tiny import make_tiny_model

STEPS, EVERY, KILLED_AT = 8, 3, 5
"""Steps of the run, between saves, and that the first start has made when it is killed."""
_REHEARSAL: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}
_ON_GPU: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 12,
}
_MEASURED = ("time", "timing", "cpu_s", "perf", "reshard/sec")
"""Beginnings of names of metrics that measure time or memory."""
_TOLERANCE = 0.05
"""Of the first repeated step on a GPU, relative: atomic sums, bfloat16."""
_SMALL = 0.01
"""Values below it, such as a divergence near zero, are held to its share."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module; status 1 if a figure is beyond its limit."""
    arguments = _parse(argv)
    shutil.rmtree(arguments.directory, ignore_errors=True)
    arguments.directory.mkdir(parents=True)
    config = _write_run(arguments.directory, arguments.engine, arguments.rehearse)
    run, start = arguments.directory / "run", time.monotonic()
    before, saved = _killed(config, run)
    killed = time.monotonic()
    again = _start(config, "second")
    if again.wait():
        raise SystemExit(
            f"the second start ended with {again.returncode}:\n{_tail(config, 'second')}"
        )
    after = read_metrics(run)
    figures = compared(before, after, saved, 0.0 if arguments.rehearse else _TOLERANCE)
    figures += [
        Figure("first start, to its kill", killed - start, "s"),
        Figure("second start, to the end", time.monotonic() - killed, "s"),
    ]
    part = Part(f"run with {arguments.engine}", list(figures), seconds=time.monotonic() - start)
    kernels = json.loads((run / "facts.json").read_text())
    known = machine(PACKAGES)
    record = {"rehearsal": arguments.rehearse, "machine": known, "facts": kernels}
    record |= {"figures": [vars(figure) for figure in figures], "steps": after}
    chosen = {name: kernels[name] for name in kernels if "layers" in name or "attention" in name}
    report(
        markdown([part], known, chosen, arguments.rehearse),
        record,
        arguments.markdown,
        arguments.json,
    )
    return int(not part.passed)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour.kill_resume")
    parser.add_argument("--directory", type=Path, required=True, metavar="DIR")
    parser.add_argument("--engine", choices=("hf", "vllm"), required=True)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def _write_run(directory: Path, engine: str, rehearse: bool) -> Path:
    """A GRPO run with random weights, and its inputs."""
    prompts = [numbers_prompt(index) for index in range(64)]
    sizes = _REHEARSAL if rehearse else _ON_GPU
    model = make_tiny_model(directory / "model", "llama", prompts=prompts, **sizes)
    data = directory / "prompts.jsonl"
    rows = [json.dumps({"prompt": prompt, "data_source": "numbers"}) for prompt in prompts]
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    num_prompts, response = (4, 8) if rehearse else (16, 128)
    tree: dict[str, Any] = {
        "name": "run",
        "recipe": "rl",
        "steps": STEPS,
        "directory": str(directory),
        "model": {"path": str(model), "dtype": "float32" if rehearse else "bfloat16"},
        "optimizer": {"lr": 1e-5},
        "batch": {"size": num_prompts, "mini_batches": 2, "max_tokens_per_micro_batch": 4096},
        "rollout": {
            "engine": engine,
            "num_samples": 4,
            "max_prompt_tokens": 64,
            "max_response_tokens": response,
            **({"kv_cache_gib": 0.1} if rehearse else {}),
        },
        "data": {"train": {"kind": "files", "paths": [str(data)]}},
        "reward": {"function": f"{REPOSITORY / 'benchmarks' / 'distinct_reward.py'}:score"},
        "checkpoint": {"every": EVERY},
        "metrics": {"terminal": "lines", "report": False},
    }
    config = directory / "run.yaml"
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return config


def _start(config: Path, name: str) -> subprocess.Popen[bytes]:
    """The program as a user starts it on one rank."""
    words = [sys.executable, "-m", "verl_hpc", "train", "--config", str(config)]
    with _log(config, name).open("wb") as log:
        return subprocess.Popen(words, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)


def _log(config: Path, name: str) -> Path:
    return config.with_name(f"{name}.log")


def _tail(config: Path, name: str) -> str:
    return last_lines(_log(config, name))


def _killed(config: Path, run: Path) -> tuple[list[Row], int]:
    """Metrics of the first start when it was killed, and the step of its last save."""
    program = _start(config, "first")
    while program.poll() is None:
        rows = read_metrics(run) if (run / "metrics.jsonl").exists() else []
        saves = complete_steps(run / "checkpoints")
        if saves and rows and rows[-1]["step"] >= KILLED_AT:
            program.send_signal(signal.SIGKILL)
            program.wait()
            newest = step_number(complete_steps(run / "checkpoints")[0])
            assert newest is not None
            return read_metrics(run), newest
        time.sleep(0.05)
    raise SystemExit(f"the first start ended before its kill:\n{_tail(config, 'first')}")


def compared(
    before: Sequence[Row], after: Sequence[Row], saved: int, tolerance: float
) -> list[Figure]:
    """How the steps that were done twice agree.

    Args:
        before: metrics of the first start.
        after: metrics of the whole run.
        saved: the step from which the second start resumed.
        tolerance: largest relative difference of the first repeated step; 0 holds all to it.
    """
    lost = {row["step"]: row for row in before if row["step"] > saved}
    steps = [row["step"] for row in after]
    again = {row["step"]: row for row in after if row["step"] in lost}
    differences = [_difference(lost[step], again[step]) for step in sorted(again)]
    most = max(differences, default=float("nan"))
    first = differences[0] if differences else float("nan")
    return [
        Figure("steps of the first start", before[-1]["step"]),
        Figure("resumed after step", saved),
        Figure("steps that were done twice", len(again), at_least=1),
        Figure("steps missing or twice in the end", _wrong(steps), at_most=0),
        Figure("first repeated step, largest relative difference", first, at_most=tolerance),
        Figure(
            "all repeated steps, largest relative difference",
            most,
            at_most=0.0 if tolerance == 0 else None,
        ),
    ]


def _wrong(steps: Sequence[int]) -> int:
    return len(set(range(1, STEPS + 1)) ^ set(steps)) + len(steps) - len(set(steps))


def _difference(one: Row, other: Row) -> float:
    """Largest difference of values that measure neither time nor memory, relative to them."""
    names = [name for name in one | other if not name.startswith(_MEASURED)]
    pairs = [(one.get(name), other.get(name)) for name in names]
    most = 0.0
    for a, b in pairs:
        if isinstance(a, int | float) and isinstance(b, int | float):
            most = max(most, abs(a - b) / max(abs(a), abs(b), _SMALL))
        elif a != b:
            return float("inf")
    return most


if __name__ == "__main__":
    sys.exit(main())
