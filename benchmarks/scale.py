"""What a step's data cost one rank of 128, 1,024 and 4,096; the goal is 1 CPU second and 1 MB of
facts.

The rank runs the code of a run: gathers facts about samples, assigns them, moves its tokens, deals
them to micro-batches. Only its messages go nowhere (`benchmarks/simulated_world.py`). Models are
left out: generation, rewards, passes.

usage: python -m benchmarks.scale [--ranks 128 1024 4096] [--markdown FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from benchmarks.simulated_world import SimulatedControl, Traffic
from benchmarks.world_plan import pickled_facts, plan_of_the_world
from verl_hpc.algorithms.advantages.grpo import Grpo
from verl_hpc.config.load import parse_config
from verl_hpc.engines.shared.micro_batches import Planner
from verl_hpc.flow import Move
from verl_hpc.generation.generate import agree
from verl_hpc.generation.score import gather_scores, score_rows
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.placement.layouts import Groups, Pool
from verl_hpc.rewards.scoring import Score
from verl_hpc.runtime.collectives import dumped
from verl_hpc.runtime.world import World
from verl_hpc.step.batch import (
    ADVANTAGES,
    MASK,
    ROLLOUT_LOG_PROBS,
    TOKENS,
    Columns,
    Sample,
    StepRows,
)
from verl_hpc.step.exchange import Communicators, Exchange
from verl_hpc.step.operators.advantages import advantages
from verl_hpc.step.operators.assign import AssignSettings, assign, share
from verl_hpc.step.placement import Placement
from verl_hpc.step.sample_rows import sample_rows

RANKS_PER_NODE = 8
ROLLOUT_RANKS = 8
"""Of an engine (TP8)."""
TRAIN_TP, TRAIN_PP = 8, 8
TRAIN_RANKS = TRAIN_TP * TRAIN_PP
"""Of a replica that trains."""
NUM_PROMPTS, NUM_SAMPLES = 1024, 16
MINI_BATCHES = 4
MAX_TOKENS = 16384
HIDDEN_SIZE = 8192
CONFIG = parse_config(
    {
        "name": "scale",
        "recipe": "rl",
        "steps": 1,
        "model": {"path": "none"},
        "data": {"train": {"kind": "files", "paths": ["none.jsonl"]}},
        "rollout": {"num_samples": NUM_SAMPLES, "max_prompt_tokens": 2**20},
        "batch": {"size": NUM_PROMPTS, "mini_batches": MINI_BATCHES},
    }
)
REPEATS = 5
SETTING = (
    f"{NUM_PROMPTS} prompts x {NUM_SAMPLES} samples, {REPEATS} repetitions; the busier of the "
    "first and the last rank."
)
CPU = torch.device("cpu")


@dataclass
class Part:
    """What one part of a step took."""

    name: str
    cpu_s: float
    traffic: Traffic


class Rank:
    """One rank of a world."""

    def __init__(self, rank: int, size: int, samples: Sequence[Sample]) -> None:
        self.rank, self.size, self.samples = rank, size, samples
        self.control = SimulatedControl(rank, size)
        node_of = tuple(r // RANKS_PER_NODE for r in range(size))
        here = (rank % RANKS_PER_NODE, RANKS_PER_NODE, node_of[rank], node_of)
        self.world = World(rank, size, *here, "n", "cpu")
        self.places = {
            name: _Place(Pool(name, _groups(size, width)), rank, self.control, CPU)
            for name, width in (("rollout", ROLLOUT_RANKS), ("actor", TRAIN_RANKS))
        }
        self.exchange = Exchange(self.world, self.places, Communicators(self.control))
        self.parts: list[Part] = []
        self.made: dict[str, Any] = {}

    def step(self) -> list[Part]:
        """All parts, one after the other."""
        self.parts = []
        for name, work, said in (
            ("facts of responses", self._facts, self._said_of_samples()),
            ("scores", self._scores, self._said_of_scores()),
            ("assignment", self._assign, []),
            ("move of tokens", self._move, []),
            ("advantages", self._advantages, self._said_of_advantages()),
            ("micro-batches", self._micro_batches, []),
            ("agreements and metrics", self._agreements, self._said_of_metrics()),
        ):
            self._measure(name, work, said)
        return self.parts

    def _measure(self, name: str, work: Callable[[], None], said: list[Sequence[bytes]]) -> None:
        self.control.said, self.control.traffic = said, Traffic()
        begin = time.process_time()
        work()
        self.parts.append(Part(name, time.process_time() - begin, self.control.traffic))
        assert not self.control.said

    # ------------------------------------------------------------ what a rank does

    def _facts(self) -> None:
        place = self.places["rollout"]
        mine = [self.samples[i] for i in self._slots(place.index)]
        self.made["responses"] = agree(place, mine, False)

    def _scores(self) -> None:
        place = self.places["rollout"]
        mine = _scored(self._positions(self.rank))
        found = place.control.together(lambda: mine)
        self.made["scores"] = gather_scores(
            place, self._positions(self.rank), found, len(self.samples)
        )

    def _assign(self) -> None:
        groups = {name: len(place.groups) for name, place in self.places.items()}
        settings = AssignSettings(CONFIG, {"actor": groups["actor"]}, HIDDEN_SIZE)
        rows = StepRows(1, range(NUM_PROMPTS))
        self.made["samples"], _ = assign(
            self.places["rollout"], settings, rows, self.made["responses"]
        )

    def _move(self) -> None:
        move = Move(("sequences",), "rollout", "actor", False, "samples")
        values = {"samples": self.made["samples"], "sequences": self.columns}
        self.made |= self.exchange.move(move, values)

    def _advantages(self) -> None:
        sequences = self.made["sequences"]
        advantages(
            self.places["actor"], Grpo(), self.made["samples"], sequences, self.made["scores"]
        )

    def _micro_batches(self) -> None:
        """Of a pass over the whole batch for log-probs, and of the optimizer steps; with the layers
        of GPUs, which share no tokens between sequences."""
        samples, sequences = self.made["samples"], self.made["sequences"]
        layout = TrainLayout(tp=TRAIN_TP, pp=TRAIN_PP, dp=self.size // TRAIN_RANKS)
        # What the replicas agree on, by torch, is left out.
        planner = Planner(
            layout,
            HIDDEN_SIZE,
            MAX_TOKENS,
            shares_tokens=False,
            largest=lambda one, other: (one, other),
        )
        rows = dict(zip(sequences.positions, sequences[TOKENS], strict=True))
        plans = [planner.plan(list(rows.values()))]
        for batch in samples.mini_batches:
            mine = set(batch)
            plans.append(planner.plan([row for i, row in rows.items() if i in mine]))
        self.made["plans"] = plans

    def _agreements(self) -> None:
        """Whether all is well and nobody leaves; at the step's end nearly all ranks have no metrics
        for rank 0."""
        for _ in range(10):
            self.control.any(False)
        self.control.gather(None)

    # ------------------------------------------------------------ what the others say

    def _slots(self, engine: int) -> range:
        return share(len(self.samples), engine, len(self.places["rollout"].groups))

    def _positions(self, rank: int) -> Sequence[int]:
        """Of the samples that a rank scores."""
        engine, member = divmod(rank, ROLLOUT_RANKS)
        return self._slots(engine)[member::ROLLOUT_RANKS]

    def _said_of_samples(self) -> list[Sequence[bytes]]:
        said = [b""] * self.size
        for engine, ranks in enumerate(self.places["rollout"].groups):
            said[ranks[0]] = sample_rows([self.samples[i] for i in self._slots(engine)]).tobytes()
        return [said]

    def _said_of_scores(self) -> list[Sequence[bytes]]:
        of_ranks = (self._positions(rank) for rank in range(self.size))
        return [[score_rows(p, _scored(p), ["accuracy"]).tobytes() for p in of_ranks]]

    def _said_of_advantages(self) -> list[Sequence[bytes]]:
        """Number, sum, largest and smallest of each rank's advantages."""
        return [[dumped({ADVANTAGES: (1, 0.0, 0.0, 0.0)}).tobytes()] * self.size]

    def _said_of_metrics(self) -> list[Sequence[bytes]]:
        return [[dumped(None).tobytes()] * self.size]

    @property
    def columns(self) -> Columns:
        """Of the engine's samples."""
        mine = [self.samples[i] for i in self._slots(self.places["rollout"].index)]
        return Columns(
            [s.index for s in mine],
            {
                TOKENS: [torch.zeros(s.length, dtype=torch.int64) for s in mine],
                MASK: [torch.ones(s.response_length, dtype=torch.uint8) for s in mine],
                ROLLOUT_LOG_PROBS: [torch.zeros(s.response_length) for s in mine],
            },
        )


