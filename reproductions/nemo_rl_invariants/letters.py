"""A reward that random weights earn a part of, so that every recipe has a gradient."""


def score(response: str, ground_truth: str) -> float:
    """Return the share of letters that are right at their place."""
    right = sum(a == b for a, b in zip(response.strip(), ground_truth, strict=False))
    return right / len(ground_truth)
