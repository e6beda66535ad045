"""Fork CPU ranks on one machine from a process that has imported a run's libraries."""

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
    """Import the run's libraries, then fork `size` ranks.

    Returns:
        In the calling process the ranks' exit status, once they have ended; None in each rank.

    Raises:
        ConfigError: the run does not fit on `size` ranks, or its engine does not support the model
            on CPUs.
        ModelError: the model's family is not supported.
        LaunchError: there are too many ranks for this machine, a launcher has started this process,
            no launcher is available, or the packages are built for GPUs.
    """
    check_alone()
    check_size(size)
    _check_layout(config, size)
    _check_heads(config)
    return _fork(size, lambda: _import_for(config))


def fork_plain_ranks(size: int) -> int | None:
    """Fork ranks that need only torch; see `fork_ranks` for errors."""
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
    """Check a model whose config.json can be read here; ranks check all others."""
    first = next(iter(config.role_settings.values()))
    model = Path(local_directory(first.model.path))
    if (model / "config.json").is_file():
        check_heads_on_cpus(config, read_architecture(model, first.parallel.engine))


def _import_for(config: RunConfig) -> None:
    """Import the libraries in the order in which a rank would, since they patch one another."""
    import verl_hpc.trainer.train  # noqa: F401
    from verl_hpc.engines import factory as engines
    from verl_hpc.rollout import factory as rollouts

    engines.import_engine()
    if config.generates:
        rollouts.import_engine(config.rollout.engine, "cpu")
