"""Sessions of the model with programs and environments: records of them, and their metrics."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from verl_hpc.rollout.partial import this_turn
from verl_hpc.rollout.protocol import Response
from verl_hpc.rollout.record import MAX_OUTPUT, SessionRecord, TurnRecord
from verl_hpc.step.operator import Metrics
from verl_hpc.step.placement import Placement

if TYPE_CHECKING:
    from verl_hpc.agents.programs import Ended
    from verl_hpc.agents.session import Turn

PREFIX = "rollout/environment/"
_SESSIONS = "num_sessions"
MAX_SOURCES = 16
"""Most data sources of a step that have metrics of their own."""


def program_record(
    data_source: str, turns: Sequence[Turn], leaves: Sequence[Turn], result: Ended, failure: str
) -> SessionRecord:
    """Return the record of a program that has just ended.

    Args:
        turns: of its session.
        leaves: last turn of each of its rows.
        failure: what was wrong with it, if anything.
    """
    now = time.time()
    ending = "failed" if failure and result.ending == "exited" else result.ending
    wrong = result.message or (f"exit status {result.status}" if result.status else failure)
    return SessionRecord(
        data_source,
        tuple(turn.record for turn in turns),
        tuple(leaf.number for leaf in leaves),
        now - result.wall_s,
        now,
        ending,
        wrong,
        result.output[-MAX_OUTPUT:],
    )


class ConversationRecorder:
    """Notes when the turns of an engine's conversations with environments begin and end."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, float] = {}
        """When the turn under way of each conversation was asked for."""
        self._turns: defaultdict[Hashable, list[TurnRecord]] = defaultdict(list)

    def begin(self, key: Hashable) -> None:
        """Note that a turn of a conversation is asked for, or goes on in another call."""
        self._begun.setdefault(key, time.time())

    def end(self, key: Hashable, num_prompt: int, response: Response) -> None:
        """Note that a turn of a conversation has ended.

        Args:
            num_prompt: number of tokens of its prompt.
            response: what has been said since.
        """
        stop, turns = num_prompt + len(response.tokens), self._turns[key]
        start = stop - len(this_turn(response))
        times = self._begun.pop(key), time.time()
        parent = len(turns) - 1 if turns else None
        turns.append(TurnRecord(parent, start, stop, response.finish_reason, *times))

    def forget(self, key: Hashable) -> None:
        """Drop what is known of a conversation."""
        self._begun.pop(key, None)
        self._turns.pop(key, None)

    def record(self, key: Hashable, data_source: str, ending: str) -> SessionRecord:
        """Return the record of a conversation that has ended."""
        turns = tuple(self._turns.pop(key))
        times = turns[0].begun, time.time()
        return SessionRecord(data_source, turns, (len(turns) - 1,), *times, ending)


def session_metrics(place: Placement, records: Iterable[SessionRecord]) -> dict[str, float]:
    """Return metrics of a step's sessions, and of those of each data source where there are
    several; every rank calls it.

    Args:
        records: of the rows of this rank's engine.
    """
    sums: dict[str, Counter[str]] = {}
    for record in records if place.leads_group else ():
        if record.row == 0:
            sums.setdefault(record.data_source, Counter()).update(_numbers(record))
    by_source: dict[str, Counter[str]] = {}
    for of_rank in place.control.allgather(sums):
        for source, numbers in of_rank.items():
            by_source.setdefault(source, Counter()).update(numbers)
    total = Counter[str]()
    for numbers in by_source.values():
        total.update(numbers)
    metrics = _means(PREFIX, total)
    if 1 < len(by_source) <= MAX_SOURCES:
        for source, numbers in sorted(by_source.items()):
            metrics |= _means(f"{PREFIX}source/{source}/", numbers)
    return metrics


def _numbers(record: SessionRecord) -> Counter[str]:
    numbers: Counter[str] = Counter()
    means = {
        "turns": len(record.turns),
        "tokens": record.num_tokens,
        "branches": len(record.leaves),
        "model_s": record.model_s,
        "program_s": record.program_s,
    }
    numbers.update({f"{name}/mean": value for name, value in means.items()})  # type: ignore[arg-type]
    numbers.update({_SESSIONS: 1, f"ended/{record.ending}": 1})
    return numbers


def _means(prefix: str, sums: Mapping[str, float]) -> dict[str, float]:
    count = max(sums.get(_SESSIONS, 0), 1)
    return {
        prefix + name: value / (count if name.endswith("/mean") else 1)
        for name, value in sorted(sums.items())
    }


def joined(rounds: Sequence[Metrics], sizes: Sequence[int]) -> dict[str, float]:
    """Combine the metrics of turns and sessions of several rounds: the largest of maxima, means by
    the numbers of sessions or responses, and sums of all others.

    Args:
        sizes: number of responses of each round.
    """
    combined: dict[str, float] = {}
    for name in dict.fromkeys(name for of_one in rounds for name in of_one):
        parts = [(of_one[name], of_one, n) for of_one, n in zip(rounds, sizes, strict=True)
                 if name in of_one]  # fmt: skip
        if name.endswith("/max"):
            combined[name] = max(value for value, *_ in parts)
        elif name.endswith("/mean"):
            sessions = name.rpartition("/")[0].rpartition("/")[0] + "/" + _SESSIONS
            weights = [of_one.get(sessions, size) for _, of_one, size in parts]
            weighted = sum(part[0] * weight for part, weight in zip(parts, weights, strict=True))
            combined[name] = weighted / max(sum(weights), 1)
        else:
            combined[name] = sum(value for value, *_ in parts)
    return combined
