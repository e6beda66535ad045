"""Programs that speak to the model through an endpoint of their node."""
