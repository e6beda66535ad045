"""From verl's keys to ours: one table, and what reads by it."""
