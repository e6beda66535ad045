"""verifiers' reward of reverse-text: likeness of an answer to the prompt, read backwards.

The likeness is the ratio of Python's difflib.SequenceMatcher between the reversed text and what
stands between the tags <reversed_text>; an answer without them earns nothing.
"""

import re
from difflib import SequenceMatcher


def score(solution_str, prompt):
    """Score an answer to the last message of a prompt."""
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    match = re.search(r"<reversed_text>(.*?)</reversed_text>", solution_str, re.DOTALL)
    return SequenceMatcher(None, match[1].strip(), text[::-1]).ratio() if match else 0.0
