"""Records of a run under way, read and written by its ranks and by login nodes alike."""
