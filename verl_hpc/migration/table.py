"""The table: what becomes of each key of verl."""

from __future__ import annotations

import difflib
from functools import cache

from verl_hpc.migration import (
    actor_rows,
    algorithm_rows,
    data_rows,
    elsewhere_rows,
    engine_rows,
    layout_rows,
    loss_rows,
    model_rows,
    optimizer_rows,
    profile_rows,
    reward_rows,
    rollout_rows,
    run_rows,
)
from verl_hpc.migration.legacy import COMPUTED, RENAMED, TUTORIAL
from verl_hpc.migration.reference import reference
from verl_hpc.migration.row import Row, fixed, refused

_LEGACY = [
    fixed("reward_model.*", "an older name", "reward.reward_model"),
    fixed("custom_reward_function.*", "an older name", "reward.custom_reward_function"),
    fixed("sandbox_fusion.*", "an older name", "reward.sandbox_fusion"),
    refused(
        "algorithm.value_loss_coef",
        "actor and critic are two models with an optimizer each; there is no sum of their losses",
        "critic.optim.lr (roles.critic.optimizer.lr)",
    ),
    *(
        refused(name, says, near)
        for name, says, near in (
            ("rollout_batch_size", "a step's prompts are one batch", "batch.size"),
            ("namespace", "a run has a directory of its own, for all that it writes", "name"),
            *(
                (f"{section}{name}", data_rows.READS, "data.train")
                for section in ("", "data.")
                for name in ("prefetch_factor", "num_workers")
            ),
        )
    ),
    *(
        fixed(name, says, near, also=(False,))
        for name, says, near in (
            (
                "enable_profiling",
                "times are always kept; traces are of some steps",
                "runtime.profile",
            ),
            ("enable_debug_mode", "a rank's variables are kept", "runtime.post_mortem"),
            ("allow_unsafe_operations", "nothing unsafe is done, whatever is set", "trainer"),
        )
    ),
]

ROWS: tuple[Row, ...] = (
    *run_rows.ROWS,
    *run_rows.RAY,
    *model_rows.ROWS,
    *layout_rows.ROWS,
    *engine_rows.ROWS,
    *optimizer_rows.ROWS,
    *algorithm_rows.ROWS,
    *loss_rows.ROWS,
    *actor_rows.ROWS,
    *data_rows.ROWS,
    *rollout_rows.ROWS,
    *reward_rows.ROWS,
    *profile_rows.ROWS,
    *elsewhere_rows.ROWS,
    *_LEGACY,
    *run_rows.WORLD,
)
"""In the order in which they are read: what comes later knows what came before."""

COMPOSED = ("model_engine",)
"""The group of Hydra that decides between two trees of keys."""


@cache
def _by_key() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in ROWS:
        if not row.is_pattern:
            found.setdefault(row.key, row)
    return found


@cache
def _patterns() -> tuple[Row, ...]:
    """The most particular first."""
    return tuple(sorted((r for r in ROWS if r.is_pattern), key=lambda row: -len(row.key)))


def find(key: str) -> Row | None:
    """The row of a key; None if verl does not know it."""
    if key in _by_key():
        return _by_key()[key]
    return next((row for row in _patterns() if row.expression.fullmatch(key)), None)


def near(key: str) -> str:
    """Names that a misspelt key may mean, as a question."""
    names = dict.fromkeys([*reference().keys, *_by_key(), *TUTORIAL, *COMPUTED, *RENAMED])
    last = key.rpartition(".")[2]
    if last in COMPOSED:
        return f"did you mean {last}, at the top?"
    found = [name for name in names if name.endswith(f".{key}")][:3]
    same_last = [n for n in names if n.rpartition(".")[2] == last]
    found = found or difflib.get_close_matches(key[:120], same_last, n=3, cutoff=0.6)
    found = found or difflib.get_close_matches(key[:120], names, n=3, cutoff=0.75)
    found = found or same_last[:3]
    found = found or difflib.get_close_matches(key[:120], names, n=3, cutoff=0.5)
    if not found:
        return "`python -m verl_hpc migrate --keys` lists those that are known"
    return f"did you mean {' or '.join(found)}?"
