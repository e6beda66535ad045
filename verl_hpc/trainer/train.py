"""Run a configuration to its end: directory, records, watchdogs, and the loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from pathlib import Path
from typing import TypeVar

from verl_hpc.config.load import dump_config
from verl_hpc.config.regular_file import replace_text
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import CheckpointError, ConfigError
from verl_hpc.metrics.log import FILE_NAME as METRICS
from verl_hpc.metrics.log import read_metrics, seconds_after
from verl_hpc.metrics.sinks import check_sinks
from verl_hpc.metrics.text import number, plain
from verl_hpc.runs.contract import ATTEMPT
from verl_hpc.runs.heartbeat import Heartbeat
from verl_hpc.runs.lives import LifeRecord
from verl_hpc.runs.lock import RunLock
from verl_hpc.runs.ranks import FILE as RANKS
from verl_hpc.runtime.debug.attach import Attachments
from verl_hpc.runtime.debug.breakpoints import Breakpoints
from verl_hpc.runtime.debug.post_mortem import PostMortem
from verl_hpc.runtime.debug.stacks import write_stacks_on_signal
from verl_hpc.runtime.garbage import resume_collection
from verl_hpc.runtime.session import Session
from verl_hpc.runtime.startup import announce
from verl_hpc.runtime.stop import Signals, StopFlag
from verl_hpc.sources.files import found_files
from verl_hpc.sources.local import found_models, put_settings
from verl_hpc.trainer.build import plan_run
from verl_hpc.trainer.build_roles import build_engines
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.facts import placements, run_facts
from verl_hpc.trainer.guards import go_back, resume
from verl_hpc.trainer.kept_caches import open_caches
from verl_hpc.trainer.loop import Loop
from verl_hpc.trainer.own_sources import as_files, own_sources, write_rows
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes import find_recipe, make_recipe
from verl_hpc.trainer.records import CONFIG, Result, check_files, open_records
from verl_hpc.trainer.state import START, Progress, has_steps

_logger = logging.getLogger(__name__)

T = TypeVar("T")


def train(session: Session, config: RunConfig, signals: Signals | None = None) -> Result:
    """Run a configuration to its end, resuming from its newest checkpoint; every rank calls it.

    Signals, the allocation's end and requests (see `runtime.stop`) end it early: all ranks save and
    return.

    Args:
        session: this rank's session.
        config: the run's configuration.
        signals: signals already being listened to; None notices only those from now on.

    Returns:
        How far the run got, and why it ended; equal on every rank.

    Raises:
        VerlHpcError: bad input, before any work is done; TrainingError, RewardError or DataError
            during the run. The last checkpoint is intact.
    """
    signals = signals or Signals()
    signals.listen()
    # Names on a hub become directories, and directories and globs of data sets their files.
    asked = put_settings(config, _found(session, lambda: found_models(config)))
    config = as_files(put_settings(asked, _found(session, lambda: found_files(asked))))
    with _run_directory(session, config) as lock:
        _write_rows(session, asked)
        life = session.control.together(lambda: _begin_life(session, config))
        _be_watched(session, config)
        with _heartbeat(session, config) as heartbeat, life or nullcontext():
            return _train(session, config, signals, lock, heartbeat, life)


def _found(session: Session, find: Callable[[], T]) -> T:
    """Return on all ranks what the first one finds: others may see a branch or a directory that
    changes at another time."""
    control, leads = session.control, session.world.rank == 0
    return control.broadcast(control.together(lambda: find() if leads else None))


def _write_rows(session: Session, config: RunConfig) -> None:
    if own_sources(config):
        anew, leads = not has_steps(session, config), session.world.rank == 0
        session.control.together(lambda: write_rows(config, anew) if leads else None)


def _train(
    session: Session,
    config: RunConfig,
    signals: Signals,
    lock: RunLock | None,
    heartbeat: Heartbeat | None,
    life: LifeRecord | None,
) -> Result:
    def enter(stage: str) -> None:
        session.enter(stage)
        if heartbeat is not None:
            heartbeat.beat(stage, 0)
            announce(stage, config.metrics.terminal)

    leads = session.world.rank == 0
    session.control.together(lambda: check_sinks(config.metrics, leads))
    resumes = has_steps(session, config)
    timeout_s = config.reward.import_timeout_s
    find = session.control.together(lambda: find_recipe(config.recipe, timeout_s))
    run = plan_run(session, config, enter, resumes)
    if heartbeat is not None:
        heartbeat.expect(run.num_steps)
    # What is wrong with a recipe is found before engines take their time.
    recipe = session.control.together(lambda: make_recipe(run, find))
    run.caches = open_caches(session, run.arch, run.layouts)
    if run.caches is not None:
        enter("unpack compile caches")
        message = run.caches.unpack()
        if leads:
            announce(message, config.metrics.terminal)
    build_engines(run, enter, resumes)
    if heartbeat is not None:
        heartbeat.place(placements(run))
    run.lock = lock
    here = sorted(name for name, place in run.places.items() if place.is_here)
    session.watchdog.places = ", ".join(here)
    resume_collection()
    signals.listen()
    most = config.runtime.max_gpu_hours
    ceiling = inf if life is None or most is None else life.ceiling(most)
    if most is not None:
        ceiling = session.control.broadcast(ceiling)
    run.stop = StopFlag(session.control, config.run_directory, signals, ceiling=ceiling)
    enter("restore")
    restored = resume(run)
    assert restored is not None or not resumes, "engines are empty that no step has filled"
    if life is not None:
        step = (restored or START).step
        life.resume(step, _seconds_after(config, step))
    result = take_steps(run, recipe, heartbeat, life, restored)
    if heartbeat is not None:
        heartbeat.end(result.outcome)
    if life is not None:
        life.end(result.outcome)
    return result


def take_steps(
    run: RunContext,
    recipe: Recipe,
    heartbeat: Heartbeat | None,
    life: LifeRecord | None,
    progress: Progress | None,
) -> Result:
    """Train to the end; after a rollback, continue as after a restart."""
    errands = run.session.watchdog.errands
    while True:
        with open_records(run, progress, heartbeat) as records:
            errands.append(records.meters.tick)
            loop = Loop(run, recipe, records, life)
            result = loop.to_the_end(progress or START)
            errands.remove(records.meters.tick)
            if result.outcome != "rollback":
                if run.rank == 0:
                    records.finish(run_facts(run, result))
                return result
        assert loop.guards.violation is not None
        progress = go_back(run, loop.guards.violation, result.progress)
        if life is not None:
            life.go_back(_seconds_after(run.config, progress.step))


def _seconds_after(config: RunConfig, step: int) -> float:
    """Return the seconds of recorded steps after this one, which are taken again."""
    recorded = (config.run_directory / METRICS).exists()
    return seconds_after(read_metrics(config.run_directory) if recorded else [], step)


def _heartbeat(session: Session, config: RunConfig) -> Heartbeat | AbstractContextManager[None]:
    """Open the heartbeat file that `status` reads, on rank 0."""
    if session.world.rank != 0:
        return nullcontext()
    return Heartbeat(config.run_directory, total_steps=config.steps)


def _begin_life(session: Session, config: RunConfig) -> LifeRecord | None:
    """Open the record of this start's hours, on rank 0.

    Raises:
        ConfigError: the run has used up its hours.
    """
    world, most = session.world, config.runtime.max_gpu_hours
    if world.rank != 0:
        return None
    with _writing(config.run_directory):
        life = LifeRecord(config.run_directory, world.size, world.device != "cpu")
    if most is not None and life.ceiling(most) - life.usual_start_s <= time.time():
        used = sum(earlier.hours for earlier in life.earlier)
        life.end("no hours left")
        raise ConfigError(
            f"runtime.max_gpu_hours = {plain(most)}: the run's {len(life.earlier)} earlier starts "
            f"have used {number(used)}, and the rest is less than another start takes; set it "
            "higher to go on"
        )
    session.watchdog.errands.append(life.tick)
    return life


@contextmanager
def _run_directory(session: Session, config: RunConfig) -> Iterator[RunLock | None]:
    """Make and lock the run directory, on rank 0."""
    directory = config.run_directory

    @_writing(directory)
    def hold() -> RunLock:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _tell_who_may_enter(directory)
        return RunLock(directory)

    @_writing(directory)
    def begin() -> None:
        check_files(directory)
        replace_text(directory / CONFIG, dump_config(config))
        (directory / RANKS).unlink(missing_ok=True)  # processes of an earlier life

    together, leads = session.control.together, session.world.rank == 0
    lock = together(lambda: hold() if leads else None)
    with lock or nullcontext():
        together(lambda: begin() if leads else None)
        yield lock


def _tell_who_may_enter(directory: Path) -> None:
    """Warn if the run directory is open to more users than the site profile's umask allows."""
    closed = 0o077
    if ATTEMPT in os.environ:  # the batch script has set the profile's umask
        umask = os.umask(closed)
        os.umask(umask)
        closed &= umask
    mode = directory.stat().st_mode & 0o777
    if mode & closed:
        _logger.warning(
            "other users may enter %s, which has prompts and responses in it; `chmod %o %s` closes "
            "it",
            directory,
            mode & ~closed,
            directory,
        )


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError that names the run directory."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"run.directory: cannot write {directory}: {error}") from error


def _be_watched(session: Session, config: RunConfig) -> None:
    """Enable stack dumps, post-mortem, `attach` and `breakpoint()` through the run directory."""

    @_writing(config.run_directory)
    def listen() -> None:
        write_stacks_on_signal(config.run_directory, session.world.rank)

    session.control.together(listen)
    if config.runtime.post_mortem:
        world = session.world
        session.reporter.post_mortem = PostMortem(config.run_directory, world.rank, world.size)
    session.watchdog.write_into(config.run_directory)
    session.watchdog.errands.append(Attachments(session.world, config.run_directory).look)
    timeout_s = config.runtime.collective_timeout_s
    Breakpoints(session.world, config.run_directory, timeout_s).install()
