"""Our side of `first_rollout_vs_ray`: what `verl_hpc train` does until its first rollout is done.

usage: python -m benchmarks.first_rollout CONFIG.yaml RESULT.json RANKS
       mpiexec -n 4 python -m benchmarks.first_rollout CONFIG.yaml RESULT.json
       mpiexec -n 4 python -m benchmarks.first_rollout bare RESULT.json

The first is `train --ranks`, whose ranks are forks of one process.

Rank 0 writes the Unix time at the end of every stage.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_hpc.runtime import environment
from verl_hpc.runtime.garbage import pause_collection, resume_collection

_ends: dict[str, float] = {}


def main() -> None:
    """Command line of this module."""
    what, out, *ranks = sys.argv[1:]
    if what == "bare":
        _mark("interpreter")
        _meet()
    else:
        environment.fix_hash_seed()
        _mark("interpreter")
        if ranks and (status := _fork_ranks(what, int(ranks[0]))) is not None:
            sys.exit(status)
        _first_rollout(what)
    if environment.launcher_rank() == 0:
        Path(out).write_text(json.dumps(_ends))


def _mark(stage: str) -> None:
    _ends[stage] = time.time()


def _meet() -> None:
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    _mark("world")


def _fork_ranks(path: str, num_ranks: int) -> int | None:
    from verl_hpc.config.load import load_config
    from verl_hpc.trainer.forked import fork_ranks

    status = fork_ranks(load_config(path), num_ranks)
    _mark("imports, once")
    return status


def _first_rollout(path: str) -> None:
    from verl_hpc.config.load import load_config
    from verl_hpc.runtime.session import session

    config = load_config(path)
    pause_collection()
    with session(late_after_s=600.0) as here:
        _mark("torch and world")
        from verl_hpc.generation.generate import generate
        from verl_hpc.step.batch import StepRows
        from verl_hpc.trainer import build, build_roles

        _mark("Megatron and transformers imported")
        build_roles.build_rollout_engine = _between(
            "training engine", build_roles.build_rollout_engine
        )
        run = build.build_run(here, config)
        resume_collection()
        _mark("vLLM imported, its engine")
        assert run.sync is not None and run.rollout is not None
        run.sync.to_generation()
        _mark("weights to vLLM")
        rows = StepRows(1, range(config.batch.size))
        (samples, _), _ = generate(run.rollout.place, run.rollout, run.settings.generate, rows)
        here.control.barrier()
        _mark("first generation")
        assert {s.response_length for s in samples} == {config.rollout.max_response_tokens}


def _between(stage: str, build: Callable[..., Any]) -> Callable[..., Any]:
    """`build`, which marks the end of what came before it."""

    def marked(*arguments: Any) -> Any:
        _mark(stage)
        return build(*arguments)

    return marked


if __name__ == "__main__":
    main()
