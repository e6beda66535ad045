"""Placements of a split run, and what their ranks do now."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.config.spans import spans
from verl_hpc.runs.ranks import Progress, Ranks


@dataclass(frozen=True)
class Placed:
    """A placement: ranks with the roles that they compute."""

    name: str
    first_rank: int
    last_rank: int
    roles: tuple[str, ...]

    @property
    def ranks(self) -> str:
        """The ranks in words."""
        return neighbours(self.first_rank, self.last_rank)

    def operators(self, ranks: Ranks | None) -> dict[str, list[int]]:
        """Return ranks by their operator when ranks.json was written, most ranks first.

        Ranks that had written nothing for long are "silent".
        """
        by_operator: dict[str, list[int]] = {}
        for progress in self._of(ranks):
            is_silent = ranks is not None and progress.silent_s > ranks.patience_s
            name = "silent" if is_silent else progress.operator
            by_operator.setdefault(name, []).append(progress.rank)
        return dict(sorted(by_operator.items(), key=lambda item: -len(item[1])))

    def _of(self, ranks: Ranks | None) -> list[Progress]:
        rows = () if ranks is None else ranks.ranks
        return [p for p in rows if self.first_rank <= p.rank <= self.last_rank]


def neighbours(first: int, last: int) -> str:
    """Return 'rank 3' or 'ranks 0-3'."""
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def described(placed: Placed, ranks: Ranks | None) -> str:
    """Describe a placement: 'ranks 0-3 (actor, critic): update_actor', or ranks by operator."""
    words = f"{placed.ranks} ({', '.join(placed.roles)})"
    operators = placed.operators(ranks)
    if len(operators) == 1:
        return f"{words}: {next(iter(operators))}"
    parts = (f"{name} on {spans(numbers)}" for name, numbers in operators.items())
    return f"{words}: {'; '.join(parts)}" if operators else words
