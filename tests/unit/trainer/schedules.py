"""Steps of random sizes on threads: rank 0 trains, and each other rank has an engine."""

import time
from collections import ChainMap
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from tests.pieces import Piece, note
from tests.unit.config.trees import parse
from tests.unit.ranks import on_ranks
from verl_hpc.checkpoint.ahead import read_ahead, write_ahead
from verl_hpc.data.order import Order
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.generation.generate import generate
from verl_hpc.generation.rollout import Rollout
from verl_hpc.placement.layouts import place_roles
from verl_hpc.step.exchange import Communicators, Exchange
from verl_hpc.step.operator import operator
from verl_hpc.step.operators.assign import assign
from verl_hpc.step.placement import Placement
from verl_hpc.step.problems import Problems
from verl_hpc.step.role import Role
from verl_hpc.testing.local import LocalControl, LocalEngine, tiny_architecture
from verl_hpc.testing.local_rollout import LocalRollout
from verl_hpc.testing.local_run import CPU, LetterTokenizer, local_session
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.made_ahead import made_ahead
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.state import START
from verl_hpc.trainer.steps import Steps

ARCH = tiny_architecture()
MAX_PROMPT_TOKENS = 5


@dataclass(frozen=True)
class Schedule:
    """Sizes of a run."""

    seed: int
    staleness: int
    num_engines: int
    batch: int
    num_samples: int
    max_response_tokens: int
    max_num_seqs: int
    steps: int
    prompts: tuple[str, ...]


def draw(seed):
    """A schedule; every fifth has each staleness. Where it cannot make up a whole step, a prompt
    is too long, and dropped."""
    random = Random(seed)
    batch = random.randint(1, 4)
    lengths = [random.randint(1, MAX_PROMPT_TOKENS) for _ in range(batch + random.randint(0, 6))]
    if batch > 2:
        lengths[random.randrange(len(lengths))] = MAX_PROMPT_TOKENS + 1
    num_engines = random.randint(1, 3)
    rest = [random.randint(*ends) for ends in ((2, 3), (1, 12), (1, 8), (3, 7))]
    prompts = tuple("".join(random.choices("abcdefghijk", k=length)) for length in lengths)
    return Schedule(seed, seed % 5, num_engines, batch, *rest, prompts)


@dataclass
class Played:
    """What happened, as the ranks that it happened on saw it."""

    trained: list = field(default_factory=list)
    """Rows, samples and columns, step by step."""
    lags: list = field(default_factory=list)
    """The largest lag that the metrics have, step by step."""
    counted: list = field(default_factory=list)
    """How many times a number of the ranks that generate was changed there, step by step."""
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    """Pieces that are not empty, by the seed of their call."""
    weights: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    """Weights by their version."""


def play(schedule, slow=None, restart=None):
    """Run all steps; the ranks that train, or those that generate, may be slow, and all may resume
    after a step."""
    found = on_ranks(schedule.num_engines + 1, lambda c: _Rank(schedule, slow, c).play(restart))
    pieces = [(seed, piece) for one in found[1:] for seed, piece in one.pieces.items()]
    assert len({seed for seed, _ in pieces}) == len(pieces), "two responses have one seed"
    return replace(found[0], pieces=dict(pieces), counted=found[1].counted)


