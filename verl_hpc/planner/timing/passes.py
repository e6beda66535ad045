"""Forward and backward passes of one model over a step's sequences: training and inference.

m micro-batches pass p stages of v chunks in m + (p - 1) / v times the slowest stage's time (1F1B
interleaved, arXiv 2104.04473, section 2.2). A tensor-parallel layer has two all-reduces of its
activations forward and two backward (arXiv 1909.08053), or the reduce-scatters and all-gathers that
make them up (sequence parallelism); nothing hides them. Gradients are reduce-scattered in float32
during the last micro-batch's backward pass, and weights all-gathered after Adam. A micro-batch
takes at least as long as the host needs to dispatch its operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from verl_hpc.layout.pipeline import layers_per_stage
from verl_hpc.placement import pipeline_fill
from verl_hpc.planner.shape import RoleShape
from verl_hpc.planner.timing.cost import Cost, Term, times, together
from verl_hpc.planner.timing.launches import OUTSIDE, of_a_layer
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.work import layer_work
from verl_hpc.planner.timing.workload import Workload

_GRADIENT = 4
_ZEROING = 4
"""Bytes written per parameter of a rank: its float32 gradient becomes zero."""
_STEP = 46
"""Bytes that an optimizer step moves per parameter of a shard. The norm reads the float32 gradient
(4), clipping reads and writes it (8); Adam reads it (4), reads and writes master weight and two
moments (24), and reads the master once more (4) to write the weight in two bytes (2)."""
_CONVERTED = 32
"""Bytes more where moments are kept in two bytes: both are read and widened (12), and afterwards
read, rounded (12) and copied to where they are kept (8)."""
_ELEMENTWISE = 10
"""Reads and writes of activations of the hidden size outside products, in a layer's passage: two
norms (2 each) and two residual sums (3 each)."""
_FIXED = ("layers", "expert_layers")
_LOG_PROBS = 12
"""Reads and writes of the float32 logits when log-probabilities and entropy are computed."""


@dataclass(frozen=True)
class _Stage:
    layers: int
    has_logits: bool


@dataclass(frozen=True)
class _Part:
    """Work of one replica in one optimizer step or one forward pass."""

    sequences: float
    tokens: float
    squares: float
    count: int
    """Micro-batches."""


@dataclass(frozen=True)
class _Pass:
    """A forward pass, or a forward and a backward pass."""

    kind: Term
    products: float
    """Products for each one of a forward pass."""
    layers: int
    """Passages through each layer."""
    operations: float
    """Operations that are dispatched for a layer."""
    outside: int
    """Operations that are dispatched outside the layers."""


def _forward(model: RoleShape) -> _Pass:
    operations = of_a_layer(model).forward
    return _Pass("inference", 1.0, 1, operations, OUTSIDE.forward)


def _training(model: RoleShape) -> _Pass:
    # Backward is two products for each one forward.
    again, operations = _recomputed(model), of_a_layer(model)
    dispatched = operations.update + again * operations.forward
    return _Pass("training", 3.0 + again, 2 + (again == 1.0), dispatched, OUTSIDE.update)


def infer_cost(machine: Machine, model: RoleShape, work: Workload) -> Cost:
    """A forward pass over the sequences of a step."""
    part = _part(model, work, work.sequences)
    micro = _slowest(machine, model, part, _forward(model))
    return together([_pipelined(machine, model, part, micro, 1), _host(machine, model, part)])


def update_cost(machine: Machine, model: RoleShape, work: Workload) -> Cost:
    """Cost of all optimizer steps of a step."""
    part = _optimizer_step(model, work)
    micro = _slowest(machine, model, part, _training(model))
    one = together(
        [
            _pipelined(machine, model, part, micro, 2),
            _optimizer(machine, model, micro),
            _host(machine, model, part),
        ]
    )
    return times(work.updates, one)


def launch_share(machine: Machine, model: RoleShape, work: Workload, trains: bool) -> float:
    """How long the host takes to dispatch a micro-batch, as a multiple of the time that the device
    computes and communicates; on the stage where it is largest.

    The fixed time of a layer's passage (`layers`, `expert_layers`) is left out: it may be the
    host's.
    """
    one = _training(model) if trains else _forward(model)
    part = _optimizer_step(model, work) if trains else _part(model, work, work.sequences)
    shares = []
    for stage in _stages(model, machine.of_first_rank):
        cost = _on_device(machine, model, part, stage, one)
        device = {term: amount for term, amount in cost.items() if term not in _FIXED}
        host = machine.seconds(_dispatched(stage, one))
        shares.append(host / machine.seconds(device))
    return max(shares)


def _optimizer_step(model: RoleShape, work: Workload) -> _Part:
    return _part(model, work, max(work.sequences // work.mini_batches, 1))


def _recomputed(model: RoleShape) -> float:
    """Forward passes that the backward pass repeats, as a fraction; recompute: selective repeats
    the MLP."""
    if model.recompute == "selective":
        return layer_work(model.arch).mlp_share
    return float(model.recompute == "full")


def _part(model: RoleShape, work: Workload, sequences: int) -> _Part:
    layout = model.layout
    replicas = layout.num_replicas
    mine = sequences / replicas if sequences >= replicas else 1.0
    # The fullest replica decides; few sequences do not divide evenly.
    mine = float(ceil(mine)) if mine < 8 else mine
    tokens = mine * work.sequence
    # No two sequences longer than half the budget share a micro-batch (Martello and Toth, 1990).
    count = max(ceil(tokens / work.max_tokens), ceil(mine * work.alone), 1)
    if layout.pp > 1:
        fills = min(
            max(int(tokens) // pipeline_fill.TOKENS, 2 * layout.pp), 4 * layout.pp, int(mine)
        )
        count = max(count, fills)
        count += -count % (layout.pp if layout.vpp > 1 else 1)
        # Micro-batches that an interleaved pipeline adds beyond the sequences are empty.
        count = min(count, ceil(mine))
    return _Part(mine, tokens, mine * work.square, count)


def _host(machine: Machine, model: RoleShape, part: _Part) -> Cost:
    """Host cost of outputs and losses, which the last stage computes."""
    if machine.of_first_rank and model.layout.pp > 1:
        return {}
    return {"sequences": part.sequences}


def _slowest(machine: Machine, model: RoleShape, part: _Part, one: _Pass) -> Cost:
    """Cost of one micro-batch on the slowest stage, over all its chunks, forward and back."""
    costs = [
        cost
        for stage in _stages(model, machine.of_first_rank)
        for cost in (_on_device(machine, model, part, stage, one), _dispatched(stage, one))
    ]
    return max(costs, key=machine.seconds)


def _dispatched(stage: _Stage, one: _Pass) -> Cost:
    """Cost of the host's work on one micro-batch."""
    return {"launches": stage.layers * one.operations + stage.has_logits * one.outside}


