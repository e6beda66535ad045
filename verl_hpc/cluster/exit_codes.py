"""What a rank's exit status tells the batch script, which runs on the host."""

RESTART = 85
"""State is saved and the run is not finished: start the job again.

Every rank must exit with it, and must ignore SIGTERM from the moment it has saved: the first rank
that exits makes `srun --kill-on-bad-exit=1` send TERM to the others, and one that dies of it turns
the step's status from 85 into 143. Above 64 to 78, which programs use, and below 126, the shell's.
"""
