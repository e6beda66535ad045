"""transformers' own models, of families without a layer table, and the tensors of their files."""
