"""Start a run from a configuration: start its ranks, or be one of them, and train.

This module is imported before MPI and torch, and imports neither.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from verl_hpc.config.run import RunConfig
from verl_hpc.config.trackers import check_trackers
from verl_hpc.errors import LaunchError, VerlHpcError
from verl_hpc.migration.translate import Migration, told_together
from verl_hpc.runs.contract import ATTEMPT, OUTCOME, RESTART
from verl_hpc.runtime import environment
from verl_hpc.runtime.device import nodes_are_without_gpus
from verl_hpc.runtime.garbage import pause_collection
from verl_hpc.runtime.log_lines import stamp_output
from verl_hpc.runtime.startup import announce
from verl_hpc.runtime.stop import Signals
from verl_hpc.runtime.supervise import Note, supervised
from verl_hpc.runtime.threads import end_within

if TYPE_CHECKING:
    from verl_hpc.runtime.bootstrap import Kind
    from verl_hpc.runtime.world import DeviceChoice
    from verl_hpc.trainer.records import Result

Loaded: TypeAlias = tuple[RunConfig, int | None]
"""A run's configuration, and the number of ranks it requires, if any."""


def run_config(
    load: Callable[[], Loaded], bootstrap: Kind = "mpi", ranks: int | None = None
) -> int:
    """Train, as one of the ranks that a launcher started, or on `ranks` started here.

    Args:
        load: reads the configuration, and the number of ranks it requires, if any.
        bootstrap: how ranks find each other.
        ranks: number of ranks to start on the CPUs of this machine; None starts ranks only if
            `load` requires several and no launcher has started this process.

    Returns:
        The exit status.
    """
    environment.fix_hash_seed()
    signals = Signals()
    signals.listen()
    try:
        config, wanted = load()
        check_trackers(config.metrics)
        ranks = _ranks_to_start(ranks, wanted)
    except VerlHpcError:
        # Every rank reads the same file and has the same packages; one complaining is enough.
        if environment.launcher_rank() == 0:
            raise
        return 1
    if ranks is not None and (ended := _fork_ranks(config, bootstrap, ranks)) is not None:
        return ended
    on_cores = ranks is not None or nodes_are_without_gpus()
    device: DeviceChoice = "cpu" if on_cores else config.runtime.device
    status = 1
    try:
        with supervised(config.run_directory) as note:
            stamp_output()
            if environment.launcher_rank() == 0:
                announce("start MPI and torch", config.metrics.terminal)
            status = _train(config, device, bootstrap, signals, note)
    finally:
        end_within(status)
    return status


def tell_notes(found: Migration) -> None:
    """Print the notes on converted keys, on one rank."""
    if environment.launcher_rank() == 0:
        for text in told_together(found.notes.items()):
            print(f"verl_hpc: {text}", file=sys.stderr)


def _ranks_to_start(ranks: int | None, wanted: int | None) -> int | None:
    """Raises: LaunchError: the number of ranks differs from what the configuration requires."""
    if wanted is None:
        return ranks
    if ranks is None and not environment.is_launched():
        return wanted if wanted > 1 else None
    there = ranks or environment.launcher_size()
    if there not in (None, wanted):
        raise LaunchError(
            f"the configuration is for {wanted} ranks (trainer.nnodes x trainer.n_gpus_per_node, "
            f"or engine.num_gpus), and there are {there}; start {wanted}, or change these keys"
        )
    return ranks


def _fork_ranks(config: RunConfig, bootstrap: Kind, ranks: int) -> int | None:
    if bootstrap != "mpi":
        raise LaunchError("--ranks starts ranks that find each other by MPI; leave --bootstrap out")
    from verl_hpc.trainer.forked import fork_ranks

    return fork_ranks(config, ranks)


def _train(
    config: RunConfig, device: DeviceChoice, bootstrap: Kind, signals: Signals, note: Note
) -> int:
    from verl_hpc.runtime.binding import report_binding
    from verl_hpc.runtime.session import session

    if config.generates and any(c.function == "code" for c in config.reward_calls.values()):
        from verl_hpc.rewards.sandbox.sandbox import start_helper

        start_helper()
    if config.rollout.environment is not None:
        from verl_hpc.environments.processes import start_environments

        start_environments(config.rollout.environment)
    if config.rollout.program is not None:
        from verl_hpc.agents.programs import start_programs

        start_programs(config.rollout.program.image)
    if config.generates and config.runtime.reward_processes != 0:
        from verl_hpc.rewards.workers import calls_ahead, start_workers

        if calls := calls_ahead(config):
            start_workers(calls)
    pause_collection()
    settings = config.runtime
    with session(
        collective_timeout_s=settings.collective_timeout_s,
        late_after_s=settings.late_after_s,
        threads_per_rank=settings.threads_per_rank,
        device=device,
        bootstrap=bootstrap,
        note=note,
    ) as here:
        report_binding(here)
        if here.world.rank == 0:
            announce("import the engines", config.metrics.terminal)
        # Only now: libraries read the environment, which the session sets, when they are imported.
        from verl_hpc.trainer.train import train

        result = train(here, config, signals)
        # The first rank to go may make srun end the others, whose status would be another then.
        signals.ignore()
        if here.world.rank == 0:
            _tell(result)
    here.job.leave()
    return RESTART if result.outcome == "restart" else 0


def _tell(result: Result) -> None:
    """Report how the run ended, to people and to the batch script."""
    if result.reason:
        step = result.progress.step
        where = f"after step {step}, which is saved" if step else "before the first step"
        print(f"verl_hpc: left {where}: {result.reason}", flush=True)
    if attempt := os.environ.get(ATTEMPT):
        Path(attempt, OUTCOME).write_text(f"{result.outcome}\n", encoding="utf-8")
