"""The course of one session of the model with a program or an environment, for people to see."""

from __future__ import annotations

from dataclasses import dataclass

MAX_OUTPUT = 2000
"""Most characters of a program's output, from its end."""


@dataclass(frozen=True)
class TurnRecord:
    """A turn of the model. Times are seconds since the epoch by the node's clock."""

    parent: int | None
    """Number of the turn that it continues."""
    start: int
    """Tokens of its conversation before it, those of the prompt included."""
    stop: int
    """Tokens of its conversation up to its end."""
    finish_reason: str
    begun: float
    """When the model was asked for it."""
    ended: float
    calls: tuple[str, ...] = ()
    """Calls of tools as the program got them, such as add({"a": 1})."""


@dataclass(frozen=True)
class SessionRecord:
    """The turns of the model as a tree, in the order in which they ended, and why they did."""

    data_source: str
    turns: tuple[TurnRecord, ...]
    leaves: tuple[int, ...]
    """Number of the last turn of each row to train on."""
    begun: float
    ended: float
    ending: str
    """How a program ended (exited, failed, timed_out, ...), or why a conversation did (done,
    max_turns, length, failed)."""
    failure: str = ""
    """What was wrong with a program."""
    output: str = ""
    """End of a program's output."""
    row: int = 0
    """Position among the session's rows of the one that this record is given with."""

    @property
    def model_s(self) -> float:
        """Seconds in which at least one turn was asked for and had not ended."""
        seconds, until = 0.0, self.begun
        for turn in sorted(self.turns, key=lambda turn: turn.begun):
            seconds += max(turn.ended - max(turn.begun, until), 0.0)
            until = max(until, turn.ended)
        return seconds

    @property
    def program_s(self) -> float:
        """Seconds of the session without those in the model."""
        return max(self.ended - self.begun - self.model_s, 0.0)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the model sampled."""
        return sum(turn.stop - turn.start for turn in self.turns)

    @property
    def own_turns(self) -> list[int]:
        """Numbers of the turns of this record's row that no earlier row has, in their order."""
        earlier = {turn for leaf in self.leaves[: self.row] for turn in self._path(leaf)}
        leaf = self.leaves[self.row : self.row + 1]
        return [turn for of in leaf for turn in self._path(of) if turn not in earlier]

    def _path(self, leaf: int) -> list[int]:
        path: list[int] = []
        turn: int | None = leaf
        while turn is not None:
            path.append(turn)
            turn = self.turns[turn].parent
        return path[::-1]
