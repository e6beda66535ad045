"""Ranks from Slurm's variables."""

from types import SimpleNamespace

import pytest
import torch

from verl_hpc.errors import LaunchError
from verl_hpc.runtime import bootstrap, session
from verl_hpc.runtime.bootstrap import SlurmBootstrap, check_address, expand_counts, read_step

STEP = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "11",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[08-09],m1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
}  # fmt: skip


def test_a_step():
    step = read_step(STEP)
    assert (step.job, step.step, step.rank, step.size, step.local_size) == (4711, 2, 5, 11, 4)
    assert step.hosts == ("n08", "n09", "m1")
    assert read_step(STEP | {"SLURM_NODEID": "2"}).local_size == 3


ASKED_CORES = [
    ("12", 12, 96, 1),  # bound to its own
    ("1", 2, 96, 1),  # whole physical cores are given
    ("12", 96, 96, 4),  # not bound: every rank may run everywhere
    ("4", 2, 2, 4),  # a node that has not got what was asked for
    (None, 24, 96, 4),
]


@pytest.mark.parametrize("asked, cores, node_cores, sharers", ASKED_CORES)
def test_ranks_share_cores_only_where_they_are_not_bound_to_their_own(
    asked, cores, node_cores, sharers
):
    variables = STEP | ({"SLURM_CPUS_PER_TASK": asked} if asked else {})
    assert read_step(variables).sharers(cores, node_cores) == sharers


class OtherRanks:
    """The control plane, with the hosts and cores of the other ranks."""

    def __init__(self, others):
        self.others = others

    def allgather(self, mine):
        return [mine, *self.others]


OTHER_CORES = [
    ([("here", {2, 3}), ("here", {4, 5})], 1),
    ([("here", {0, 1}), ("here", {0, 1})], 3),
    ([("here", {1, 2}), ("there", {0, 1})], 2),
]


@pytest.mark.parametrize("others, sharers", OTHER_CORES)
def test_mpi_ranks_count_whose_cores_overlap(monkeypatch, others, sharers):
    monkeypatch.setattr(bootstrap, "Control", lambda *_: OtherRanks(others))
    monkeypatch.setattr(bootstrap.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(bootstrap.os, "sched_getaffinity", lambda _: {0, 1})
    job = object.__new__(bootstrap.MpiBootstrap)
    job._channel, job._timeout_s = None, 1.0
    assert job.sharers() == sharers


def test_counts():
    assert [expand_counts(t) for t in ("4", "4(x2),3", "1,2")] == [[4], [4, 4, 3], [1, 2]]
    for text in ("", "4(x)", "x", "4(2)"):
        with pytest.raises(LaunchError, match="expected counts such as"):
            expand_counts(text)


@pytest.mark.parametrize("name", STEP)
def test_a_variable_that_is_missing(name):
    told = f"--bootstrap slurm: {name} is not set.*srun --mpi=none"
    with pytest.raises(LaunchError, match=told):
        read_step({key: value for key, value in STEP.items() if key != name})


def test_variables_that_disagree():
    for change in ({"SLURM_NTASKS": "12"}, {"SLURM_STEP_NODELIST": "n08"}):
        with pytest.raises(LaunchError, match="do not change Slurm's variables"):
            read_step(STEP | change)


def test_ports_differ_between_the_jobs_and_steps_of_a_node():
    jobs = [{"SLURM_JOB_ID": str(j), "SLURM_STEP_ID": str(s)} for j in range(80) for s in range(9)]
    ports = [read_step(STEP | job).port for job in jobs]
    assert len(set(ports)) == len(ports)
    assert 20000 <= min(ports) <= max(ports) < 32000
    assert read_step(STEP).port == read_step(STEP | {"SLURM_PROCID": "0"}).port


def test_a_node_that_has_no_address_here_is_told_at_once():
    check_address("localhost")
    with pytest.raises(LaunchError, match=r"nowhere\.invalid, the node of rank 0, .*/etc/hosts"):
        check_address("nowhere.invalid")


def test_ranks_meet_at_the_name_that_the_site_gives_its_nodes(monkeypatch):
    """With and without MPI; JSC's nodes reach each other at NAMEi alone."""
    monkeypatch.setenv("VERL_HPC_NODE_ADDRESS", "{node}.invalid")
    with pytest.raises(LaunchError, match=r"^n08\.invalid, the node of rank 0"):
        SlurmBootstrap(read_step(STEP), 1.0).connect()
    control = SimpleNamespace(broadcast=lambda value: value, together=lambda work: work())
    world = SimpleNamespace(num_nodes=2, host="n08")
    with pytest.raises(LaunchError, match=r"^n08\.invalid, the node of rank 0"):
        session.start_torch(world, control, torch.get_num_threads(), 1.0)


def test_nccl_connects_all_ranks_before_any_of_them_sends(monkeypatch):
    """Sends and receives of a transfer may leave ranks out, which NCCL's first call must not."""
    calls = []
    store = SimpleNamespace(port=29500)
    for module, names in (
        (torch.distributed, {"TCPStore": store, "init_process_group": None, "all_reduce": None}),
        (torch.cuda, {"set_device": None, "synchronize": None}),
        (session.environment, {"announce_world": None, "choose_compiler": None}),
        (session.gloo, {"share_device": None}),
        (torch, {"zeros": None, "set_num_threads": None}),
    ):
        for name, value in names.items():
            noted = lambda *_, name=name, value=value, **__: calls.append(name) or value  # noqa: E731
            monkeypatch.setattr(module, name, noted)
    control = SimpleNamespace(broadcast=lambda value: value, together=lambda work: work())
    world = SimpleNamespace(num_nodes=1, host="n0", rank=0, size=2, device="cuda:0")
    session.start_torch(world, control, 1, 1.0)
    started = calls.index("init_process_group")
    assert calls[started - 1 :] == [
        "set_device", "init_process_group", "zeros", "all_reduce", "synchronize",
    ]  # fmt: skip
