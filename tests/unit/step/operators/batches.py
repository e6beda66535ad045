"""A batch written down: three samples of two prompts, with masks that are 0 here and there."""

import torch

from verl_hpc.step.batch import MASK, TOKENS, Columns, Sample, Samples
from verl_hpc.step.role import Role
from verl_hpc.testing.local import LocalEngine, tiny_architecture
from verl_hpc.testing.local_run import local_place

PLACE = local_place()
PROMPTS = [[3, 4], [3, 4], [5, 6, 7]]
RESPONSES = [[1, 2, 8, 9, 0], [2, 0], [4, 4, 1, 11]]
MASKS = [[1, 0, 0, 1, 1], [1, 1], [0, 1, 1, 0]]
"""Somebody else wrote tokens in the middle, at the beginning and at the end."""
NUM_TOKENS = 7
"""How many tokens count."""
GROUPS = [0, 0, 1]


def samples(mini_batches=((0, 1, 2),)):
    rows = [
        Sample(i, GROUPS[i], len(PROMPTS[i]), len(RESPONSES[i]), False) for i in range(len(PROMPTS))
    ]
    return Samples(tuple(rows), {PLACE.name: [0, 0, 0]}, mini_batches)


def sequences(masks=MASKS):
    tokens = [torch.tensor(p + r) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    return column(**{TOKENS: tokens, MASK: [torch.tensor(m, dtype=torch.uint8) for m in masks]})


def column(**rows):
    return Columns([0, 1, 2], {name: list(found) for name, found in rows.items()})


def per_token(seed, scale=1.0):
    """Any number for every token of the responses."""
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(len(r), generator=generator) for r in RESPONSES]


def role(name="actor", head="language_model", optimizer=None, seed=0):
    engine = LocalEngine(tiny_architecture(), head, optimizer, seed)
    return Role(
        name, None, PLACE, engine.arch, engine.layout, engine.shard_map, engine.shard_map, engine
    )


def outputs_of(engine, tokens):
    """What a model says after each token, from its definition and its weights alone, one by one."""
    embedding, head = engine.weights.values()
    found = []
    for i in range(len(tokens)):
        seen = embedding[tokens[: i + 1]]
        found.append(head @ torch.tanh(seen.sum(0) / (i + 1) + seen[-1]))
    return found


def counted(rows, masks=MASKS):
    """The numbers of the tokens that count, as plain ones."""
    return [
        float(value)
        for row, mask in zip(rows, masks, strict=True)
        for value, count in zip(row, mask, strict=True)
        if count
    ]
