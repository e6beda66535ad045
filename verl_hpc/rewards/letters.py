"""Which of several lettered answers a response gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from verl_hpc.boxed import box_spans
from verl_hpc.rewards.denials import denied_after, denied_before, denies
from verl_hpc.rewards.thinking import answering_parts

_GAP = (
    r"[\s$*_`]{0,8}(?:\\[(\[])?(?:\\(?:text|mathrm|mathbf|textbf)\{)?[\s(\[{*`\"\u201c\u2018]{0,8}"
)
"""What may stand between a cue and the letter."""
_LETTER = r"(?<![\w\\'])(?P<letter>[A-Za-z0-9])(?![\w'\u2019]|\.\d|[-+=^/]\S|\s*=)"
_FILLER = (
    r"(?:[*_`]*\s{0,4}[:=\u2013\u2014\u2192>-]+|\s{1,4}(?:is|be|to|seems?|must|should|would|will|"
    r"likely|most|probably|obviously|clearly|therefore|thus|definitely|simply|option|choice|"
    r"letter|it|I (?:think|believe)|that|the|correct|best|right)(?![\w'\u2019]))"
)
_CUE = (
    r"(?i:\bans(?:wer)?(?![\w'\u2019])(?:\s(?:choice|option|letter|to\s(?:the|this)\s\w{1,20}))?"
    rf"{_FILLER}{{0,8}}{_GAP})"
)
_ANSWERS = re.compile(_CUE + _LETTER)
"""The answer is B; Answer: B."""
_CHOSEN = re.compile(
    r"(?i:\b(?:so|thus|therefore|hence|leaving|leaves|choose|choosing|pick|select|go with|"
    r"(?<=\bi )would say|(?<=\bi')d say|"
    rf"(?:option|choice)\s+is|(?:correct|best|right)\s+(?:option|choice))(?![\w'\u2019]),?"
    rf"{_FILLER}{{0,4}}{_GAP})(?P<letter>[A-Z0-9])"
    r"(?=[)\]}*$.]{0,6}\s*(?:$|[.,;!\u2014\u2013]|(?:because|since|as)\b))",
    re.MULTILINE,
)
"""So (B). I would pick B."""
_PRAISED = re.compile(
    r"(?<![\w'\u2019])\(?(?P<letter>[A-Z0-9])\)?\**\s{1,4}is\s{1,4}(?:clearly |therefore |thus )?"
    r"(?:the\s{1,4})?(?:correct|right|best|answer)\b"
    r"(?!\s+(?:only|if|when|where|unless|under)\b|\s+(?:for|in)\s(?!this|the|our)\w)"
)
"""B is correct."""
_ENDS = (
    r"(?=[)\]}*_`\"$]{0,6}\s*(?:$|[;!]|[.,:](?!\d)|\((?i:not)\b|(?i:because|since|as|which)\b))"
    r"(?![)\]}*_`\"$]{0,6},?\s*(?i:or|and)\b)"
)
"""A clause ends, and names no second answer."""
_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
_IN_PARENTHESES = re.compile(r"\(\s{0,4}([A-Z0-9])\s{0,4}\)")
_BARE = re.compile(r"[\s*_`$(\[]{0,8}([A-Za-z0-9])[\s*_`$)\].:]{0,8}")
_LABEL = re.compile(r"[\s*_`$(\[]{0,8}([A-Za-z0-9])[*_`$]{0,4}[.:)\]]\s")
_LEADING = re.compile(
    r"(?:the\s)?(?:(?:correct|best|right|final)\s)?(?:answer|option|choice)(?:\sis)?:?\s+", re.I
)
_WRAPPING = re.compile(r"\\(?:text|mathrm|mathbf|textbf|bf|rm|quad)\b\s*|[{}$*_`]")

_MORE = re.compile(
    r"[)\]}*]*[ \t]*(?:[,;/&+]|(?i:\bor\b|\band\b)|(?=\([A-Z]\)))\s*(?:(?i:option|choice)\s+)?"
    r"[(*\[]*[A-HJ-Z0-9b-hj-z]\b(?!['\u2019])"
)
"""A second letter follows: 'A or B' chooses neither."""
_SECOND = re.compile(rf"(?:{_MORE.pattern})|(?:\bor\b|\band\b|[,;])\s*\(?[A-J][.:)]\s")
"""Further on, too: 'A. Paris, B. Rome'."""
_AFTER_A_WORD = re.compile(
    r"[ \t]+(?!(?:because|since|as|is|but|not|which|due|rather|instead|would|must|with|and|or|in|"
    r"for|while|so|if|by|from|on|at|given|though|although|when|where|we|it|this|that)\b)[A-Za-z]"
)
"""'A prime number', 'I think': a word and not a letter."""
_LONGEST_BOX = 1000


def extract_letter(response: str, choices: Mapping[str, str]) -> str | None:
    r"""The letter that a response answers, or None.

    The last box or <answer> that holds a letter or the text of a choice. Without one, the last
    sentence such as 'the answer is B', 'the answer is Rome', 'so (B)' or 'B is correct' that is
    neither denied nor a condition. Without one, the only letter in parentheses of the last sentence
    that has any. Without one, a letter or the text of a choice that is the whole response, a first
    line such as 'B. Rome', or a letter that is the first or the last line. An article is no letter,
    and who names two letters has chosen none. A last box that is not closed is an answer that was
    cut off: none. What stands behind </think> counts before what stands in front of it.

    Args:
        response: of the model.
        choices: texts of the answers by letter; empty texts where they are not known.
    """
    parts = answering_parts(response)
    return next(filter(None, (_letter(part, choices) for part in parts)), None)


def _letter(response: str, choices: Mapping[str, str]) -> str | None:
    marked = _marked(response)
    if marked is None:
        return None
    for content in marked:
        if (letter := letter_of(content, choices)) is not None:
            return letter
    # "Answer: D. Statement A is correct." answers D.
    named = [*_stated_words(response, choices)]
    for patterns in ((_ANSWERS, _CHOSEN), (_PRAISED,)):
        if found := [*_stated(response, choices, patterns), *named]:
            return max(found)[1]
    return _in_parentheses(response, choices) or _alone(response, choices)


def letter_of(text: str, choices: Mapping[str, str]) -> str | None:
    """The letter that a short text is, labels or names by the words of its choice, or None."""
    plain = _WRAPPING.sub("", re.sub(r"\\[ ,;]|~", " ", text))
    plain = _LEADING.sub("", " ".join(plain.split()), count=1)
    bare = _BARE.fullmatch(plain)
    if bare and _known(bare[1], choices):
        return _known(bare[1], choices)
    letter = letter_of_words(text, choices) or letter_of_words(plain, choices)
    labelled = _LABEL.match(plain)
    if letter is None and labelled and not _SECOND.search(plain, labelled.end(1)):
        letter = _known(labelled[1], choices)
        other = letter_of_words(plain[labelled.end() :], choices)
        return letter if other in (None, letter) else None
    return letter


def letter_of_words(text: str, choices: Mapping[str, str]) -> str | None:
    """The letter of the only choice with these words."""
    plain = _words(text)
    same = [letter for letter, choice in choices.items() if plain and _words(choice) == plain]
    return same[0] if len(same) == 1 else None


def _words(text: str) -> str:
    return " ".join(text.split()).casefold()


def _known(letter: str, choices: Mapping[str, str]) -> str | None:
    return letter.upper() if letter.upper() in choices else None


def _marked(response: str) -> list[str] | None:
    """What is boxed or tagged, the last one first; None if the last box is not closed."""
    spans = box_spans(response) + [found.span(1) for found in _TAG.finditer(response)]
    spans.sort(reverse=True)
    if spans and spans[0][1] is None:
        return None
    return [response[a:b] for a, b in spans if b is not None and b - a <= _LONGEST_BOX]


def _stated(
    response: str, choices: Mapping[str, str], patterns: Sequence[re.Pattern[str]]
) -> Iterator[tuple[int, str]]:
    """Letters that sentences give as the answer, with their places."""
    for pattern in patterns:
        for found in pattern.finditer(response):
            letter, place = found["letter"], found.end("letter")
            if (
                _known(letter, choices)
                and not (letter in "AaIi" and _AFTER_A_WORD.match(response, place))
                and not _MORE.match(response, place)
                and not denied_before(response, found.start())
                and not denied_after(response, place)
            ):
                yield place, letter.upper()


def _stated_words(response: str, choices: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Letters whose words sentences give as the answer, with their places."""
    for found in _named(tuple(choices.values())).finditer(response):
        place = found.end("words")
        denied = denied_before(response, found.start()) or denied_after(response, place)
        if (said := letter_of_words(found["words"], choices)) and not denied:
            yield place, said


