"""The published rows of rows.toml, and which of them the time model may be fitted to."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware, LinkFigures, gpu_kind
from verl_hpc.layout.architecture import Architecture, read_architecture
from verl_hpc.placement.layouts import RunLayouts, run_layouts
from verl_hpc.planner.timing.cost import Efficiency
from verl_hpc.planner.timing.lengths import Lengths
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import predict_step, spans_of
from verl_hpc.planner.timing.workload import Workload, workload_of

FILE = Path(__file__).with_name("rows.toml")
SIZES = Path(__file__).parents[2] / "configs/model"
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "update": ("update_actor",),
    "generate": ("rollout",),
    "log_probs": ("old_log_probs", "ref_log_probs"),
}
"""Operators of ours that a source's are the same as. What it calls refit is not: its weights
travel another way."""


UNSEEN = frozenset({"DeepSeek-V3"})
"""Models whose family was mapped after the factors were fitted, so that no fit has seen a step."""


def is_held_out(run: str) -> bool:
    """Whether rows of this run are held out of the fit: those whose name has an odd SHA-256.

    All releases of a run are on one side, since they repeat it.
    """
    return sha256(run.encode()).digest()[-1] % 2 == 1


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a step."""

    seconds: float
    by_operator: Mapping[str, float]

    def of(self, operator: str) -> float:
        """Seconds of our operators that are the same as a published one."""
        return sum(self.by_operator[name] for name in OPERATORS[operator])


@dataclass(frozen=True)
class Row:
    """A published step."""

    run: Mapping[str, Any]
    """Fields of [[run]], as rows.toml describes them, with what the release changed."""
    source: Mapping[str, str]
    """Where the step is published."""

    @property
    def name(self) -> str:
        return f"{self.run['name']}, {self.run['source']}"

    @property
    def held_out(self) -> bool:
        return self.run["model"] in UNSEEN or is_held_out(self.run["name"])

    @property
    def seconds(self) -> float:
        """Published seconds of the step."""
        return float(self.run["seconds"])

    @property
    def operators(self) -> Mapping[str, float]:
        """Published seconds of the operators that are the same here; empty if not published."""
        published = self.run.get("operators", {})
        return {name: float(published[name]) for name in OPERATORS if name in published}

    @property
    def arch(self) -> Architecture:
        return _arch(self.run["model"])

    @cached_property
    def config(self) -> RunConfig:
        """The run as a configuration of ours."""
        run, train, engine = self.run, self.run["train"], self.run["engine"]
        gpus, generating = run["gpus"], run.get("generating", 0)
        apart = {
            "train": f"0-{gpus - generating - 1}",
            "rollout": f"{gpus - generating}-{gpus - 1}",
        }
        fp8 = run.get("fp8", False)
        return parse_config(
            {
                "name": "published",
                "recipe": "rl",
                "steps": 1,
                "model": {"path": run["model"], "fp8": {} if fp8 else None},
                "placement": apart if generating else {},
                "parallel": {
                    "tensor_parallel": train["tp"],
                    "pipeline_parallel": train.get("pp", 1),
                    "context_parallel": train.get("cp", 1),
                    "expert_parallel": train.get("ep", 1),
                    "sequence_parallel": train["tp"] > 1,
                    "recompute": train.get("recompute", "none"),
                },
                "offload": dict.fromkeys(("parameters", "gradients", "optimizer"), not generating),
                "algorithm": {
                    "kl": {"placement": "loss"},
                    "old_log_probs": "recompute",
                    "correction": {},
                },
                "batch": {
                    "size": run["prompts"],
                    "mini_batches": run["updates"],
                    "max_tokens_per_micro_batch": run["longest"],
                },
                "rollout": {
                    "num_samples": run["samples"],
                    "tensor_parallel": engine["tp"],
                    "max_prompt_tokens": run["prompt"],
                    "max_response_tokens": run["longest"] - run["prompt"],
                    "gpu_memory_utilization": engine["memory"],
                    "quantization": "fp8" if fp8 else None,
                    "staleness": run.get("staleness", 1) if generating else 0,
                },
                "data": {"train": {"kind": "files", "paths": ["train.jsonl"]}},
            }
        )

    @cached_property
    def hardware(self) -> Hardware:
        links = LinkFigures(network_gb_s=self.run.get("network_gb_s"))
        return Hardware(gpu_kind(self.run["gpu"]), self.run["node"], links)

    @cached_property
    def layouts(self) -> RunLayouts:
        gpus, per_node = self.run["gpus"], self.run["node"]
        return run_layouts(self.config, self.arch, gpus, ranks_per_node=per_node)

    @cached_property
    def work(self) -> Workload:
        run = self.run
        lengths = Lengths(run["response"], run["longest"] - run["prompt"])
        return workload_of(self.config, run["prompt"], lengths)

    def predict(self, efficiency: Efficiency) -> Prediction:
        """What `plan` says of the step, with these factors.

        The recipes compute log-probs in larger micro-batches than they train with, which no setting
        here does: those operators are predicted with these.
        """
        machine = Machine(self.hardware, efficiency)
        pack = self.run["log_prob_pack"] * self.work.max_tokens
        works = {False: self.work, True: replace(self.work, max_tokens=pack)}
        steps = {
            packed: predict_step(self.config, self.arch, self.layouts, machine, work=work)
            for packed, work in works.items()
        }
        packed = OPERATORS["log_probs"]
        seconds = {name: steps[name in packed].operators[name] for name in steps[False].operators}
        spans = spans_of(self.config, self.layouts, seconds)
        return Prediction(max(span.stop for span in spans), seconds)


@lru_cache
def _arch(model: str) -> Architecture:
    return read_architecture(SIZES / f"{model}.json")


def read_rows() -> list[Row]:
    """All published steps."""
    with FILE.open("rb") as file:
        return list(_rows(tomllib.load(file)))


def _rows(tree: dict[str, Any]) -> Iterator[Row]:
    for run in tree["run"]:
        for step in run["published"]:
            yield Row({**run, **step}, tree["sources"][step["source"]])
