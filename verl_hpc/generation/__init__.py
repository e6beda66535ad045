"""Responses of a step: prompts are distributed to engines, answered and scored."""
