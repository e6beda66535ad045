"""Sum terms of the memory ledger by the kinds that tables and pictures show."""

from __future__ import annotations

from collections.abc import Mapping

from verl_hpc.planner.memory.phase import Phase

KINDS = ("weights", "gradients", "optimizer", "passes", "rollout", "other")
"""Kinds of memory: training weights, float32 gradients, master weights and moments, memory of a
pass, all of a rollout engine, and CUDA, NCCL, buffers and holes."""
LETTERS = dict(zip(KINDS, "wgoprx", strict=True))
COLOURS = dict(
    zip(KINDS, ("#1f77b4", "#17a2b8", "#6a4fb3", "#d95f02", "#1b9e77", "#9a9a9a"), strict=True)
)
_OF_TERMS: Mapping[str, str] = {
    "weights": "weights",
    "fp8": "weights",
    "apart": "weights",
    "gradients": "gradients",
    "masters": "optimizer",
    "moments": "optimizer",
    **dict.fromkeys(
        ("activations", "recomputed", "logits", "logits_gradient", "work", "gathered", "sent"),
        "passes",
    ),
}


def by_kind(phase: Phase) -> dict[str, int]:
    """Return the bytes of the device by kind, in the order of KINDS."""
    sizes = dict.fromkeys(KINDS, 0)
    for name, size in phase.device.items():
        role, _, term = name.rpartition(".")
        sizes["rollout" if role == "rollout" else _OF_TERMS.get(term, "other")] += size
    return sizes
