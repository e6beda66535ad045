"""What doctor's ranks say on nodes of public systems, held against what is true of stand-ins.

The table is nodes_of_systems.txt; nodes.py says what stands in for what. Each row breaks one thing:
the check of its name must have the state of the cell, the checks of ALSO fail with it, and the
others have what they have where nothing is broken. A failure prints all of it. What is said in
words, and which nodes are blamed, is in nodes_in_words.txt for one of the systems.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from tests.unit.cluster.requests import ROOT
from tests.unit.doctor import nodes, table
from tests.unit.doctor.nodes import HOST_BYTES, INFINIBAND, Meeting, Node
from tests.unit.doctor.table import SYSTEMS
from verl_hpc.cli.main import main
from verl_hpc.cluster.profile import load_profile
from verl_hpc.runs.contract import GPUS_PER_NODE
from verl_hpc.runtime.fabric import Fabric
from verl_hpc.runtime.preflight.examine import examine, result_path, write_result

TABLE = Path(__file__).with_name("nodes_of_systems.txt")
WORDS, SPOKEN = Path(__file__).with_name("nodes_in_words.txt"), "leonardo_booster"
FLOORS = {"preflight.min_bandwidth_gb_s": 10.0, "preflight.min_write_gb_s": 0.5}
TCP = {"NCCL_NET": "Socket"}


@dataclass(frozen=True)
class State:
    """What a row does to the first and to the second node, and in which job they are seen."""

    first: Callable[[Node], None]
    second: Callable[[Node], None]
    variables: dict[str, str] = field(default_factory=dict)
    num_nodes: int = 2
    """With one the second node is the whole job."""
    wanted: int | None = None
    """Nodes that were asked for, if not those."""
    has_all: bool = False
    """A rank for each GPU, as the profile has it; else one rank a node, which is twenty times as
    fast as sixteen threads."""


def nothing(node):
    """The node is healthy."""


def each(change, **job):
    """Make a change on both nodes: the image, the environment or the site is at fault."""
    return State(change, change, **job)


def second(change, **job):
    return State(nothing, change, **job)


def put(**values):
    return lambda node: vars(node).update(values)


def lose_tool(node):
    (node.root / "bin/nvidia-smi").unlink(missing_ok=True)


def lose_driver(node):
    lose_tool(node)
    for path in sorted((node.root / "amdgpu").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    put(seen=0, driver=None)(node)


def lose_one(node):
    node.num_gpus -= 1
    lose_driver(node)
    node.install()
    put(driver="580.95.05")(node)


def fail_tool(node):
    if not node.is_amd:
        node.smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")


def too_old(node):
    put(seen=0, driver="550.54.15", complaint="The NVIDIA driver on your system is too old")(node)


def for_cores(node):
    put(seen=0, torch="2.13.0+cpu", cuda=None, hip=None)(node)


def port_down(node):
    if node.infiniband.active:
        node.infiniband = Fabric()


def no_library(node):
    if node.infiniband.active:
        node.infiniband = Fabric(node.infiniband.active)


def none_told(node):
    node.first("ras/umc_err_count", "", 2, "[N/A]")


def far_away(node):
    node.first_near = 512
    node.install()


def in_use(node):
    node.first("mem_info_vram_used", str(2**35), 3, "40000")


LOCKED = put(limits={"MEMLOCK": 65536})
SMALL = put(limits={"AS": 6e9}, seen=0, complaint="out of memory")
STATES = {
    "ranks: a node is missing": each(nothing, num_nodes=1, wanted=2),
    "cores: srun gave a rank one": second(put(bound=1)),
    "gpus: one is lost": second(lose_one, has_all=True),
    "gpus: a node without its driver": second(lose_driver),
    "gpus: no driver in the container": each(lose_driver),
    "gpus: the driver's tool fails": second(fail_tool),
    "gpus: the image lacks the driver's tool": each(lose_tool),
    "gpus: memory errors": second(lambda n: n.first("ras/umc_err_count", "ue: 3", 2, "3")),
    "gpus: hot": second(lambda n: n.first("hwmon/hwmon0/temp1_input", "95000", 1, "95")),
    "gpus: memory in use by others": second(in_use),
    "gpus: memory errors are not told": each(none_told),
    "torch: it counts no GPU": second(put(seen=0, complaint="CUDA unknown error")),
    "torch: a wheel for cores": each(for_cores),
    "torch: a wheel newer than the driver": each(too_old),
    "torch: another version on one node": second(put(torch="2.12.0+cu126", cuda="12.6")),
    "torch: wrong products": second(put(product=32.0)),
    "memory: two kinds of GPUs": second(put(model="NVIDIA L40S")),
    "gpu cores: of the other socket": second(far_away),
    "limits: few open files": second(put(limits={"NOFILE": 1024})),
    "limits: 64 KiB of locked memory": each(LOCKED),
    "limits: 64 KiB, but one node": each(LOCKED, num_nodes=1),
    "limits: 64 KiB, but TCP is chosen": each(LOCKED, variables=TCP),
    "limits: address space below host and GPUs": each(put(limits={"AS": HOST_BYTES})),
    "limits: address space in which CUDA fails": each(SMALL),
    "limits: address space far above": each(put(limits={"AS": 2.0**47})),
    "infiniband: the image lacks its driver": each(no_library),
    "infiniband: that, but one node": each(no_library, num_nodes=1),
    "infiniband: that, but TCP is chosen": each(no_library, variables=TCP),
    "infiniband: a node whose port is down": second(port_down),
    "clocks: 30 s off": second(put(ahead_s=30.0)),
    "run directory: read-only": second(put(written={"run": "Read-only file system"})),
    "run directory: slow": second(put(written={"run": 0.01})),
    "scratch: full": second(put(written={"scratch": "No space left on device"})),
    "pairs: slow": each(put(pair_speed=1.0)),
    "all-reduce: slow": each(put(speed=1.0)),
    "nccl: TCP beside a faster network": each(put(network="Socket")),
    "nccl: TCP is chosen": each(put(network="Socket"), variables=TCP),
    "nccl: it does not say": each(put(network="")),
}
NEED_GPUS = ("infiniband", "nccl", "gpu cores", "memory")
ALSO = {
    "gpus: one is lost": ("torch",),
    "gpus: a node without its driver": ("torch",),
    "gpus: no driver in the container": ("torch",),
    "limits: address space in which CUDA fails": ("torch",),
}
"""Checks that fail with the one of the row, since they see the same fault."""
FOLLOWS = {
    # Ranks that do not all have their GPU compute on cores, and look for no network of GPUs.
    **dict.fromkeys(ALSO, NEED_GPUS),
    "torch: it counts no GPU": NEED_GPUS,
    "torch: a wheel for cores": NEED_GPUS,
    "torch: wrong products": NEED_GPUS,
    "torch: a wheel newer than the driver": NEED_GPUS,
    # TCP is measured where a run would be refused.
    "limits: 64 KiB of locked memory": ("nccl",),
    "limits: address space below host and GPUs": ("nccl",),
    "infiniband: the image lacks its driver": ("nccl",),
    "infiniband: a node whose port is down": (),
    "gpus: the image lacks the driver's tool": ("gpu cores",),
    "gpus: the driver's tool fails": ("gpu cores",),
}
"""Checks that cannot be made, or know nothing, while the one of the row is broken."""


def make(system, site, directory):
    """Two healthy nodes."""
    infiniband = system in INFINIBAND
    made = []
    for name in ("n0", "n1"):
        node = Node(
            name=name,
            is_amd=system == "lumi_g",
            num_gpus=site.gpus_per_node,
            cores=site.cores_per_rank,
            root=directory / name,
            infiniband=nodes.UP if infiniband else Fabric(),
            slingshot=not infiniband,
            network="IB" if infiniband else "AWS Libfabric",
        )
        if node.is_amd:
            put(torch="2.13.0+rocm7.0", cuda=None, hip="7.0", model="AMD Instinct MI250X")(node)
        node.install()
        made.append(node)
    return made


@cache
def load(system, has_all):
    """The profile as shipped, with floors, and with one rank a node unless it has all."""
    more = {} if has_all else {"tasks_per_node": 1}
    return load_profile(ROOT / f"slurm/systems/{system}.yaml", (FLOORS | more).items()).site


def verdicts(monkeypatch, system, directory, state):
    """What rank 0 writes for whoever has submitted the job."""
    site = load(system, state.has_all)
    made = make(system, site, directory)
    state.first(made[0])
    state.second(made[1])
    made = made[-state.num_nodes :]
    with monkeypatch.context() as patch:
        patch.setenv("NCCL_NET", "")  # what the ranks set is undone
        patch.delenv("NCCL_NET")
        for name, value in {**site.environment, **state.variables}.items():
            patch.setenv(name, value)
        patch.setenv(GPUS_PER_NODE, str(site.gpus_per_node))
        gpus = {node.name: nodes.read_gpus(patch, node) for node in made}
        meeting = Meeting(state.num_nodes * site.ranks_per_node)
        nodes.stand_in(patch, meeting)
        log = directory / "nccl.log"
        log.write_text(f"NCCL INFO Using network {made[-1].network}\n")
        wanted = state.wanted or state.num_nodes

        def work(here, node):
            places = directory / "run", directory / "scratch"
            return examine(here, site, *places, gpus[node.name], log, wanted).verdicts

        return nodes.run_ranks(made, meeting, work)


def compare(row, found, healthy):
    found, also = table.states(found), ALSO.get(row.name, ())
    one = table.cell(row, found, healthy, (*also, *FOLLOWS.get(row.name, ())))
    missed = [name for name in also if found.get(name) != "fails"]
    failed = [name for name in FOLLOWS.get(row.name, ()) if found.get(name) == "fails"]
    return one._replace(others=", ".join(filter(None, [one.others, *missed, *failed])))


def test_ranks_say_of_every_system_what_is_true_of_it(tmp_path, monkeypatch):
    rows = table.parse(TABLE.read_text())
    assert [row.name for row in rows] == list(STATES)
    cells, words = {}, ""
    for heading, system in SYSTEMS.items():
        look = partial(verdicts, monkeypatch, system)
        whole = {}
        for kind in ((1, False), (2, False), (2, True)):
            state = each(nothing, num_nodes=kind[0], has_all=kind[1])
            whole[kind] = table.states(look(tmp_path / f"{system}/{kind}", state))
            assert set(whole[kind].values()) == {"ok"}, (system, whole[kind])
        for number, row in enumerate(rows):
            state = STATES[row.name]
            seen = look(tmp_path / f"{system}/row{number}", state)
            kind = state.num_nodes, state.has_all
            cells[row.name, heading] = compare(row, seen, whole[kind])
            if system == SPOKEN:
                words += table.words(row, seen, tmp_path / f"{system}/row{number}")
    text = table.shown(rows, cells)
    assert list(table.wrong(rows, cells)) == [], f"\n{text}"
    table.check_words(WORDS, words)


def test_the_command_reads_what_ranks_have_written(tmp_path, monkeypatch, capsys):
    """From ranks to a line of the terminal, an exit status, and a node that is left out."""
    path = ROOT / "slurm/systems/leonardo_booster.yaml"
    state = STATES["gpus: memory errors"]
    said = verdicts(monkeypatch, "leonardo_booster", tmp_path / "nodes", state)
    job = tmp_path / "doctor/job"
    job.mkdir(parents=True)
    write_result(result_path(job, "7"), said)
    (job / "site.yaml").write_text(path.read_text())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert main(["doctor", "--result", str(tmp_path / "doctor"), "--json"]) == 1
    told = capsys.readouterr()
    assert [one["node"] for one in json.loads(told.out)["failing_nodes"]] == ["n1"]
    assert "n1 is left out of submissions" in told.err
