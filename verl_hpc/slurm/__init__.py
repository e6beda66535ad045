"""Slurm's programs as functions, and its notation."""
