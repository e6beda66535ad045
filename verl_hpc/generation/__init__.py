"""Responses of a step: prompts are dealt to engines, answered and scored."""
