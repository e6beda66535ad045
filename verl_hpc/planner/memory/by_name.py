"""Bounds of what transformers' own layers take beside `activations`, of families without a table.

Scores. Families whose attention is no kernel compute all scores of a sequence, heads x tokens x
tokens: at most eight such tensors exist in a layer's backward pass and four in a forward pass, and
without recomputation four stay of each layer. A row is taken to be one sequence.

A vision tower. Images are not known before a run: every token of a micro-batch is taken to be a
part of an image. Of one of its patches, with h the hidden size of the tower and f its feed-forward
branch, a block keeps at most

    11 h + 4 f          elements: norms, queries, keys and values before and behind their rotary
                        embedding, attention's output, gate, up and their product, and two sums
    4 h                 elements in float32, of two norms

and the ends keep its pixels twice in float32, and 8 h elements for each projection to the decoder.

The tower's parameters, gradients and moments are among the model's (`sharded`); those of a tower
that is frozen are counted as if it were trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hpc.layout.not_mapped import WHOLE_SCORES
from verl_hpc.layout.published import section_of, size_in
from verl_hpc.planner.shape import RoleShape

_FLOAT = 4
_ORIGIN = "config.json: vision_config"


def by_name(shape: RoleShape, tokens: int, trains: bool) -> dict[str, int]:
    """Terms of a pass that a model has for its family, each where it applies."""
    published = shape.arch.published
    if published is None:
        return {}
    vision = section_of(published.config, "vision_config", "config.json")
    tower = {"tower": _tower(shape, published.config, vision, tokens, trains)} if vision else {}
    if shape.arch.family not in WHOLE_SCORES:
        return tower
    return tower | {"scores": _scores(shape, tokens, trains)}


def _scores(shape: RoleShape, tokens: int, trains: bool) -> int:
    one = shape.arch.num_heads * tokens**2 * shape.item_bytes
    is_kept = trains and shape.recompute != "full"
    return one * ((8 if trains else 4) + 4 * is_kept * (shape.arch.num_layers - 1))


def _tower(
    shape: RoleShape,
    config: Mapping[str, Any],
    vision: Mapping[str, Any],
    tokens: int,
    trains: bool,
) -> int:
    """Bytes of one block, and in an update of what all of them and the ends keep."""
    hidden, branch = (size_in(vision, n, _ORIGIN) for n in ("hidden_size", "intermediate_size"))
    depth = size_in(vision, "depth" if vision.get("depth") else "num_hidden_layers", _ORIGIN)
    size, patches = shape.item_bytes, tokens * _patches_of_a_token(config, vision)
    block: int = patches * (size * (11 * hidden + 4 * branch) + _FLOAT * 4 * hidden)
    if not trains or shape.frozen_tower:
        return block
    projections = 1 + len(vision.get("deepstack_visual_indexes") or ())
    frames = size_in(vision, "temporal_patch_size", _ORIGIN, 2)
    pixels = 3 * frames * size_in(vision, "patch_size", _ORIGIN) ** 2
    ends: int = patches * (size * 8 * hidden * projections + _FLOAT * 2 * pixels)
    is_again = shape.recompute == "full"
    return ends + block + depth * (patches * hidden * size if is_again else block)


def _patches_of_a_token(config: Mapping[str, Any], vision: Mapping[str, Any]) -> int:
    if config.get("mm_tokens_per_image"):  # whatever the image's size
        size, patch = (size_in(vision, name, _ORIGIN) for name in ("image_size", "patch_size"))
        return (size // patch) ** 2 // size_in(config, "mm_tokens_per_image", "config.json")
    return size_in(vision, "spatial_merge_size", _ORIGIN, 1) ** 2
