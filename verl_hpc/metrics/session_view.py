"""Show a session of the model with a program or an environment as HTML: its turns as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from verl_hpc.metrics.samples import SampleResponse, SampleTurn
from verl_hpc.metrics.text import duration, number, visible


def session_tree(branches: Sequence[SampleResponse], words: Sequence[str]) -> str:
    """Return the turns of a session, each once; where the conversation parts, and where one begins
    anew, each branch is a part of the page that opens and closes.

    Args:
        branches: of one session, the first one first.
        words: what is said of it in front, as HTML.
    """
    session = branches[0].session
    assert session is not None
    turns = {turn.number: (turn, branch) for branch in branches for turn in branch.turns}
    following: dict[int | None, list[int]] = {}
    for turn, _ in turns.values():
        parent = turn.parent if turn.parent in turns else None
        following.setdefault(parent, []).append(turn.number)
    is_good = session.ending in ("exited", "done")
    ending = escape(visible(session.ending.replace("_", " ")))
    why = f": {escape(visible(session.failure))}" if session.failure else ""
    head = [
        *words,
        *score_words(branches[0], advantage=len(branches) == 1),
        _count(session.num_turns, "turn", "turns"),
        *([_count(session.num_branches, "", "branches")] if session.num_branches > 1 else ()),
        f"{duration(session.model_s)} in the model",
        f"{duration(session.program_s)} outside",
        f"ended: {ending}{why}" if is_good else f'<b class="cut">ended: {ending}{why}</b>',
    ]
    missing = session.num_turns - len(turns)
    more = f'<p class="empty">{_count(missing, "turn", "turns")} not kept</p>' if missing else ""
    output = text_below("end of the program's output", session.output) if session.output else ""
    tree = _following(None, turns, following)
    return f'<p class="label session">{label(head)}</p>{tree}{more}{output}'


def _following(
    parent: int | None,
    turns: Mapping[int, tuple[SampleTurn, SampleResponse]],
    following: Mapping[int | None, Sequence[int]],
) -> str:
    """Return all turns behind one, or behind the beginning."""
    parts = []
    while len(next_turns := following.get(parent, ())) == 1:
        (parent,) = next_turns
        parts.append(_turn(turns[parent][0]))
    for first in next_turns:
        turn, branch = turns[first]
        since = "the beginning" if turn.parent is None else f"turn {turn.parent + 1}"
        words = [f"<b>branch {branch.branch + 1}</b>", f"from {since}", *score_words(branch)]
        parts.append(
            f'<details class="branch" open><summary class="label">{label(words)}</summary>'
            f"{_turn(turn)}{_following(first, turns, following)}</details>"
        )
    return "".join(parts)


def _turn(turn: SampleTurn) -> str:
    words = [f"<b>turn {turn.number + 1}</b>", _count(turn.num_tokens, "token", "tokens")]
    if turn.reward is not None:
        words.append(f"<b>reward {_signed(turn.reward)}</b>")
    words.append(f"{duration(turn.model_s)} in the model")
    words.append(f"after {duration(turn.program_s)} outside")
    if turn.finish_reason == "length":
        words.append('<b class="cut">ended by the length limit</b>')
    calls = "".join(
        f'<p class="call">calls <code>{escape(visible(call))}</code></p>' for call in turn.calls
    )
    before = text_below("said to the model", turn.before, "said heard") if turn.before else ""
    return f"{before}{text_below(label(words), turn.text)}{calls}"


def score_words(response: SampleResponse, *, advantage: bool = True) -> list[str]:
    """Return what a response earned, and which weights began it, as HTML."""
    words = [f"score {number(response.score)}"]
    if advantage and response.advantage is not None:
        words.append(f"advantage {_signed(response.advantage)}")
    if response.version is not None:
        words.append(f"weights of step {response.version}")
    return words


def label(words: Sequence[str]) -> str:
    """Return words, which are HTML, as a line with points between them."""
    return "".join(f"<span>{word}</span>" for word in words)


def text_below(heading: str, words: str, kind: str = "said") -> str:
    """Return a text below its heading, which is HTML.

    Args:
        kind: class of the style sheet.
    """
    if not words:
        return f'<p class="label">{heading}</p><p class="empty">empty</p>'
    said = escape(visible(words))
    return f'<p class="label">{heading}</p><pre class="{kind}" tabindex="0">{said}</pre>'


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def _count(count: int, one: str, several: str) -> str:
    return f"{number(count)} {one if count == 1 else several}"
