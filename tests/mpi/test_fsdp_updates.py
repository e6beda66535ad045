"""Three updates by fully_shard are those of transformers with torch's AdamW, for each dense family,
and of Megatron-core, within 1e-5 in float32: gradients (of Megatron-core, as first moments have
them) and weights.

Adam divides by the root of the second moment and epsilon. With an epsilon of 1e-8 a gradient that
is nothing but rounding moves its weight as far as any, and weights of sums in another order are
half a step apart. So weights are compared with an epsilon about as large as gradients are; with the
default one an update is held against AdamW of the gradients that the engine itself had.
"""

from collections.abc import Mapping

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.mpi.engines_for_tests import (
    build_engine,
    gathered,
    held,
    responses,
    same,
    some_sequences,
)
from tests.mpi.mixtures import DENSE
from tests.mpi.parity import (
    TOLERANCE,
    fill_head,
    head_weight,
    num_outputs,
    once,
    replica_share,
    score_loss,
)
from tests.slow import REASON
from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.megatron import TrainLayout

pytestmark = pytest.mark.world(2, 4, often=2)
CONDITIONED = {"epsilon": 2e-3, "lr": 2e-3}
"""A gradient that is 1e-7 apart moves a weight 1e-7 apart; every tensor moves by 5e-4 or more."""
BETAS = (0.9, 0.95)
# The second step is of moments, and leaves all ranks but one without a sequence.
# Some sequences of the last one begin alike.
BATCHES = [some_sequences(n, 256, seed=1) for n in (7, 1)] + [responses(2, 4, 256)]
SETTINGS = {
    "untied": dict(tied=False),
    "value": dict(head="value"),
    "score": dict(head="score"),
    "recomputed": dict(recompute="full"),
    "kept": dict(fsdp=FsdpConfig(reshard_after_forward=False), clip_grad=0.5),
    "hybrid": dict(fsdp=FsdpConfig(shard_size=2), max_tokens=40, clip_grad=1.0),
    "copies": dict(fsdp=FsdpConfig(shard_size=1, forward_prefetch=True)),
    # Norms do not decay.
    "decayed": dict(max_tokens=40, weight_decay=1.0),
}
CASES = [
    # Groups of two are all ranks where there are two.
    pytest.param(settings, id=name, marks=[pytest.mark.world(4)] if name == "hybrid" else [])
    for name, settings in SETTINGS.items()
]
FURTHER = [
    pytest.param(*case.values, id=case.id, marks=pytest.mark.slow(reason=REASON))
    for case in CASES[::2]
]
FAMILIES = [pytest.param({"family": family}, id=family) for family in DENSE]
OUTPUT = {"language_model": "log_probs", "value": "values", "score": "scores"}


class Model:
    """A transformers model in one process, with torch's AdamW."""

    def __init__(self, directory, head, settings) -> None:
        kind = AutoModelForSequenceClassification if head == "score" else AutoModelForCausalLM
        self._model = kind.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )
        self._model.get_input_embeddings().padding_idx = None
        self.weights = dict(self._model.named_parameters())
        if head == "value":
            whole = head_weight(self._model.config.hidden_size)
            self.weights[HEAD_TENSORS[head]] = torch.nn.Parameter(whole)
        self._head, self._clip = head, settings.get("clip_grad") or float("inf")
        decay = settings.get("weight_decay", 0.0)
        self._adam = adamw(self.weights.values(), decay=decay, **CONDITIONED)

    def copied(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach().clone() for name, weight in self.weights.items()}

    def outputs(self, sequence: torch.Tensor) -> torch.Tensor:
        """Log-probs, values, or one score."""
        if self._head == "language_model":
            logits = self._model(sequence[None]).logits[0, :-1]
            return logits.log_softmax(-1).gather(-1, sequence[1:, None])[:, 0]
        hidden = self._model.model(sequence[None]).last_hidden_state[0]
        found = hidden @ self.weights[HEAD_TENSORS[self._head]][0]
        return found[:-1] if self._head == "value" else found[-1:]

    def update(self, batch) -> tuple[float, float, dict[str, torch.Tensor]]:
        """Loss, gradient norm and gradients."""
        self._adam.zero_grad()
        loss = sum(self.outputs(s).square().sum() for s in batch) / num_outputs(self._head, batch)
        loss.backward()
        gradients = {n: w.grad.clone() for n, w in self.weights.items()}
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), self._clip)
        self._adam.step()
        return loss.item(), norm.item(), gradients


def adamw(weights, *, lr, epsilon, decay=0.0) -> torch.optim.AdamW:
    """torch's own; no vector decays."""
    weights = list(weights)
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": decay},
        {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, eps=epsilon)


def gradients_at_step(engine) -> dict[str, torch.Tensor]:
    """Filled in the engine's updates from now on: reduced gradients of this rank's rows."""
    seen: dict[str, torch.Tensor] = {}
    step = engine.optimizer.step

    def spy():
        seen.update({name: g.clone() for name, g in engine.optimizer.gradients().items()})
        return step()

    engine.optimizer.step = spy
    return seen


