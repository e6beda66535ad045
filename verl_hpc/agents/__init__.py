"""Programs that speak to a model endpoint, one for each sample, in sandboxes on the rank's node."""
