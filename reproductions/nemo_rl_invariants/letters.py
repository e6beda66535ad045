"""A reward that random weights earn a part of, so that every recipe has a gradient."""


def score(response: str, _: str) -> float:
    """Return the share of small letters among the characters of a response."""
    return sum("a" <= character <= "z" for character in response) / max(len(response), 1)
