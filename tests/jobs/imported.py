"""Importing this imports what ranks of the jobs' tests need, as `trainer.forked` does it."""

from verl_hpc.runtime import environment
from verl_hpc.runtime.garbage import pause_collection, resume_collection

environment.prepare_environment(threads=1, sharers=1)
environment.choose_compiler("cpu")
pause_collection()

import verl_hpc.cli.train  # noqa: E402
import verl_hpc.trainer.train  # noqa: E402, F401
from verl_hpc.engines import factory as engines  # noqa: E402
from verl_hpc.rollout import factory as rollouts  # noqa: E402

engines.import_engine()
for name in ("hf", "vllm"):
    rollouts.import_engine(name, "cpu")
resume_collection()
