"""Division of decoder layers among pipeline stages."""

from __future__ import annotations

from verl_hpc.errors import LayoutError


def layers_per_stage(
    num_layers: int, num_stages: int, num_chunks: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Number of decoder layers of each virtual stage, as `[chunk][stage]`.

    Virtual stage `v = chunk * num_stages + stage` runs v-th. Layers are dealt evenly; where they
    do not divide, the last and then the first virtual stage get one fewer, since they also carry
    the output layer and the embedding (as Llama 3 was trained, arXiv 2407.21783, section 3.3.2),
    and then the second and those after it, which keep activations for longer than later ones. 61
    layers on 8 stages are 7, 7, 8, 8, 8, 8, 8 and 7.
    Eight layers on 4 stages of 2 chunks are one layer each; six are::

                 stage 0  stage 1  stage 2  stage 3
        chunk 0     0        1        1        1
        chunk 1     1        1        1        0

    Raises:
        LayoutError: a stage would be empty that carries neither embedding nor output layer.
    """
    num_virtual = num_stages * num_chunks
    full = -(-num_layers // num_virtual)
    short = full * num_virtual - num_layers
    if not _splits(num_layers, num_virtual):
        usable = [n for n in range(1, num_layers + 3) if _splits(num_layers, n * num_chunks)]
        raise LayoutError(
            f"{num_layers} layers cannot be split over pipeline_parallel = {num_stages} x "
            f"virtual_pipeline = {num_chunks} stages; pipeline_parallel could be one of {usable}"
        )
    counts = [full] * num_virtual
    for stage in range(-1, short - 1):
        counts[stage] -= 1
    return tuple(tuple(counts[c * num_stages : (c + 1) * num_stages]) for c in range(num_chunks))


def _splits(num_layers: int, num_virtual: int) -> bool:
    return num_layers > 0 and num_virtual <= num_layers + 2


def stage_layers(counts: tuple[tuple[int, ...], ...], stage: int, chunk: int) -> range:
    """Global indices of the layers of one chunk of one stage.

    With the counts [[1, 1], [1, 1]] stage 0 holds layer 0 in chunk 0 and layer 2 in chunk 1.
    """
    order = [n for row in counts for n in row]
    virtual = chunk * len(counts[0]) + stage
    first = sum(order[:virtual])
    return range(first, first + order[virtual])
