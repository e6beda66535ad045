"""Numbers that nobody can stand, and some that are extreme and legal."""

from __future__ import annotations

from typing import Any

from tests.fuzz.cases import Case, End, set_field

_SETTINGS: tuple[tuple[str, Any, End], ...] = (
    ("runtime.threads_per_rank", 1_000_000, "error"),
    ("runtime.threads_per_rank", 4096, "error"),
    ("runtime.threads_per_rank", 1e30, "error"),
    ("optimizer.beta1", 1.0, "error"),
    ("optimizer.beta2", 1, "error"),
    ("optimizer.beta1", 0.0, "either"),
    ("optimizer.lr", 1e30, "error"),
    ("optimizer.lr", 1e308, "error"),
    ("optimizer.lr", 100.0, "either"),
    ("optimizer.lr", 1e-300, "either"),
    ("optimizer.weight_decay", 1e30, "error"),
    ("optimizer.weight_decay", 100.0, "either"),
    ("optimizer.epsilon", 1e-300, "either"),
    ("optimizer.clip_grad", 1e-300, "either"),
    ("seed", 2**64, "error"),
    ("seed", 2**63, "error"),
    ("seed", 2**63 - 1, "either"),
    ("seed", 2**32, "either"),
    ("rollout.temperature", 1e-308, "error"),
    ("rollout.temperature", 0.01, "either"),
    ("rollout.temperature", 100.0, "either"),
    ("rollout.kv_cache_gib", 1e30, "error"),
    ("rollout.top_k", 2**31 - 1, "either"),
    ("rollout.top_k", 2**63, "error"),
    ("rollout.top_p", 1e-300, "either"),
    ("rollout.max_response_tokens", 2**31 - 1, "error"),
    ("rollout.max_prompt_tokens", 10**30, "error"),
    ("rollout.max_prompt_tokens", 1, "error"),
    ("runtime.collective_timeout_s", 1e308, "error"),
    ("runtime.collective_timeout_s", 1e-300, "error"),
    ("runtime.late_after_s", 1e-300, "error"),
    ("runtime.late_after_s", 2_000_000.0, "same"),
    ("reward.timeout_s", 1e308, "error"),
    ("batch.size", 10**9, "error"),
    ("batch.max_tokens_per_micro_batch", 1, "either"),
    ("batch.max_tokens_per_micro_batch", 2**31 - 1, "same"),
    ("algorithm.entropy_coefficient", 1e9, "either"),
    ("algorithm.entropy_coefficient", 1e300, "error"),
    ("checkpoint.keep", 2**31 - 1, "same"),
    ("steps", 10**30, "error"),
)


CASES = tuple(
    Case(f"number {name} = {value}", set_field(name, value), end) for name, value, end in _SETTINGS
)
