"""Published results of other programs as cases: what to run, what it must give, and what it gave."""