class _Place(Placement):
    """Sums over groups, of torch, are left out."""

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def _groups(size: int, width: int) -> Groups:
    return tuple(tuple(range(first, first + width)) for first in range(0, size, width))


def _scored(positions: Sequence[int]) -> list[Score]:
    return [Score(float(i % 3 == 0), {"accuracy": float(i % 3 == 0)}) for i in positions]


def some_samples(seed: int = 0) -> list[Sample]:
    """Lengths of responses as reasoning models have them: log-normal, cut at 8,192."""
    dice = random.Random(seed)
    found = []
    for i in range(NUM_PROMPTS * NUM_SAMPLES):
        length = min(int(dice.lognormvariate(6.2, 0.9)) + 1, 8192)
        found.append(Sample(i, i // NUM_SAMPLES, 100 + i // NUM_SAMPLES % 200, length, False))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # CPU seconds of threads that wait for work are no rank's
    facts = machine(("verl_hpc", "numpy", "torch"))
    gc.disable()
    samples = some_samples()
    record = {size: _world(size, samples) for size in arguments.ranks}
    rivals = {size: _rivals(Rank(0, size, samples)) for size in arguments.ranks}
    for size, of_world in rivals.items():
        of_world |= _ours(record[size])
    text = "\n\n".join(
        (
            "`python -m benchmarks.scale`",
            machine_markdown(facts),
            SETTING,
            *(_table(size, of_world) for size, of_world in record.items()),
            _rivals_table(rivals),
        )
    )
    worlds = {"machine": facts, "worlds": record, "rivals": rivals}
    report(text, worlds, arguments.markdown, arguments.json)
    return 0


def _world(size: int, samples: Sequence[Sample]) -> dict[str, Any]:
    """By part: CPU seconds, messages and bytes, of the rank that had more to do in it."""
    found: dict[str, Any] = {}
    for rank in (0, size - 1):
        one = Rank(rank, size, samples)
        runs = [one.step() for _ in range(REPEATS)]
        for parts in zip(*runs, strict=True):
            part = {"cpu_s": spread([p.cpu_s for p in parts]), **asdict(parts[0].traffic)}
            known = found.setdefault(parts[0].name, part)
            if known["cpu_s"]["median"] < part["cpu_s"]["median"]:
                found[parts[0].name] = part
    return found


def _ours(parts: Mapping[str, Any]) -> dict[str, float]:
    return {
        "move_s": parts["move of tokens"]["cpu_s"]["median"],
        "facts_bytes": parts["facts of responses"]["bytes_received"],
    }


def _rivals(one: Rank) -> dict[str, float]:
    """Planning the move for the whole world, and facts as objects."""
    one.step()
    samples, (source, target) = one.made["samples"], one.places.values()
    begin = time.process_time()
    plan_of_the_world(
        samples,
        list(one.columns.values),
        one.world.node_of,
        (source.name, source.groups),
        (target.name, target.groups),
    )
    planned = time.process_time() - begin
    return {"plan_s": planned, "pickled_bytes": pickled_facts(samples, "rollout")}


def _rivals_table(rivals: Mapping[int, Mapping[str, float]]) -> str:
    header = (
        "ranks",
        "move, CPU s",
        "plan of the world, CPU s",
        "ratio",
        "facts, kB",
        "pickled, kB",
    )
    rows = [
        (
            *(f"{size:,}", f"{r['move_s']:.4f}", f"{r['plan_s']:.2f}"),
            f"{r['plan_s'] / r['move_s']:.0f}",
            *(f"{r[name] / 1000:.0f}" for name in ("facts_bytes", "pickled_bytes")),
        )
        for size, r in rivals.items()
    ]
    return f"## Beside what it replaces\n\n{markdown_table(header, rows)}"


def _table(size: int, parts: Mapping[str, Any]) -> str:
    numbers = ("messages_sent", "bytes_sent", "bytes_received")
    rows = [
        [name, f"{1000 * p['cpu_s']['median']:.1f}", f"{1000 * p['cpu_s']['max']:.1f}"]
        + [f"{p[n]:,}" for n in numbers]
        for name, p in parts.items()
    ]
    total = [sum(p["cpu_s"][of] for p in parts.values()) for of in ("median", "max")]
    sums = [f"{sum(p[n] for p in parts.values()):,}" for n in numbers]
    rows.append(["**all**", *(f"{1000 * t:.1f}" for t in total), *sums])
    header = ("part", "CPU ms, median", "max", "messages sent", "bytes sent", "bytes received")
    return f"## {size:,} ranks\n\n{markdown_table(header, rows)}"


if __name__ == "__main__":
    sys.exit(main())
