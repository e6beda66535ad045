"""Placement of roles on ranks and balance of work among them, for training and planning alike."""
