"""`python -m verl_hpc.cli.dashboard`, which is the verb dashboard."""

from verl_hpc.cli.main import run_verb

run_verb("dashboard")
