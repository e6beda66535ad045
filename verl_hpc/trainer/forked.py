"""CPU ranks of one machine, forked from a process that has imported what a run needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError, LaunchError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.placement.layouts import place_roles
from verl_hpc.placement.model_checks import check_heads_on_cpus
from verl_hpc.runtime import environment
from verl_hpc.runtime.forked_ranks import check_alone, check_size, start_ranks
from verl_hpc.runtime.garbage import pause_collection, spare_what_exists
from verl_hpc.sources.local import local_directory


def fork_ranks(config: RunConfig, size: int) -> int | None:
    """Import what ranks of the run do, and become `size` of them.

    Returns:
        In the process that called it the status of all ranks, once they have ended; None in each
        rank.

    Raises:
        ConfigError: the run cannot be laid out on so many ranks, or its engine cannot serve the
            model on CPUs.
        ModelError: the model is of a family that is not mapped.
        LaunchError: they are too many for this machine, a launcher has started this process, there
            is none to start ranks with, or the packages are those for GPUs.
    """
    check_alone()
    check_size(size)
    _check_layout(config, size)
    _check_heads(config)
    return _fork(size, lambda: _import_for(config))


def fork_plain_ranks(size: int) -> int | None:
    """The same for ranks that need no more than torch; raises as `fork_ranks`."""
    check_alone()
    check_size(size)
    return _fork(size, lambda: None)


def _fork(size: int, import_all: Callable[[], object]) -> int | None:
    # One thread until the ranks are there: a fork has no others. A rank then sets its own number.
    environment.prepare_environment(threads=1, sharers=size)
    environment.choose_compiler("cpu")
    pause_collection()
    import torch

    if torch.backends.cuda.is_built():
        raise LaunchError(
            "--ranks forks CPU ranks, and this torch is built for GPUs, whose libraries do not "
            "survive a fork; leave --ranks out and start with mpiexec or srun"
        )
    import_all()
    spare_what_exists()
    return start_ranks(size)


def _check_layout(config: RunConfig, size: int) -> None:
    try:
        place_roles(config, size, size)
    except ConfigError as error:
        raise ConfigError(f"--ranks {size}: {error}") from None


def _check_heads(config: RunConfig) -> None:
    """Look at a model whose config.json can be read here; ranks look at all others."""
    first = next(iter(config.role_settings.values()))
    model = Path(local_directory(first.model.path))
    if (model / "config.json").is_file():
        check_heads_on_cpus(config, read_architecture(model))


def _import_for(config: RunConfig) -> None:
    """In the order in which a rank comes to need them: libraries patch one another."""
    import verl_hpc.trainer.train  # noqa: F401
    from verl_hpc.engines import factory as engines
    from verl_hpc.rollout import factory as rollouts

    engines.import_engine()
    if config.generates:
        rollouts.import_engine(config.rollout.engine, "cpu")
