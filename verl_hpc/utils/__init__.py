"""Where verl's tutorials import helpers from."""
