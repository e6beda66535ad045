"""What the sections of a run ask of each other, checked once all are read."""
