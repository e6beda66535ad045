"""What both engines on process groups use; it knows neither of them, nor Megatron-core."""