class _Rank:
    def __init__(self, schedule, slow, control):
        self.played, self.slow = Played(), slow
        self.run = _context(schedule, control)
        if self.run.rollout.engine is not None:
            self.run.rollout.engine = _Recorded(self.run.rollout, self.played, slow)
        recipe = Recipe("random", self.run)
        settings = self.run.settings
        recipe.operator(generate, roles=["rollout"], settings=settings.generate, name="rollout")
        recipe.operator(assign, settings=settings.assign, place="rollout")
        self.counted = self.run.number("counted", 0.0, "rollout")
        recipe.operator(_count, settings=self.counted, place="rollout")
        recipe.operator(_learn, roles=["actor"], settings=self)
        self.new_steps = partial(Steps, self.run, recipe, lambda *_: None, self._refit)

    def play(self, restart):
        progress, steps = START, self.new_steps()
        while progress.step < self.run.config.steps:
            if progress.step == restart:
                steps = self.new_steps()
                self._go_through_files(restart)
            stepped = steps.take(progress.step + 1, progress)
            progress = stepped.progress
            self.played.counted.append(self.counted.value)
            self.played.lags.append(stepped.metrics.get("rollout/lag/max"))
        assert all(which.step == progress.step for which in self.run.rollout.ahead)
        return self.played

    def _go_through_files(self, step):
        """Go on as a run that was killed: only a checkpoint has what was made ahead."""
        run, mine = self.run, made_ahead(self.run, step)
        control = run.session.control
        with TemporaryDirectory() as directory:
            files = control.allgather(Path(directory) / f"{control.rank}.h5")
            write_ahead(files[control.rank], "save", mine)
            control.barrier()
            read = [read_ahead(file, "save", lambda _: True) for file in files]
            control.barrier()
        run.rollout.ahead = {which: t for which, t in ChainMap(*read).items() if which in mine}

    def _refit(self, step):
        run = self.run
        mine = run.roles["actor"].training.weights if run.rank == 0 else {}
        found = run.session.control.broadcast({n: w.clone() for n, w in mine.items()})
        for name, weight in run.rollout.engine.weights.items() if run.rollout.engine else ():
            weight.copy_(found[name])
        self.played.weights[step] = found
        run.rollout.version = step
        return {}


@operator(changes_state=True)
def _count(place, number, samples):
    """Once a step, on ranks that are a step ahead."""
    number.value += 1
    return (), {}


@operator(changes_state=True)
def _learn(place, actor, rank, rows, samples, sequences):
    """Weights that depend on all that was trained on."""
    if rank.slow == "train":
        time.sleep(0.004)
    rank.played.trained.append((rows, samples, sequences))
    total = sum(float(log_probs.sum()) for log_probs in sequences["rollout_log_probs"])
    for weight in actor.training.weights.values():
        weight.mul_(1 + 0.02 * torch.sin(weight * total))
    return (), {}


class _Recorded(LocalRollout):
    """Notes what each call gives, and which weights were filled in last."""

    def __init__(self, rollout, played, slow):
        super().__init__(ARCH, max_num_seqs=rollout.engine.at_a_time)
        self._played, self._slow = played, slow

    def generate(self, feed, sampling):
        if self._slow == "rollout":
            time.sleep(0.004)
        super().generate(feed, sampling)
        note(self._played.pieces, max(self._played.weights), feed)


def _context(schedule, control):
    size = schedule.num_engines
    config = parse(
        seed=schedule.seed,
        steps=schedule.steps,
        placement={"train": "0", "rollout": f"1-{size}"},
        batch__size=schedule.batch,
        rollout__staleness=schedule.staleness,
        rollout__num_samples=schedule.num_samples,
        rollout__max_prompt_tokens=MAX_PROMPT_TOKENS,
        rollout__max_response_tokens=schedule.max_response_tokens,
        rollout__overlong_prompt="drop",
    )
    layouts = place_roles(config, size + 1)
    controls = Communicators(control)
    places = {
        p.name: Placement(p, control.rank, controls.make(p.ranks), CPU, None, False)
        for p in layouts.pools.values()
    }
    problems = [Problem(i, prompt) for i, prompt in enumerate(schedule.prompts)]
    order = Order(len(problems), config.seed, config.data.shuffle)
    read = Encoder(LetterTokenizer()), Problems(problems, None, {}), order
    around = local_session(control), config, ARCH, layouts, controls, places, {}, {}
    run = RunContext(*around, *read)
    place, actor = places[layouts.pool_of["actor"]], LocalEngine(ARCH, seed=schedule.seed)
    shard_maps = actor.layout, actor.shard_map, actor.shard_map
    settings = config.role_settings["actor"]
    run.roles = {"actor": Role("actor", settings, place, ARCH, *shard_maps)}
    run.roles["actor"].training = actor if place.is_here else None
    place, engine = places["rollout"], LocalRollout(ARCH, max_num_seqs=schedule.max_num_seqs)
    mine = engine if place.is_here else None
    run.rollout = Rollout(place, engine.shard_map, mine, replica_control=LocalControl())
    run.exchange = Exchange(run.session.world, places, controls)
    return run
