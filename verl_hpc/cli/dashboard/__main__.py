"""Run the verb dashboard as `python -m verl_hpc.cli.dashboard`."""

from verl_hpc.cli.main import run_verb

run_verb("dashboard")
