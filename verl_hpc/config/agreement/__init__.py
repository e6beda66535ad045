"""Checks between the sections of a run, made once all are read."""