def _stages(model: RoleShape, first_alone: bool) -> list[_Stage]:
    """Stages that may be the slowest, the last and the fullest of the others; or the first."""
    layout = model.layout
    totals = _layers(model.arch.num_layers, layout.pp, layout.vpp)
    if first_alone or layout.pp == 1:
        return [_Stage(totals[0], model.has_logits and layout.pp == 1)]
    return [_Stage(totals[-1], model.has_logits), _Stage(max(totals[:-1]), False)]


@lru_cache(maxsize=1024)
def _layers(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of each stage, over all its chunks."""
    return tuple(map(sum, zip(*layers_per_stage(num_layers, pp, vpp), strict=True)))


def _on_device(machine: Machine, model: RoleShape, part: _Part, stage: _Stage, one: _Pass) -> Cost:
    """Cost of one micro-batch for the device."""
    kind, passes, layer_passes = one.kind, one.products, one.layers
    arch, layout, layer = model.arch, model.layout, layer_work(model.arch)
    # Context-parallel ranks share the tokens, and what attention computes, evenly.
    size, shared = model.item_bytes, part.count * layout.cp
    dtype = model.dtype if model.fp8 is None else "float8"
    tokens, squares = part.tokens / shared, part.squares / shared
    routed = stage.layers * layer.expert_flops_per_token * tokens
    flops = stage.layers * (layer.flops_per_token * tokens + layer.flops_per_square * squares)
    parameters = stage.layers * _layer_parameters(model)
    in_experts = stage.layers * _expert_parameters(model)
    logits = 2.0 * arch.hidden_size * arch.vocab_size * tokens if stage.has_logits else 0.0
    # The output layer is not recomputed.
    flops = passes * (flops - routed) + min(passes, 3.0) * logits
    parameters += stage.has_logits * arch.hidden_size * arch.vocab_size / layout.tp
    read = passes * size * (parameters - in_experts)
    passages = float(stage.layers * layer_passes)
    costs: list[Cost] = [
        machine.products(kind, flops / layout.tp, read, dtype),
        {"layers": passages},
    ]
    if in_experts:
        read = passes * size * in_experts
        products = passes * routed / layout.tp
        costs.append(machine.products("experts", products, read, dtype))
        costs.append({"expert_layers": passages})
    activations = tokens * arch.hidden_size * size
    if model.offload_activations and kind == "training":
        # Each layer's input goes to the host and back; sequence parallelism divides it.
        costs.append(machine.pcie(2 * stage.layers * activations / layout.tp))
    # Norms and residual sums, which every tensor-parallel rank computes in full.
    costs.append(machine.elementwise(stage.layers * layer_passes * _ELEMENTWISE * activations))
    if stage.has_logits:
        logits_bytes = 4 * tokens * arch.vocab_size / layout.tp
        costs.append(machine.elementwise(layer_passes * _LOG_PROBS * logits_bytes))
    all_reduces = 2 * layer_passes * stage.layers + stage.has_logits
    costs.append(times(all_reduces, machine.fabric.all_reduce(activations, layout.tp)))
    if layout.cp > 1:
        # Keys and values forward, their gradients backward; that a ring may overlap them with
        # attention of long sequences is not counted on.
        sent = tokens * layout.cp * (arch.kv_size + arch.v_size) / layout.tp * size
        gather = machine.fabric.all_gather(sent, layout.cp, layout.tp)
        costs.append(times(layer_passes * stage.layers, gather))
    if layout.ep > 1:
        # Tokens go to their experts and come back, forward and backward.
        sent = activations * arch.experts_per_token / layout.tp
        stride = layout.etp
        exchange = machine.fabric.all_to_all(sent, layout.ep, stride)
        costs.append(times(2 * layer_passes * stage.layers, exchange))
    return together(costs)


def _layer_parameters(model: RoleShape) -> float:
    """Parameters of one layer on one rank."""
    layer = layer_work(model.arch)
    dense = (layer.parameters - layer.expert_parameters) / model.layout.tp
    return dense + _expert_parameters(model)


def _expert_parameters(model: RoleShape) -> float:
    """Parameters of one layer's experts on one rank."""
    layout = model.layout
    return layer_work(model.arch).expert_parameters / (layout.ep * layout.etp)


def _pipelined(
    machine: Machine, model: RoleShape, part: _Part, micro: Cost, directions: int
) -> Cost:
    layout = model.layout
    rounds = part.count + machine.counts_waiting * (layout.pp - 1) / layout.vpp
    costs = [times(rounds, micro)]
    if layout.pp > 1:
        tokens = part.tokens / (part.count * layout.cp)
        size = tokens * model.arch.hidden_size * model.item_bytes
        send = machine.fabric.send(size / layout.tp, layout.tp * layout.dp)
        costs.append(times(directions * layout.vpp * rounds, send))
    return together(costs)


def parameters_per_rank(model: RoleShape) -> float:
    """Parameters of a rank on the largest stage."""
    layout, arch = model.layout, model.arch
    layers = max(_layers(arch.num_layers, layout.pp, layout.vpp))
    vocabulary = arch.vocab_size * arch.hidden_size / layout.tp
    both = layout.pp == 1 and model.has_logits and not arch.tied_embeddings
    return layers * _layer_parameters(model) + vocabulary * (2 if both else 1)


def optimizer_parameters(model: RoleShape) -> float:
    """Parameters whose optimizer state a rank holds; experts have replicas of their own."""
    layout, layer = model.layout, layer_work(model.arch)
    parameters = parameters_per_rank(model)
    experts = model.arch.num_layers / layout.pp * layer.expert_parameters
    experts /= layout.ep * layout.etp
    replicas = layout.tp * layout.dp / (layout.ep * layout.etp)
    return (parameters - experts) / layout.dp + experts / replicas


def _optimizer(machine: Machine, model: RoleShape, micro: Cost) -> Cost:
    """Cost of reducing gradients, Adam on a shard of the parameters, and gathering them."""
    layout, parameters = model.layout, parameters_per_rank(model)
    fabric = machine.fabric
    reduce = fabric.reduce_scatter(_GRADIENT * parameters, layout.dp, layout.tp)
    gather = fabric.all_gather(model.item_bytes * parameters, layout.dp, layout.tp)
    step = _STEP + _CONVERTED * (model.moments != "float32")
    adam = machine.memory(parameters * _ZEROING + optimizer_parameters(model) * step)
    # Two thirds of a micro-batch's time are its backward pass.
    hidden = machine.seconds(micro) * 2 / 3
    whole = machine.seconds(reduce)
    exposed = max(whole - hidden, 0.0) / whole if whole else 0.0
    if not machine.hardware.kind.is_gpu:
        exposed = 1.0
    return together([times(exposed, reduce), gather, adam])
