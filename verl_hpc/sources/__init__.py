"""Sources of models: names on a hub, their directories in its cache on disk, and downloads."""
