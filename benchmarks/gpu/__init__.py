"""The parts of gpu_smoke, one a file."""
