"""From a run's configuration and a site profile to a Slurm job. Importable on a login node."""
