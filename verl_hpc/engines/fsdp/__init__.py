"""transformers models whose parameters fully_shard divides between ranks, as training engine."""
