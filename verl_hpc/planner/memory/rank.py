"""The phases of one rank, and the terms that each of them holds.

The order in which memory changes hands is `trainer.build_roles.build_engines` and
`trainer.sync.WeightSync`: while weights are resharded, what `offload` names is away, but for the
parameters that are sent, and the engine's weights are there; while it generates, these parameters
are away, too, and the cache is there; while training computes, the engine sleeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from verl_hpc.config.role import ACTOR
from verl_hpc.layout.adapters import AdapterShape
from verl_hpc.planner.memory import kept_base, overheads, passes, role, rollout
from verl_hpc.planner.memory.activations import in_flight
from verl_hpc.planner.memory.host import HostMemory, RoleOnRank
from verl_hpc.planner.memory.phase import Phase
from verl_hpc.planner.memory.planned_run import PlannedRun
from verl_hpc.planner.memory.quantised import quantised_copies
from verl_hpc.planner.memory.rollout import RolloutShape
from verl_hpc.planner.memory.sharded import frozen_shards
from verl_hpc.planner.memory.step_rows import columns, longest_row, num_micro_batches, rectangles_of
from verl_hpc.planner.memory.transfer import bucket_bytes, page_locked

Terms = dict[str, int]
_PARTS: Mapping[str, tuple[str, ...]] = {
    "parameters": ("weights", "fp8"),
    "gradients": ("gradients",),
    "optimizer": ("masters", "moments"),
}
"""Terms that each setting of `offload` takes away."""


def _under(name: str, terms: Mapping[str, int]) -> Terms:
    return {f"{name}.{term}": size for term, size in terms.items()}


class Pass(NamedTuple):
    """A pass of a role through its model, and the terms that it adds."""

    phase: str
    of: str
    device: Terms
    host: Terms


class RankMemory:
    """Memory of one rank, phase by phase.

    Args:
        run: the planned run.
        rank: number of the rank.
    """

    def __init__(self, run: PlannedRun, rank: int) -> None:
        self._run, self._rank = run, rank
        self._on_gpu = run.hardware.kind.is_gpu
        self._engine_stage = run.engine_stages.get(rank)
        self._here: dict[str, RoleOnRank] = {}
        """Engines on this rank, by role."""
        for name, shape in run.shapes.items():
            grid = run.layouts.train[name].grid
            if 0 <= rank - grid.first_rank < grid.size:
                place = grid.coordinates(rank)
                shared = role.frozen(shape, place["pp"]) if name in run.layouts.bases else 0
                self._here[name] = RoleOnRank(shape, place["pp"], place["dp"], shared)
        self.host = HostMemory(run, self._here, self._generates)

    def phases(self) -> Iterator[Phase]:
        """Yield all phases of the rank."""
        yield from self._build()
        loading = {"buckets": bucket_bytes(self._on_gpu)}
        yield self._phase("load", "", self._loaded(), loading)
        if self._run.rollout is not None:
            yield from self._rollout_phases()
        for one in self.passes():
            terms = (self.resident(), self._asleep, one.device, self.buckets)
            yield self._phase(one.phase, one.of, *terms, host=one.host)
        if any(shape.trainable for shape, *_ in self._here.values()):
            yield self._phase(
                "save", "", self.resident(), self._asleep, self.buckets, host=self.host.saved()
            )

    # ---------------------------------------------------------------- terms

    @property
    def _generates(self) -> bool:
        return self._engine_stage is not None

    def resident(self) -> Terms:
        """Terms of all engines here, from the second step on."""
        terms: Terms = {}
        for name, here in self._here.items():
            fp8 = role.fp8_copies(here.shape, here.stage)
            terms |= _under(name, here.resident() | {"fp8": fp8})
        return terms

    def _loaded(self) -> Terms:
        """Terms after loading. Moments exist only if building a rollout engine created them, by
        offloading all that is trained; otherwise the first step does."""
        left_out = ("fp8",) if self._generates else ("fp8", "moments")
        return {n: s for n, s in self.resident().items() if n.rpartition(".")[2] not in left_out}

    def kept(self) -> Terms:
        """Terms that stay on the device while the engine generates."""
        terms = self.resident()
        for name in self._here:
            for part, names in _PARTS.items():
                if self.host.goes(name, part):
                    for term in names:
                        del terms[f"{name}.{term}"]
        return terms

    def sending(self) -> Terms:
        """Terms that stay on the device while weights are sent."""
        resident, first = self.resident(), next(iter(self._run.settings), "")
        sent = {f"{first}.{term}" for term in _PARTS["parameters"]}
        return self.kept() | {name: size for name, size in resident.items() if name in sent}

    @property
    def buckets(self) -> Terms:
        """Buffers of the transfer between training and generation."""
        if self._run.rollout is None:
            return {}
        terms = {"buckets": bucket_bytes(self._on_gpu)}
        if (given := self._arriving) is not None:
            terms["rollout.adapters"] = kept_base.factor_bytes(*given)
        return terms

    @property
    def _arriving(self) -> tuple[RolloutShape, AdapterShape, str] | None:
        """The engine here, the adapters that it receives, and their type; None without, and where
        fully_shard's ranks merge them before they send weights."""
        actor = self._run.shapes.get(ACTOR)
        if self._run.rollout is None or not self._generates or actor is None or actor.is_sharded:
            return None
        return (self._run.rollout, actor.adapters, actor.dtype) if actor.adapters else None

    @property
    def _base(self) -> Terms:
        """The base of adapters in host memory."""
        if (given := self._arriving) is None:
            return {}
        shape, adapters, trained = given
        loses = self._on_gpu and bool(self._here)
        size = kept_base.base_bytes(shape, self._engine_stage or 0, adapters, trained, loses)
        return {"rollout.base": page_locked(size) if self._on_gpu else size}

    @property
    def _quantised(self) -> Terms:
        """Quantised copies of weights on their way to an FP8 engine."""
        if self._run.rollout is None or ACTOR not in self._here:
            return {}
        shape, stage, *_ = self._here[ACTOR]
        return {f"{ACTOR}.quantised": quantised_copies(shape, stage, self._run.rollout)}

    @property
    def _merged(self) -> Terms:
        """Rows that fully_shard's ranks merge with adapters before they send them: of all weights,
        or of those that are sent at a time; and one parameter's in float32, twice."""
        engine = self._run.rollout
        if engine is None or ACTOR not in self._here:
            return {}
        shape = self._here[ACTOR].shape
        if not shape.is_sharded or shape.adapters is None:
            return {}
        rows = frozen_shards(shape)
        size = rows.num_elements * engine.item_bytes
        if not engine.arch.is_mapped:
            size = min(size, rollout.arriving_part(engine))
        return {f"{ACTOR}.merged_rows": size + 8 * max(rows.owned(0))}

    @property
    def _asleep(self) -> Terms:
        """Terms of a rollout engine that is not generating."""
        if self._run.rollout is None or self._engine_stage is None:
            return {}
        if self._on_gpu and self._run.rollout.engine == "vllm" and self._here:
            return {"rollout.asleep": rollout.asleep(self._run.rollout)}
        terms = rollout.generating(self._run.rollout, self._engine_stage, self._device)
        if self._run.rollout.engine == "hf":
            terms.pop("kv_cache")
        return _under("rollout", terms)

    @property
    def _device(self) -> int | None:
        return self._run.hardware.device_bytes

    @cached_property
    def overheads(self) -> Terms:
        """Terms of CUDA, NCCL and the columns of a step."""
        if not self._on_gpu:
            return {}
        layouts = [here.shape.layout for here in self._here.values()]
        engine = len(self._run.layouts.replicas[0]) if self._generates else 0
        summing = [(here.shape.layout, here.shape.sums_embeddings) for here in self._here.values()]
        count = overheads.num_communicators(summing, self._rank, engine)
        total, per_node = self._run.layouts.num_ranks, self._run.hardware.ranks_per_node
        many = total > 1
        experts = any(here.shape.arch.is_moe for here in self._here.values())
        peers = overheads.peer_channels(total, per_node, self._run.peers_outside, experts)
        groups = max((layout.num_replicas for layout in layouts), default=1)
        return {
            "context": overheads.CONTEXT,
            "communicators": count * overheads.COMMUNICATOR * many,
            "p2p_channels": peers * many,
            "columns": columns(self._run.config, groups),
        }

    # ---------------------------------------------------------------- phases

    def _phase(
        self,
        name: str,
        of: str,
        *device: Mapping[str, int],
        host: Mapping[str, int] | None = None,
        problem: str | None = None,
        needed: int = 0,
    ) -> Phase:
        hardware = self._run.hardware
        terms = {n: size for part in (*device, self.overheads) for n, size in part.items()}
        # Before everything is built, nothing stays in host memory.
        kept = {} if name == "build" else self.host.page_locked() | self._base
        memory = {**self.host.process(), **kept, **(host or {})}
        return Phase(
            name,
            of,
            self._rank,
            {n: size for n, size in terms.items() if size},
            {n: size for n, size in memory.items() if size},
            hardware.device_bytes,
            hardware.host_bytes_per_rank,
            not self._on_gpu,
            problem,
            needed,
        )

    def _build(self) -> Iterator[Phase]:
        """Yield the phases in which engines are built one after another; parameters exist outside
        their buffers until these are made."""
        before: Terms = {}
        for name, here in self._here.items():
            mine, shape = here.resident(), here.shape
            del mine["moments"]
            apart = role.apart_elements(shape, here.stage) * shape.item_bytes
            # Frozen weights have memory of their own until they share another's; on cores nothing
            # is written there, so that none is taken.
            apart += here.shared * self._on_gpu
            unwrapped = {n: size for n, size in mine.items() if n != "masters"}
            moment = unwrapped | {"apart": apart} if apart > mine["masters"] else mine
            yield self._phase("build", name, before, _under(name, moment))
            before |= _under(name, mine)
        if self._generates:
            yield self._build_rollout()

    def _build_rollout(self) -> Phase:
        """Phase in which vLLM is built: it wants its share of the device free, so all training
        engines are offloaded."""
        run, stage = self._run.rollout, self._engine_stage or 0
        assert run is not None
        return self._phase(
            "build",
            "rollout",
            _under("rollout", rollout.generating(run, stage, self._device)),
            host=self.host.trained_copies(),
            problem=rollout.why_not(run, stage, self._device),
            needed=rollout.needed(run, stage),
        )

    def _rollout_phases(self) -> Iterator[Phase]:
        run, stage = self._run, self._engine_stage
        assert run.rollout is not None
        weights: Terms = {}
        if stage is not None:
            weights = _under("rollout", {"weights": rollout.rollout_weights(run.rollout, stage)})
        if stage is not None and not run.rollout.arch.is_mapped:
            weights["rollout.part"] = rollout.arriving_part(run.rollout)
        sent, rest = self._quantised, self.buckets
        if (given := self._arriving) is not None:
            weights["rollout.merged"] = kept_base.merging_bytes(*given)
        terms = (self.sending(), self._asleep, weights, sent, self._merged, rest)
        yield self._phase("reshard", "", *terms, host=self.host.put_away_while_sending())
        if stage is not None:
            awake = _under("rollout", rollout.generating(run.rollout, stage, self._device))
            host = self.host.put_away()
            yield self._phase("generate", "", self.kept(), awake, self.buckets, host=host)

    def passes(self) -> Iterator[Pass]:
        """Yield the passes of the roles here: first all log-probs, then all updates."""
        for name in self._run.settings:
            yield from self._log_probs(name)
        for name, here in self._here.items():
            if here.shape.trainable:
                yield self._update(name, here)

    def _log_probs(self, name: str) -> Iterator[Pass]:
        """Yield the pass of a role that scores samples; a role that shares another's engine
        computes there with weights from host memory."""
        settings = self._run.settings[name]
        owner = settings.shares or name
        scores = self._run.config.samples_to_train or not settings.trainable
        if owner not in self._here or not scores:
            return
        shape, stage, *_ = self._here[owner]
        work = passes.forward(shape, stage, longest_row(self._run.config, shape.layout))
        host: Terms = {}
        if settings.shares and not self._on_gpu:
            host = {f"{owner}.weights_copy": self.host.first_copy(owner)}
        yield Pass("log_probs", name, self._with_holes(name, work), host)

    def _update(self, name: str, here: RoleOnRank) -> Pass:
        config, (shape, stage, replica, _) = self._run.config, here
        tokens, count = longest_row(config, shape.layout), num_micro_batches(config, shape.layout)
        rectangles = rectangles_of(shape, config)
        work = passes.update(shape, stage, tokens, count, rectangles)
        in_step = {term: work[term] for term in ("placeholders", "gathered")}
        in_step["widened"] = role.widened(shape, stage, replica)
        work = max(work, in_step, key=lambda terms: sum(terms.values()))
        on_host = in_flight(shape, stage, tokens, count, rectangles).on_host
        return Pass("update", name, self._with_holes(name, work), {f"{name}.activations": on_host})

    def _with_holes(self, name: str, work: Mapping[str, int]) -> Terms:
        holes = int(overheads.ALLOCATOR * sum(work.values()))
        return _under(name, work) | ({"allocator": holes} if self._on_gpu else {})
