"""The search against all there is, on few ranks; and what it finds is what a run executes."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import architecture
from verl_hpc.errors import ConfigError
from verl_hpc.planner.hardware import KINDS, GpuKind, Hardware
from verl_hpc.planner.layouts import ROLLOUT
from verl_hpc.planner.search.cuts import cuts_of, rollout_sizes
from verl_hpc.planner.search.emit import applied, laid_out, overrides_of
from verl_hpc.planner.search.flow_time import FlowTime
from verl_hpc.planner.search.memory import FormulaMemory
from verl_hpc.planner.search.options import Options
from verl_hpc.planner.search.placements import allotments, set_partitions
from verl_hpc.planner.search.search import Candidate, search
from verl_hpc.planner.timing.generation import at_a_time
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.operator_costs import CONTEXT_BYTES, engines
from verl_hpc.planner.timing.step import predict_step
from verl_hpc.planner.timing.workload import workload_of

SMALL = architecture(
    num_layers=4,
    hidden_size=1024,
    ffn_size=4096,
    num_heads=8,
    num_kv_heads=4,
    head_size=128,
    vocab_size=32000,
    max_positions=4096,
)
PPO = {
    **GAE,
    "algorithm__kl": {"placement": "reward"},
    "rollout__max_prompt_tokens": 256,
    "rollout__max_response_tokens": 1024,
}
REWARD = {"roles": {"reward": {"path": "models/reward"}}}


def machine(ranks_per_node=4, memory_gib=None):
    kind = KINDS["A100-80"]
    if memory_gib is not None:
        fields = {f: getattr(kind, f) for f in kind.__dataclass_fields__}
        kind = GpuKind(**{**fields, "memory_gib": memory_gib})
    return Machine(Hardware(kind, ranks_per_node))


class Sizes(FormulaMemory):
    """With no constants that hide the differences between small layouts."""

    @property
    def limit(self):
        return self._hardware.device_bytes


class NoContext(Sizes):
    def engine(self, engines):
        weights, whole = super().engine(engines)
        return weights, whole - CONTEXT_BYTES


def every_layout(config, archs, on, num_ranks, memory):
    """The seconds of everything that there is, by `predict_step` on the run's own layouts."""
    roles, work = config.role_settings, workload_of(config)
    partitions = set_partitions(tuple(roles))
    if config.rollout.staleness:
        partitions = [(*sets, (ROLLOUT,)) for sets in partitions]
    for sets in partitions:
        for sizes in allotments(num_ranks, 1, [1] * len(sets)):
            yield from of_sizes(config, roles, archs, on, sets, sizes, memory, work)


def of_sizes(config, roles, archs, on, sets, sizes, memory, work):
    per_node = on.hardware.ranks_per_node
    size_of = {role: size for found, size in zip(sets, sizes, strict=True) for role in found}
    mates = {role: found for found in sets for role in found}
    seated = [n for n, one in roles.items() if one.shares is None or one.shares not in mates[n]]
    choices = [
        cuts_of(archs[n], size_of[n], per_node, roles[n].parallel.recompute, roles[n].trainable)
        for n in seated
    ]
    where = ROLLOUT if config.rollout.staleness else "actor"
    tps = rollout_sizes(archs["actor"], size_of[where], per_node, 1)
    for *cuts, tp in product(*choices, tps):
        options = dict(zip(seated, map(Stub, cuts), strict=True))
        if where == ROLLOUT:
            options[ROLLOUT] = Stub(None, tp)
        else:
            options["actor"] = Stub(options["actor"].cut, tp)
        if fits(config, archs, on, sets, size_of, options, memory, work, where, tp):
            candidate = Candidate(sets, sizes, options, 0.0, {})
            chosen, layouts = laid_out(config, candidate, archs, per_node)
            yield predict_step(chosen, archs["actor"], layouts, on, archs=archs).seconds


class Stub:
    def __init__(self, cut, rollout_tp=None):
        self.cut, self.rollout_tp = cut, rollout_tp


def fits(config, archs, on, sets, size_of, options, memory, work, where, tp):
    serving = engines(config, archs["actor"], on, size_of[where], tp)
    if at_a_time(serving, work) < 1:
        return False
    for roles in sets:
        held = [memory.role(n, options[n].cut) for n in roles if n in options and n != ROLLOUT]
        resident = sum(h.resident for h in held)
        peaks = [resident + max([h.working for h in held], default=0)]
        if where in roles:
            arriving, engine = memory.engine(serving)
            peaks += [resident + arriving, sum(h.generating for h in held) + engine]
        if max(peaks) > memory.limit:
            return False
    return True


def found_and_best(num_ranks, per_node, memory_gib, changes):
    config = parse(**PPO, **changes)
    archs, on = dict.fromkeys(config.role_settings, SMALL), machine(per_node, memory_gib)
    memory = NoContext(config, archs, on.hardware, workload_of(config))
    expected = min(every_layout(config, archs, on, num_ranks, memory), default=None)
    try:
        found = search(config, archs, on, num_ranks, memory=memory).best.seconds
    except ConfigError:
        found = None
    return found, expected


