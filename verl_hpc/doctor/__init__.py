"""Checks of a cluster before a run waits for it, from a login node."""
