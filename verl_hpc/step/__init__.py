"""One training step: its data, how they move between placements, and its operators."""