@lru_cache(maxsize=128)
def _named(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Matches 'The answer is' with the words of a choice: The answer is Rome."""
    longest_first = sorted((text.split() for text in texts), key=len, reverse=True)
    words = "|".join(r"\s+".join(map(re.escape, text)) for text in longest_first if text)
    one = f"(?i:{words or '(?!)'})"
    second = rf"(?![^\w\n.;!]{{0,8}}{one}\b)"  # in the same sentence
    return re.compile(rf"{_CUE}(?<![-\u2212])(?P<words>{one}){_ENDS}{second}", re.MULTILINE)


def _in_parentheses(response: str, choices: Mapping[str, str]) -> str | None:
    for sentence in reversed(re.split(r"[.!?](?=\s)|\n", response)):
        letters = set(_IN_PARENTHESES.findall(sentence)) & set(choices)
        if letters and not denies(sentence):
            return letters.pop() if len(letters) == 1 else None
    return None


def _alone(response: str, choices: Mapping[str, str]) -> str | None:
    lines = [line for line in response.splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0]) <= _LONGEST_BOX:
        return letter_of(lines[0], choices)
    labels = [found for line in lines if (found := _LABEL.match(line))]
    if len(labels) == 1 and labels[0].string == lines[0]:
        words = letter_of_words(lines[0][labels[0].end() :].strip("*. "), choices)
        if words == labels[0][1]:
            return words
    for line in [*lines[-1:], *lines[:1]]:
        if (found := _BARE.fullmatch(line)) and found[1].isupper():
            return _known(found[1], choices)
    return None
