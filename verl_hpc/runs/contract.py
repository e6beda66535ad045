"""What the batch script, on the host, and the ranks have agreed on."""

ATTEMPT = "VERL_HPC_ATTEMPT"
"""Variable of script and ranks: the directory of this start's logs."""

OUTCOME = "job/outcome"
"""File of a run directory: rank 0's last word, which makes status 0 of the ranks a success."""

RESTART = 85
"""A rank's exit status: state is saved and the run is not finished, start the job again.

Every rank must exit with it, and must ignore SIGTERM from the moment it has saved: the first rank
that exits makes `srun --kill-on-bad-exit=1` send TERM to the others, and one that dies of it turns
the step's status from 85 into 143. Above 64 to 78, which programs use, and below 126, the shell's.
"""
