"""Code shared by both distributed engines; it imports neither of them, nor Megatron-core."""
