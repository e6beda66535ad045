"""A virtual Slurm cluster: real daemons, several nodes, one machine, no installation needed.

For tests of whatever needs a scheduler, and for trying a submission before the real queue. See
docs/slurm_lab.md.
"""

from verl_hpc.testing.slurm_lab.lab import Lab, missing
from verl_hpc.testing.slurm_lab.settings import LabSettings

__all__ = ["Lab", "LabSettings", "missing"]
