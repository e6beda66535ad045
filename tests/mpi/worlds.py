"""`python -m tests.mpi.worlds N [N ...] [pytest options]`: the MPI tier, one world after another.

What a rank imports costs more than most tests, so one process imports it once, and ranks are forks
of that process (`runtime.forked_ranks`). MPI starts in the fork.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from verl_hpc.layout.families import FAMILIES
from verl_hpc.runtime import environment
from verl_hpc.runtime.forked_ranks import start_ranks
from verl_hpc.runtime.garbage import pause_collection, resume_collection

SCRATCH = "VERL_HPC_TESTS_SCRATCH"
"""The environment variable that says where ranks have their directory."""
ENOUGH_BYTES = 4 << 30
OF_ENGINES = [
    f"vllm.{name}"
    for name in (
        "model_executor.model_loader",
        "model_executor.layers.quantization.online.base",
        "distributed.device_communicators.cpu_communicator",
        "distributed.elastic_ep.elastic_execute",
        "entrypoints.launchers.cli_args",
        "v1.attention.backends.cpu_attn",
        "v1.core.sched.scheduler",
    )
]
"""What vLLM imports as an engine is built."""
OF_RUNS = [
    "reasoning_gym",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen2", "qwen3")),
]
"""What most runs read, and what they are held against."""


def main() -> None:
    """Ends with the status of the first world that fails, or 0."""
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()]
    sys.argv[1:] = [word for word in sys.argv[1:] if not word.isdigit()]
    import_what_ranks_need()
    for size in sizes:
        print(f"== {size} ranks", flush=True)
        # Made and removed here, so that it goes with ranks that abort, too.
        os.environ[SCRATCH] = scratch = tempfile.mkdtemp(prefix="verl_hpc_tests_", dir=in_memory())
        status = start_ranks(size)
        if status is None:
            # Not at the top: numpy starts threads unless the environment is prepared before.
            from tests.mpi.__main__ import main as run_tests

            run_tests()
            return
        shutil.rmtree(scratch, ignore_errors=True)
        if status:
            sys.exit(status)


def in_memory() -> Path | None:
    """Where files are in memory, if there is enough of it: the hundreds of steps that tests save
    would each wait for the disk."""
    found = Path("/dev/shm")
    return found if found.is_dir() and shutil.disk_usage(found).free > ENOUGH_BYTES else None


def import_what_ranks_need() -> None:
    """All but mpi4py, whose import starts MPI; without threads, which do not survive a fork."""
    environment.prepare_environment(threads=1, sharers=1)
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    pause_collection()
    import hypothesis  # noqa: F401

    import tests.mpi.__main__  # noqa: F401
    import verl_hpc.engines.fsdp.engine
    import verl_hpc.engines.megatron.engine
    import verl_hpc.rollout.hf
    import verl_hpc.testing.tiny
    import verl_hpc.trainer.train  # noqa: F401
    from verl_hpc.rollout.vllm import import_model, import_worker

    import_worker("cpu")
    for family in FAMILIES:
        import_model(family)
    for name in (*OF_ENGINES, *OF_RUNS):
        importlib.import_module(name)
    resume_collection()


if __name__ == "__main__":
    main()
