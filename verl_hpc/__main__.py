"""`python -m verl_hpc VERB ...`."""

import sys

from verl_hpc.cli.main import main

sys.exit(main())
