"""Division of decoder layers among pipeline stages."""

from __future__ import annotations

from verl_hpc.errors import LayoutError


def layers_per_stage(
    num_layers: int, num_stages: int, num_chunks: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Number of decoder layers of each virtual stage, as `[chunk][stage]`.

    Virtual stage `v = chunk * num_stages + stage` runs v-th. Layers are dealt evenly; where they
    do not divide, the first and then the last virtual stage get one fewer, since they also carry
    the embedding and the output layer (as Llama 3 was trained, arXiv 2407.21783, section 3.3.2).
    Eight layers on 4 stages of 2 chunks are one layer each; six are::

                 stage 0  stage 1  stage 2  stage 3
        chunk 0     0        1        1        1
        chunk 1     1        1        1        0

    Raises:
        LayoutError: more than two stages would be short of a layer, or a stage would be empty
            that carries neither embedding nor output layer.
    """
    num_virtual = num_stages * num_chunks
    full = -(-num_layers // num_virtual)
    short = full * num_virtual - num_layers
    if num_layers < 1 or short > 2 or (short and num_virtual == 1):
        usable = [n for n in range(1, num_layers + 3) if _splits(num_layers, n * num_chunks)]
        raise LayoutError(
            f"{num_layers} layers cannot be split over pipeline_parallel = {num_stages} x "
            f"virtual_pipeline = {num_chunks} stages; pipeline_parallel could be one of {usable}"
        )
    counts = [full] * num_virtual
    if short >= 1:
        counts[-1] -= 1
    if short == 2:
        counts[0] -= 1
    return tuple(tuple(counts[c * num_stages : (c + 1) * num_stages]) for c in range(num_chunks))


def _splits(num_layers: int, num_virtual: int) -> bool:
    return -(-num_layers // num_virtual) * num_virtual - num_layers <= 2


def stage_layers(counts: tuple[tuple[int, ...], ...], stage: int, chunk: int) -> range:
    """Global indices of the layers of one chunk of one stage.

    With the counts [[1, 1], [1, 1]] stage 0 holds layer 0 in chunk 0 and layer 2 in chunk 1.
    """
    order = [n for row in counts for n in row]
    virtual = chunk * len(counts[0]) + stage
    first = sum(order[:virtual])
    return range(first, first + order[virtual])
