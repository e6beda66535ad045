"""Formulas and assumptions of the ledger's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from verl_hpc.planner.memory import overheads
from verl_hpc.planner.memory.kept_base import MERGED_ELEMENTS
from verl_hpc.planner.memory.rollout import GRAPHS, WORKSPACE


class Term(NamedTuple):
    """Documentation of one term."""

    formula: str
    assumption: str = ""
    """Empty where the formula is exact: tests count the bytes of real engines."""


_MIB = overheads.MIB

TERMS: Mapping[str, Term] = {
    "weights": Term(
        "elements of the rank's parameters, padded as their buffer is, x bytes each; of frozen "
        "ones that roles share once, as the first of these roles'; fsdp: of its rows, padded to "
        "the first rank's, x 4 where they are trained"
    ),
    "gradients": Term("elements of the same buffer x 4"),
    "masters": Term("elements of the ranges that the rank's optimizer owns x 4; 0 in float32"),
    "moments": Term("elements of the same ranges x 8, or x 4 with optimizer.moments: bfloat16"),
    "widened": Term(
        "with optimizer.moments: bfloat16, elements of the same ranges x 8 and of the largest x 2 "
        "in Adam's step, where that is more than what the passes take"
    ),
    "apart": Term("elements of the parameters x bytes each, until they are in their buffer"),
    "fp8": Term(
        "2 bytes for each weight of a linear layer",
        "Transformer Engine keeps copies by rows and by columns from the first pass on, until "
        "offload.parameters takes the weights away",
    ),
    "placeholders": Term(
        "elements of one weight of each shape in a layer x bytes each",
        "Transformer Engine returns them in place of gradients that it has added up itself",
    ),
    "quantised": Term("a byte for each weight that rollout.quantization is about, 4 a block"),
    "adapters": Term("elements of the A and B that a generating rank receives x bytes each"),
    "base": Term(
        "elements of the engine's weights that have adapters x bytes each of the trainer's; beside "
        "a trainer on GPUs, where a sleeping engine loses them, all of its weights"
    ),
    "merged": Term(
        f"up to {MERGED_ELEMENTS >> 20} Mi elements in float32; and where the engine has another "
        "type than the trainer, a layer's weights with adapters",
        "as in the first transfer, of one layer after another",
    ),
    "merged_rows": Term(
        "of adapters with parallel.engine: fsdp, the rank's rows of what is sent at a time x bytes "
        "each of the rollout's, and 8 bytes an element of the largest parameter's rows",
        "all weights are sent at a time, or 256 MiB of a family without a layer table",
    ),
    "activations": Term(
        "per layer and token as planner/memory/activations.py says, x layers, x micro-batches in "
        "flight",
        "a row has as many tokens as batch.max_tokens_per_micro_batch, or as the longest sequence, "
        "and context-parallel ranks share them",
    ),
    "recomputed": Term("the layers that are recomputed at a time"),
    "logits": Term("tokens x the rank's rows of the vocabulary x bytes each"),
    "logits_gradient": Term("as the logits"),
    "work": Term(
        "log-probs: up to six float32 copies of 2^26 logits (2^20 on CPU ranks); a "
        "layer: gradients of its widest activations, and of the largest weight",
        "what comes and goes in a pass is at its most when all of it is there together",
    ),
    "tower": Term(
        "of a model that reads images, as planner/memory/by_name.py says",
        "a bound, in which every token of a row is a part of an image",
    ),
    "scores": Term(
        "heads x tokens x tokens x bytes each, eight times in an update and four times before it",
        "of a family whose attention is no kernel; a bound, in which a row is one sequence",
    ),
    "gathered": Term("tokens x hidden size x bytes each, with sequence parallelism"),
    "whole": Term(
        "fsdp: elements of what is in no layer, and of a layer, what it is gathered into and what "
        "the layer before was, x bytes each, or twice what is in no layer and a layer, if that is "
        "more; in an update a layer twice, as in its backward pass. All layers without "
        "reshard_after_forward"
    ),
    "whole_gradients": Term(
        "fsdp: elements of a layer or of what is in none, x bytes of a gradient and of its copy "
        "that is summed over ranks; with a layer's, gradients of the output layer and final norm"
    ),
    "gradient_shards": Term("fsdp: the rank's rows of all gradients x 4, in an update"),
    "sent": Term("hidden states that a pipeline stage keeps of what it sent and received"),
    "kv_cache": Term(
        "what weights, work and graphs leave of the engine's share of the device; or kv_cache_gib",
        "the engine's share is taken whole: rollout.gpu_memory_utilization",
    ),
    "graphs": Term(
        f"{GRAPHS // _MIB} MiB", "CUDA graphs of all batch sizes, as vLLM logs of 7B to 70B"
    ),
    "workspace": Term(f"{WORKSPACE // _MIB} MiB", "buffers of vLLM that sleeping keeps"),
    "asleep": Term("graphs and workspace"),
    "packed_weights": Term(
        "as the engine's weights", "on cores, oneDNN's copies of linear layers; embeddings are not"
    ),
    "buckets": Term(
        "rounds under way x 2 x the bucket's size",
        "an upper bound: messages of small models fill no bucket, and ranks on cores read their "
        "neighbours' memory",
    ),
    "part": Term(
        "of a model without a layer table: the whole tensors that are sent to an engine at a time, "
        "256 MiB or the largest one"
    ),
    "context": Term(
        f"{overheads.CONTEXT // _MIB} MiB", "of CUDA, with the workspaces of its libraries"
    ),
    "communicators": Term(
        f"{overheads.COMMUNICATOR // _MIB} MiB each", "NCCL's rings and trees of 24 to 32 channels"
    ),
    "p2p_channels": Term(
        f"{overheads.PEER_IN_NODE // _MIB} MiB a rank of the node, "
        f"{overheads.PEER_OUTSIDE // _MIB} MiB a rank of other nodes",
        "NCCL's channels between two ranks that exchange weights; how many there are is counted in "
        "the plan of a transfer of few layers, and in searches and on more than 512 ranks assumed "
        f"to be {overheads.PEERS_OUTSIDE}, {overheads.PEERS_OF_EXPERTS} with experts",
    ),
    "columns": Term(
        "48 bytes a token of a step", "ids and ten numbers, all responses as long as allowed"
    ),
    "allocator": Term(
        f"{overheads.ALLOCATOR:.0%} of what comes and goes in a pass",
        "holes in PyTorch's memory, with expandable segments",
    ),
    "process": Term(
        f"{overheads.PROCESS // _MIB} MiB, {overheads.CPU_PROCESS // _MIB} on cores",
        "Python and its libraries, resident in host memory",
    ),
    "weights_copy": Term(
        "as the weights; on GPUs page-locked, in pieces of 256 MiB, the last one rounded up to a "
        "power of 2"
    ),
    "optimizer_copy": Term("masters and moments, page-locked like the weights' copy on GPUs"),
    "saved": Term(
        "the rank's share of weights, and 4 bytes and the moments' of each element that it owns; "
        "fsdp: both of its rows, divided among ranks that have the same",
        "replicas write equal shares",
    ),
}
"""Terms by the last part of their name: `actor.weights` is under `weights`. A reference that shares
the actor's engine has its weights in host memory, as `reference.weights`."""

ASSUMPTIONS = tuple(
    f"{name}: {term.formula}; {term.assumption}" for name, term in TERMS.items() if term.assumption
)


def term(name: str) -> Term:
    """Look up a term by its full name in a phase."""
    return TERMS[name.rpartition(".")[2]]
