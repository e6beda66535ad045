"""verl_hpc: LLM reinforcement-learning post-training as one MPI program under Slurm.

Importing the package costs no torch, numpy or MPI: the names that tutorials of verl teach
(docs/python_api.md) are imported when they are first used.
"""

from verl_hpc.package import VERSION
from verl_hpc.tutorial_names import MODULES, lazy_names

__version__ = VERSION
__getattr__, __dir__ = lazy_names(__name__, *MODULES)
