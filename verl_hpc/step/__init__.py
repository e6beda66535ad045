"""One step of training: its data, their way between placements, and the operators that compute."""
