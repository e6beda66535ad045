"""Find the letter with which a response answers a multiple-choice question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from verl_hpc.boxed import box_spans
from verl_hpc.rewards.boxes import joined_boxes
from verl_hpc.rewards.denials import denied_after, denied_before, denies, taken_back
from verl_hpc.rewards.thinking import TAGGED, answering_parts

_GAP = (
    r"[\s$*_`\u2705\u2714\ufe0f]{0,8}(?:\\[(\[])?(?:\\(?:text|mathrm|mathbf|textbf)\{)?"
    r"[\s(\[{*`\"'\u201c\u2018]{0,8}(?:(?i:option|choice)\s[(*]{0,2})?"
)
"""Text that may stand between a cue and the letter."""
_LETTER = r"(?<![\w\\])(?<!\w')(?P<letter>[A-Za-z0-9])(?!\w|['\u2019]\w|\.\d|[-+=^/]\S|\s*=)"
_COLON = r"(?:[*_`]*\s{0,4}[:=\u2013\u2014\u2192\uff1a>-]+|[*_`]{0,3}[ \t]*\n+)"
"""A colon, an arrow, or the end of a line, as after a heading."""
_FILLER = (
    rf"(?:{_COLON}|\s{{1,4}}(?:is|be|to|seems?|must|should|would|will|"
    r"likely|most|probably|obviously|clearly|therefore|thus|definitely|simply|option|choice|"
    r"letter|it|I (?:think|believe)|that|the|correct|best|right)(?![\w'\u2019]))"
)
_NOUN = r"(?:option|choice|one)"
_AMONG = (
    r"(?:\s(?:here|(?:among|from|of|in|for)\s(?:the|these|this|all|my)(?:\s\w{1,20}){1,3}?)"
    r"(?=\s(?:is|must|should|would|seems)\b|\**:))?"
)
_CUE = (
    r"(?i:\b(?:(?:final_)?ans(?:wer)?(?![\w\u2019]|'\w)[\"']?"
    r"(?:\s(?:choice|option|letter|to\s(?:the|this)\s\w{1,20}))?|"
    rf"(?:correct|best|right)\s{_NOUN}|my\s(?:pick|choice|selection)){_AMONG}"
    # Something says that it is: 'Answer choice B' alone begins what is said of B.
    rf"(?:{_COLON}|(?:\s{{1,4}}\w{{2,12}}(?<=ly)|\s{{1,4}}thus)?"
    r"\s{1,4}(?:is|must|should|would|will|seems?|likely)(?![\w'\u2019]))"
    rf"{_FILLER}{{0,8}})"
)
_NOT_BUT = r"(?i:\s{1,4}not\s(?!only|just|merely)%s\sbut(?:\srather)?(?=\s))?"
_ANSWERS = re.compile(_CUE + _NOT_BUT % r"[(*]{0,3}[A-Z0-9][)*]{0,3}" + _GAP + _LETTER)
"""Matches 'The answer is B' and 'Answer: B'."""
_CHOSEN = re.compile(
    r"(?i:(?:\b(?:so|thus|therefore|hence|leaving|leaves|(?<=\bi )would say|(?<=\bi')d say|"
    rf"(?:option|choice)\s+is|(?:correct|best|right)\s+(?:option|choice))|"
    # I choose, we would go with, Pick; not you choose, or many who choose.
    r"(?:(?:^|[.!?:,;\n*]\s{0,4})(?:please )?|\b(?:i|we)(?:['\u2019](?:ll|d|m))?\s"
    r"(?:(?:will|would|should|must|am|are|have to|then|therefore|thus|going to|rather)\s){0,2})"
    r"(?:choos(?:e|ing)|pick|select|go(?:ing)? with))(?![\w'\u2019]),?"
    rf"{_FILLER}{{0,4}}{_GAP})(?P<letter>[A-Z0-9])"
    r"(?=[)\]}*$.]{0,6}\s*(?:$|[.,;!\u2014\u2013]|(?:because|since|as)\b))",
    re.MULTILINE,
)
"""Matches 'So (B)' and 'I would pick B'."""
_PRAISED = re.compile(
    r"(?<![\w'\u2019])(?<!atement )(?<!itamin )(?<!hile )(?<!hough )(?<!laim )"
    r"\(?(?P<letter>[A-Z0-9])\)?\**"
    r"\s{1,4}is\s{1,4}(?:clearly |therefore |thus )?"
    r"(?:the\s{1,4})?(?:correct|right|best|answer)\b(?:\s(?:answer|option|choice|one)\b)?"
    r"(?:\s(?:here|(?:for|to|in)\s(?:this|the|our)\s\w{1,20})\b)?"
    r"(?=[)*_`\"]{0,4}\s*(?:$|[.;!,:(\u2013\u2014]|"
    r"(?:because|since|so|and)\b|"
    r"as\s(?:it|this|that|they|there|we|he|she)\b|"
    r"as\s(?!an?\s|far\s|long\s)(?:[\w'-]{1,30}\s){1,4}(?:is|are|was|were|has|have|can|does)\b))"
    r"(?!,?\s(?:or|but|only)\b)",
    re.MULTILINE,
)
"""Matches 'B is correct' where the clause ends."""
_ENDS = (
    r"(?=[)\]}*_`\"$]{0,6}\s*(?:$|[;!]|</|[.,:](?!\d)|\((?i:not\b|[A-Z0-9]\))|"
    r"(?i:because|since|as|which|rather\sthan|instead\sof)\b))"
    r"(?![)\]}*_`\"$]{0,6},?\s*(?i:or|and)\b)"
)
"""Matches the end of a clause that names no second answer."""
_IN_PARENTHESES = re.compile(r"\(\s{0,4}([A-Z0-9])\s{0,4}\)")
_BARE = re.compile(r"[\s*_`$(\[]{0,8}([A-Za-z0-9])[\s*_`$)\].:]{0,8}")
_LABEL = re.compile(r"[\s*_`$(\[]{0,8}([A-Za-z0-9])[*_`$]{0,4}[.:)\]]\s")
_LABEL_ENDS = re.compile(r"(?<!\(\w)\) ")
_LEADING = re.compile(
    r"(?:the\s)?(?:(?:correct|best|right|final)\s)?(?:answer|option|choice)(?:\sis)?:?\s+", re.I
)
_WRAPPING = re.compile(r"\\(?:text|mathrm|mathbf|textbf|bf|rm|quad)\b\s*|[{}$*_`]")

_MORE = re.compile(
    r"[)\]}*\"]*[ \t]*(?:[,;/&+|]|-+>|\u2192|\(?(?i:\bor\b|\band\b|\bas well as\b)|(?=\([A-Z]\)))"
    r"\s*(?:(?i:or|and|maybe|perhaps|possibly|even|also|option|choice)\s+){0,4}"
    r"[(*\[\"]*[A-HJ-Z0-9b-hj-z]\b(?!['\u2019])"
)
"""Matches a second letter that follows: 'A or B' chooses neither."""
_SECOND = re.compile(rf"(?:{_MORE.pattern})|(?:\bor\b|\band\b|[,;]|(?<=\s))\s?\(?[A-J][.:)]\s")
"""Finds a second letter also further on: 'A. Paris, B. Rome'."""
_AFTER_A_WORD = re.compile(
    r"[ \t]+(?!(?:because|since|as|is|but|not|which|due|rather|instead|would|must|with|and|or|in|"
    r"for|while|so|if|by|from|on|at|given|though|although|when|where|we|it|this|that)\b)[A-Za-z]"
)
"""Matches a word after a word that looks like a letter: 'A prime number', 'I think'."""
_LETTER_BESIDE = re.compile(
    r"[)\]}*_`\"$]{0,6}[ \t,:(*\u2013\u2014-]{1,4}(?:which is |(?:option|choice) )?"
    r"[(*]{0,3}(?-i:([A-Z0-9]))(?=[)*\]]{0,4}\s*(?:$|[.,;!]))",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|$)", re.MULTILINE)
_LONGEST_BOX = 1000


def extract_letter(response: str, choices: Mapping[str, str]) -> str | None:
    r"""Return the letter with which a response answers, or None.

    The last box or <answer> that holds a letter or the text of a choice. Without one, the last
    sentence such as 'the answer is B', 'the answer is Rome', 'so (B)' or 'B is correct' that is
    neither denied nor a condition nor taken back. Without one, the only letter in parentheses of
    the last sentence that has any. Without one, a letter or the text of a choice that is the whole
    response, a first line such as 'B. Rome', or a letter that is the first or the last line. An
    article is no letter, and who names two letters has chosen none. A last box that is not closed
    is an answer that was cut off: none. Text after </think> counts before the text in front of it.

    Args:
        response: the model's response.
        choices: texts of the answers by letter; empty texts where they are not known.
    """
    parts = answering_parts(response)
    return next(filter(None, (_letter(part, choices) for part in parts)), None)


def _letter(response: str, choices: Mapping[str, str]) -> str | None:
    # A box or tag decides; then sentences; then a letter in parentheses or on its own.
    if (marked := _marked(response, choices)) is not None:
        return marked or None
    stated = [*_stated(response, choices, (_ANSWERS, _CHOSEN)), *_stated_words(response, choices)]
    praised = [*_stated(response, choices, (_PRAISED,))]
    if stated and (letter := max(stated)[1]):
        # "The answer is A. However, B is correct." answers neither.
        later = {other for place, other in praised if place > max(stated)[0]}
        return letter if later <= {letter, ""} else None
    if len({letter for _, letter in praised if letter}) > 1:
        return None
    if stated or praised:
        return max([*stated, *praised])[1] or None
    return _in_parentheses(response, choices) or _alone(response, choices)


def letter_of(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the letter that a short text is, begins with as a label, or names by its choice's
    words, or None."""
    plain = _WRAPPING.sub("", re.sub(r"\\[ ,;]|~", " ", text))
    plain = _LEADING.sub("", " ".join(plain.split()), count=1)
    if bare := _bare(plain, choices):
        return bare
    letter = letter_of_words(text, choices) or letter_of_words(plain, choices)
    labelled = _LABEL.match(plain)
    if letter is None and labelled:
        return _labelled(plain, labelled.end(1), _known(labelled[1], choices), choices)
    return letter


