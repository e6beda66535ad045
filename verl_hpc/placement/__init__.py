"""Where roles stand and how work is dealt out: facts of a run that training and planning share."""
