"""verl's own end-to-end test of PPO, digit completion, with its data, weights and settings."""