def _labelled(text: str, place: int, letter: str | None, choices: Mapping[str, str]) -> str | None:
    """Return the letter whose label ends at this place, unless the text after it speaks against
    it."""
    other, end = _words_beside(text, place, choices)
    other = other or _bare(text[place + 1 :], choices)
    denied = denied_after(text, end) or taken_back(text, end)
    return None if denied or other not in (None, letter) or _SECOND.search(text, end) else letter


def _bare(text: str, choices: Mapping[str, str]) -> str | None:
    match = _BARE.fullmatch(text)
    return _known(match[1], choices) if match else None


def letter_of_words(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the letter of the only choice with these words, or None."""
    plain = _words(text)
    same = [letter for letter, choice in choices.items() if plain and _words(choice) == plain]
    return same[0] if len(same) == 1 else None


def _words(text: str) -> str:
    return " ".join(text.split()).casefold()


def _known(letter: str, choices: Mapping[str, str]) -> str | None:
    return letter.upper() if letter.upper() in choices else None


def _marked(response: str, choices: Mapping[str, str]) -> str | None:
    """Return the last letter in a box or a tag; "" if the last box is not closed, or the letter is
    denied or one of two. None without a letter."""
    boxes = box_spans(response)
    spans = sorted([*boxes, *(match.span(1) for match in TAGGED.finditer(response))], reverse=True)
    if spans and spans[0][1] is None:
        return ""
    for start, end in spans:
        if end is None or (letter := _letter_in(response, (start, end), choices)) is None:
            continue
        if (start, end) not in boxes:
            return letter
        joined = joined_boxes(response, boxes, boxes.index((start, end)))
        return letter if {_letter_in(response, box, choices) for box in joined} == {letter} else ""
    return None


def _letter_in(response: str, span: tuple[int, int], choices: Mapping[str, str]) -> str | None:
    start, end = span
    return letter_of(response[start:end], choices) if end - start <= _LONGEST_BOX else None


def _stated(
    response: str, choices: Mapping[str, str], patterns: Sequence[re.Pattern[str]]
) -> Iterator[tuple[int, str]]:
    """Yield the letters that sentences give as the answer, with their places; "" for one taken
    back."""
    for pattern in patterns:
        for match in pattern.finditer(response):
            letter, place = match["letter"], match.end("letter")
            if (
                _known(letter, choices)
                and not (letter in "AaIi" and _AFTER_A_WORD.match(response, place))
                and not _MORE.match(response, place)
                and not denied_before(response, match.start())
                and not denied_after(response, match.end())
            ):
                other, end = _words_beside(response, place, choices)
                # In "B) No" the no is of the choice, whose words may be unknown.
                is_label = end == place and _LABEL_ENDS.match(response, place) is not None
                taken = not is_label and taken_back(response, end if end > place else match.end())
                is_clear = not taken and other in (None, letter.upper())
                yield place, letter.upper() if is_clear else ""


def _stated_words(response: str, choices: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the letters whose words sentences give, with their places; "" for one taken back."""
    for match in _named(tuple(choices.values())).finditer(response):
        place = match.end("words")
        denied = denied_before(response, match.start()) or denied_after(response, place)
        if (said := letter_of_words(match["words"], choices)) and not denied:
            beside = _LETTER_BESIDE.match(response, place)
            other = _known(beside[1], choices) if beside else None
            is_clear = other in (None, said) and not taken_back(response, place)
            yield place, said if is_clear else ""


def _words_beside(text: str, place: int, choices: Mapping[str, str]) -> tuple[str | None, int]:
    """Return the letter of the choice whose words stand right after a letter, and where they
    end."""
    match = _beside(tuple(choices.values())).match(text, place)
    return (letter_of_words(match["words"], choices), match.end()) if match else (None, place)


@lru_cache(maxsize=128)
def _beside(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Match the words of a choice after its label: the '. Rome' of 'B. Rome'."""
    return re.compile(
        rf"[)\]}}*_`\"$]{{0,6}}[ \t]*(?:[.,:;)(\u2013\u2014]|-(?!\d)){{0,2}}[ \t]*[*_($]{{0,3}}"
        rf"(?<!\w)(?P<words>{_any_of(texts)}){_ENDS}",
        re.MULTILINE,
    )


def _any_of(texts: tuple[str, ...]) -> str:
    longest_first = sorted((text.split() for text in texts), key=len, reverse=True)
    words = "|".join(r"\s+".join(map(re.escape, text)) for text in longest_first if text)
    return f"(?i:{words or '(?!)'})"


@lru_cache(maxsize=128)
def _named(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Match 'The answer is' with the words of a choice: The answer is Rome."""
    one = _any_of(texts)
    second = rf"(?![^\w\n.;!]{{0,8}}{one}\b)"  # in the same sentence
    cue = _CUE + _NOT_BUT % r"[^.,;:!?\n]{1,60}?" + _GAP
    return re.compile(rf"{cue}(?<![-\u2212])(?P<words>{one}){_ENDS}{second}", re.MULTILINE)


def _in_parentheses(response: str, choices: Mapping[str, str]) -> str | None:
    for match in reversed([*_SENTENCE.finditer(response)]):
        sentence = match[0]
        letters = set(_IN_PARENTHESES.findall(sentence)) & set(choices)
        if letters and not denies(sentence) and not sentence.endswith("?"):
            is_clear = len(letters) == 1 and not taken_back(response, match.end())
            return letters.pop() if is_clear else None
    return None


def _alone(response: str, choices: Mapping[str, str]) -> str | None:
    lines = [line for line in response.splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0]) <= _LONGEST_BOX:
        return letter_of(lines[0], choices)
    first = lines[:1]
    if first and taken_back(response, response.index(first[0]) + len(first[0])):
        first = []
    labels = [match for line in lines if (match := _LABEL.match(line))]
    if len(labels) == 1 and [labels[0].string] == first:
        words = letter_of_words(lines[0][labels[0].end() :].strip("*. "), choices)
        if words == labels[0][1]:
            return words
    for line in [*lines[-1:], *first]:
        if (match := _BARE.fullmatch(line)) and match[1].isupper():
            return _known(match[1], choices)
    return None