OFFLOADS = {"parameters": True, "gradients": True, "optimizer": True}


@settings(max_examples=10, deadline=None)
@given(
    num_ranks=st.integers(1, 4),
    memory_gib=st.sampled_from([1.0, 1.6, 2.2, 2.6, 2.8, 3.0, 3.3, 80.0]),
    size=st.sampled_from([4, 32, 256]),
    mini_batches=st.sampled_from([1, 4]),
    offloads=st.booleans(),
    has_reward=st.booleans(),
)
def test_nothing_is_faster_than_what_is_found(
    num_ranks, memory_gib, size, mini_batches, offloads, has_reward
):
    changes = dict(
        batch__size=size,
        batch__mini_batches=mini_batches,
        batch__max_tokens_per_micro_batch=2048,
        rollout__kv_cache_gib=0.25,
        offload=OFFLOADS if offloads else {},
        **(REWARD if has_reward and num_ranks < 3 else {}),
    )
    found, expected = found_and_best(num_ranks, 8, memory_gib, changes)
    assert found == (None if expected is None else pytest.approx(expected))


def every_combination(config, archs, on, num_ranks, memory):
    """The same from the seconds and bytes of single layouts, all of them, of more ranks."""
    flow = FlowTime(config)
    options = Options(config, archs, on, workload_of(config), memory, flow.works)
    hosts = [on.efficiency.operators] * len(flow.works) + [0.0]
    for sets in set_partitions(tuple(config.role_settings)):
        number = {role: i for i, roles in enumerate(sets) for role in roles}
        placed = flow.on({**number, ROLLOUT: number["actor"]}, [True] * len(sets))
        for sizes in allotments(num_ranks, 1, [1] * len(sets)):
            seats = [
                [(i, o) for o in options._all(role, sizes[i], role in sets[0], ())]
                for role, i in number.items()
            ]
            for seated in product(*seats):
                if all(holds(memory, [o for i, o in seated if i == n]) for n in range(len(sets))):
                    durations = [
                        sum(d) for d in zip(hosts, *(o.seconds for _, o in seated), strict=True)
                    ]
                    yield placed.seconds(durations[:-1], durations[-1])


def holds(memory, options):
    resident = sum(o.resident for o in options)
    generating = sum(o.generating + o.engine[1] for o in options)
    arriving = resident + sum(o.engine[0] for o in options)
    peak = max(resident + max(o.working for o in options), generating, arriving)
    return peak <= memory.limit


@pytest.mark.parametrize("memory_gib", [0.5, 0.6, 0.75, 80.0])
@pytest.mark.parametrize(("num_ranks", "size"), [(16, 16), (16, 256), (12, 64)])
def test_nor_on_sixteen_ranks(memory_gib, num_ranks, size):
    config = parse(**GAE, batch__size=size, rollout__kv_cache_gib=0.125)
    archs, on = dict.fromkeys(config.role_settings, SMALL), machine(16, memory_gib)
    memory = NoContext(config, archs, on.hardware, workload_of(config))
    expected = min(every_combination(config, archs, on, num_ranks, memory), default=None)
    try:
        found = search(config, archs, on, num_ranks, memory=memory).best.seconds
    except ConfigError:
        found = None
    assert found == (None if expected is None else pytest.approx(expected))


def test_with_staleness_rollout_has_ranks_of_its_own():
    changes = dict(rollout__staleness=1, rollout__kv_cache_gib=0.25, placement={"rollout": "1/2"})
    found, expected = found_and_best(4, 8, 12.0, changes)
    assert found == pytest.approx(expected)


def the_best(num_ranks=8, per_node=4, **changes):
    config = parse(**PPO, **REWARD, **changes)
    archs, on = dict.fromkeys(config.role_settings, SMALL), machine(per_node)
    return config, archs, on, search(config, archs, on, num_ranks)


def test_ppo_has_the_papers_fifteen_placements():
    _, _, _, found = the_best()
    assert found.placements == 15
    assert len(found.ranking) + len(found.misfits) == 15


def test_every_candidate_is_a_run_of_the_seconds_that_it_promises():
    config, archs, on, found = the_best()
    for candidate in found.ranking:
        chosen, layouts = laid_out(config, candidate, archs, 4)
        step = predict_step(chosen, SMALL, layouts, on, archs=archs)
        assert step.seconds == pytest.approx(candidate.seconds)
        assert step.operators == pytest.approx(candidate.operators)


def test_what_is_found_does_not_depend_on_what_the_file_said():
    config, archs, on, found = the_best()
    again = applied(config, overrides_of(config, found.ranking[-1]))
    assert search(again, archs, on, 8).best.seconds == pytest.approx(found.best.seconds)


def test_ranks_that_fill_no_node():
    with pytest.raises(ConfigError, match="6 ranks fill no whole number of nodes of 4"):
        the_best(6)


def test_nothing_fits():
    config = parse(**PPO)
    archs = dict.fromkeys(config.role_settings, SMALL)
    with pytest.raises(ConfigError, match="nothing fits on 2 ranks"):
        search(config, archs, machine(4, 2.0), 2)
