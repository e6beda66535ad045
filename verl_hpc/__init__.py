"""verl_hpc: LLM reinforcement-learning post-training as one MPI program under Slurm.

Importing the package costs no torch, numpy or MPI.
"""

__version__ = "0.1.0"
