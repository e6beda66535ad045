"""Published results of other programs as cases: what to run, and what must come of it."""
