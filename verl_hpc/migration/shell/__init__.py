"""Scripts that start verl: read as bash reads them, never run."""
