"""An exhaustive search: every placement, allotment and layout as a configuration of its own, timed
by `predict_step` and refused by `ledger`. It shares nothing with the search that it is held
against."""

from itertools import combinations, product

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.timing.step import predict_step


def fastest(tree, archs, machine, num_ranks, spare_bytes=0):
    """Seconds of the fastest step of all that fits; None where nothing does.

    Args:
        tree: settings as nested dictionaries, without placements and layouts.
        archs: of every role.
        machine: what it runs on.
        num_ranks: of the job.
        spare_bytes: left free on every device.
    """
    best, hardware = None, machine.hardware
    for config in configurations(tree, archs, num_ranks, hardware.ranks_per_node):
        first = archs[next(iter(config.role_settings))]
        try:
            layouts = run_layouts(
                config, first, num_ranks, archs=archs, ranks_per_node=hardware.ranks_per_node
            )
        except ConfigError:
            continue
        if any(0 in row for one in layouts.train.values() for row in stages(first, one)):
            continue  # a stage without layers is none of the search's
        seconds = predict_step(config, archs, layouts, machine).seconds
        if best is None or seconds < best:
            planned = ledger(config, archs, layouts, hardware)
            room = planned.least_room_bytes
            if planned.fits and (room is None or room >= spare_bytes):
                best = seconds
    return best


def stages(arch, layout):
    count = layout.pp * layout.vpp
    most = -(-arch.num_layers // count)
    rows = [most] * count
    short = most * count - arch.num_layers
    rows[-1] -= short >= 1
    rows[0] -= short >= 2
    return [rows]


def configurations(tree, archs, num_ranks, per_node):
    base = RunConfig.model_validate(tree)
    roles = base.role_settings
    unit = 1 if num_ranks <= per_node else per_node
    for sets in partitions(list(roles)):
        stale = [["rollout"]] if base.rollout.staleness else []
        for sizes in compositions(num_ranks, len(sets + stale), unit):
            yield from of_allotment(tree, base, archs, sets + stale, sizes, per_node)


def of_allotment(tree, base, archs, sets, sizes, per_node):
    roles = base.role_settings
    where = {name: number for number, one in enumerate(sets) for name in one}
    engines = {n for n, one in roles.items() if where.get(one.shares) != where[n]}
    serving = sizes[where.get("rollout", where[next(iter(roles))])]
    choices = [
        layouts(roles[n], archs[n], sizes[where[n]], per_node) for n in roles if n in engines
    ]
    sections = dict(zip((n for n in roles if n in engines), range(len(choices)), strict=True))
    tps = (
        [
            tp
            for tp in divisors(serving)
            if per_node % tp == 0 and archs[next(iter(roles))].num_heads % tp == 0
        ]
        if base.generates
        else [1]
    )
    for *chosen, tp in product(*choices, tps):
        parallel = {name: chosen[place] for name, place in sections.items()}
        yield configuration(tree, sets, sizes, where, parallel, tp)


def configuration(tree, sets, sizes, where, parallel, tp):
    labels, begin = {}, 0
    for one, size in zip(sets, sizes, strict=True):
        labels[one[0]] = f"{begin}-{begin + size - 1}"
        begin += size
    own = {
        name: tree.get("roles", {}).get(name, {})
        | {"parallel": section, "placement": sets[where[name]][0]}
        for name, section in parallel.items()
    }
    shared = {n: r for n, r in tree.get("roles", {}).items() if n not in own}
    return RunConfig.model_validate(
        tree
        | {"placement": labels, "roles": own | shared, "parallel": parallel.get("actor", {})}
        | {"rollout": tree["rollout"] | {"tensor_parallel": tp}}
    )


def layouts(role, arch, num_ranks, per_node):
    """Sections `parallel` of a role."""
    sections = []
    for tp, pp, vpp in product(divisors(num_ranks), divisors(num_ranks), (1, 2, 4)):
        if per_node % tp or num_ranks % (tp * pp) or (vpp > 1 and pp == 1):
            continue
        if arch.num_heads % tp or pp * vpp > arch.num_layers:
            continue
        for recompute in dict.fromkeys(
            [role.parallel.recompute, "full"] if role.trainable else ["none"]
        ):
            section = {"tensor_parallel": tp, "pipeline_parallel": pp, "virtual_pipeline": vpp}
            section |= {"sequence_parallel": tp > 1, "recompute": recompute}
            sections.append(section)
    return sections


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


def partitions(names):
    if not names:
        return [[]]
    first, rest = names[0], names[1:]
    found = []
    for count in range(len(rest) + 1):
        for others in combinations(rest, count):
            left = [name for name in rest if name not in others]
            found += [[[first, *others], *more] for more in partitions(left)]
    return found


def compositions(total, count, unit):
    """Ways to write a number of ranks as a sum of `count` multiples of `unit`."""
    sizes = range(unit, total + 1, unit)
    return [one for one in product(sizes, repeat=count) if sum(one) == total]