def rows_equal(engine, memory: Mapping[str, torch.Tensor], whole: Mapping[str, torch.Tensor]):
    """Weights or gradients of this rank are its rows of whole tensors by logical name."""
    owned = engine.shard_map.held_by(torch.distributed.get_rank())
    assert {region.view.name for region in owned} == set(memory)
    for region in owned:
        wanted = whole[region.tensor].detach()[region.box.slices]
        torch.testing.assert_close(held(memory, region), wanted, atol=TOLERANCE, rtol=0)


def built(here, tiny_model, settings):
    """An engine of data parallelism alone, and its model's directory."""
    settings = CONDITIONED | settings
    family, of_scores = settings.pop("family", "qwen3"), settings.get("head") == "score"
    tied = settings.pop("tied", True) and not of_scores
    more = {"head": "score"} if of_scores else {}
    directory = tiny_model(family, tied, num_hidden_layers=4, **more)
    size = settings["fsdp"].shard_size if "fsdp" in settings else None
    layout = TrainLayout(dp=here.world.size, shard_size=size)
    engine = build_engine(here, directory, layout, **settings)
    if engine.head == "value":
        fill_head(engine)
    return engine, directory


@pytest.mark.parametrize("settings", [*FAMILIES, *CASES])
def test_updates_equal_transformers_with_adamw(here, tiny_model, settings):
    engine, directory = built(here, tiny_model, settings | {"engine": "fsdp"})
    share, seen = replica_share(engine.layout), gradients_at_step(engine)

    def by_transformers():
        """The weights at first, what each update gives and the weights after it, and outputs."""
        model = Model(directory, engine.head, settings)
        first = model.copied()
        updates = [(*model.update(batch), model.copied()) for batch in BATCHES]
        with torch.no_grad():
            return first, updates, [model.outputs(s) for s in BATCHES[0]]

    first, updates, wanted = once(here, by_transformers)
    for batch, (loss, norm, gradients, weights) in zip(BATCHES, updates, strict=True):
        metrics = engine.update(batch[share], score_loss(engine.head, batch))
        assert metrics["loss"] == pytest.approx(loss, rel=TOLERANCE, abs=TOLERANCE)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=TOLERANCE, abs=TOLERANCE)
        rows_equal(engine, seen, gradients)
        rows_equal(engine, engine.weights, weights)
    for name, weight in weights.items():
        assert (weight - first[name]).abs().max() > 50 * TOLERANCE, name
    outputs = [getattr(o, OUTPUT[engine.head]) for o in engine.infer(BATCHES[0][share])]
    torch.testing.assert_close(outputs, wanted[share], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("settings", [*CASES[1::2], *FURTHER])
def test_updates_equal_megatron(here, tiny_model, settings):
    """Also all outputs before them."""
    settings = dict(settings)
    ours = {n: settings.pop(n) for n in ("fsdp", "recompute") if n in settings}
    one, _ = built(here, tiny_model, settings | {"engine": "megatron"})
    other, _ = built(here, tiny_model, settings | ours | {"engine": "fsdp"})
    share = replica_share(one.layout)
    mine = BATCHES[0][share]
    for theirs, ours_of in zip(one.infer(mine), other.infer(mine), strict=True):
        fields = {n: v for n, v in vars(theirs.detached()).items() if v is not None}
        assert OUTPUT[one.head] in fields
        same({name: getattr(ours_of, name) for name in fields}, fields, TOLERANCE)
    for batch in BATCHES:
        loss = score_loss(one.head, batch)
        theirs, ours_of = (engine.update(batch[share], loss) for engine in (one, other))
        assert ours_of == pytest.approx(theirs, rel=TOLERANCE, abs=TOLERANCE)
        wanted, states = (state(here, engine) for engine in (one, other))
        assert wanted.keys() == states.keys()
        for name, tensor in wanted.items():
            # A first moment has a tenth of a gradient; large squares count by their size.
            far = TOLERANCE if name.startswith("main/") else TOLERANCE * (1 - BETAS[0])
            near = TOLERANCE if name.startswith("exp_avg_sq/") else 0.0
            torch.testing.assert_close(states[name], tensor, atol=far, rtol=near, msg=name)
    wanted, weights = (gathered(here, e.shard_map, e.weights) for e in (one, other))
    same(weights, wanted, TOLERANCE)


def state(here, engine):
    """Master weights and both moments, whole."""
    return gathered(here, engine.optimizer_map(), engine.optimizer_tensors())


def test_an_update_is_adamws_of_its_own_gradients(here, tiny_model):
    """With the default epsilon, clipped; a gradient of rounding alone makes the same step."""
    default = {"epsilon": 1e-8, "lr": 1e-3}
    settings = {"weight_decay": 1.0, "clip_grad": 0.5, "engine": "fsdp"}
    engine, _ = built(here, tiny_model, settings | default)
    share, seen = replica_share(engine.layout), gradients_at_step(engine)
    weights = {n: torch.nn.Parameter(w.clone()) for n, w in engine.weights.items()}
    adam = adamw(weights.values(), decay=1.0, **default)
    for batch in BATCHES:
        norm = engine.update(batch[share], score_loss(engine.head, batch))["grad_norm"]
        assert norm > 0.5
        for name, weight in weights.items():
            weight.grad = seen[name] * (0.5 / norm)
        adam.step()
        updated = {name: weight.data for name, weight in weights.items()}
        torch.testing.assert_close(engine.weights, updated, atol=1e-7, rtol=1e-6)
