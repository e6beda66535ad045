"""`python -m tests.dry_gpu [pytest options]`: the CUDA path on a GPU that is not there."""

import os
import sys

from tests.dry_gpu import guard


def main() -> None:
    guard.load()
    import_everything()
    import pytest

    options = sys.argv[1:]
    if not any(word.startswith("tests/") for word in options):
        options.append("tests/dry_gpu")
    sys.exit(pytest.main([*options, "-p", "tests.dry_gpu.plugin", "-p", "no:xdist"]))


def import_everything() -> None:
    """Once, and not in every test; without threads, which do not survive a fork."""
    from verl_hpc.runtime import environment
    from verl_hpc.runtime.garbage import pause_collection, resume_collection

    environment.prepare_environment(threads=1, sharers=1)
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # nobody listens there
    pause_collection()
    from tests.dry_gpu import te_python, torch_cuda, vllm_cuda

    torch_cuda.pretend()
    te_python.install(guard.DIRECTORY)
    vllm_cuda.install()
    import verl_hpc.engines.fsdp.engine
    import verl_hpc.engines.megatron.engine
    import verl_hpc.rollout.hf  # noqa: F401
    from verl_hpc.rollout.vllm import import_model, import_worker

    import_worker("cuda")
    for family in ("llama", "qwen3", "qwen3_moe"):
        import_model(family)

    resume_collection()


if __name__ == "__main__":
    main()
