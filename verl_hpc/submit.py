"""`python -m verl_hpc.submit ...`, which is the verb submit: see verl_hpc/cli/submit.py."""

import sys

from verl_hpc.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["submit", *sys.argv[1:]]))
