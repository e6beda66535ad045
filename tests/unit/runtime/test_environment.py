"""What a rank sets before libraries read it, and what it leaves to the user."""

import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_hpc.errors import ConfigError
from verl_hpc.runtime import environment
from verl_hpc.runtime.world import World

WORLD = World(5, 8, 1, 4, node=1, node_of=(0,) * 4 + (1,) * 4, host="n1", device="cpu")


LIBRARIES = ("torch._library", "transformers", "megatron.core", "vllm")


@pytest.fixture
def environ(monkeypatch):
    """An empty environment, and what the module changes in this process put back."""
    system = SimpleNamespace(environ={})
    monkeypatch.setattr(environment, "os", system)
    system.sched_getaffinity = lambda _: {0, 1}
    ours = logging.getLogger("verl_hpc")
    handlers, propagate = ours.handlers, ours.propagate
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    with warnings.catch_warnings():
        yield system.environ
    ours.handlers, ours.propagate = handlers, propagate
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
INTERFACES = {"ib0": "ib0", "ib": "ib0", "hsn,ib": "hsn1", "=ib0": "ib0"}
INTERFACES |= dict.fromkeys(("=ib", "^lo,docker", "eth9", ""))
SET = [
    ({"VLLM_LOGGING_LEVEL": "DEBUG"},
     {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}),
    # Megatron-core's order of collectives and products; CUDA reads it when it starts.
    ({}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    ({"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}),
    ({}, dict(zip(ALLOCATORS, ("expandable_segments:True", None), strict=True))),
    ({ALLOCATORS[0]: ""}, dict(zip(ALLOCATORS, ("", None), strict=True))),
    ({ALLOCATORS[1]: "x"}, dict(zip(ALLOCATORS, (None, "x"), strict=True))),
    # The site's own directory stays; LUMI's page asks for both of MIOpen's.
    ({"VERL_HPC_CACHE": "/tmp/job", "TRITON_CACHE_DIR": "/site"},
     {"TRITON_CACHE_DIR": "/site", "TORCH_EXTENSIONS_DIR": "/tmp/job/torch_extensions",
      "MIOPEN_USER_DB_PATH": "/tmp/job/miopen", "MIOPEN_CUSTOM_CACHE_DIR": "/tmp/job/miopen"}),
    # Gloo follows NCCL's interface; hsn0 is there, and has no address.
    *(({"NCCL_SOCKET_IFNAME": wanted}, {"GLOO_SOCKET_IFNAME": chosen})
      for wanted, chosen in INTERFACES.items()),
    ({"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "mine"}, {"GLOO_SOCKET_IFNAME": "mine"}),
]  # fmt: skip
"""Variables of the user and of the site, and some that libraries then read."""


@pytest.fixture
def interfaces(monkeypatch):
    """Give the node an address of its name, and interfaces, two of which may have no address."""

    def give(address, *names):
        monkeypatch.setattr(environment.socket, "if_nameindex", lambda: list(enumerate(names)))
        without = ("hsn0", "docker0")
        monkeypatch.setattr(environment, "_has_address", lambda name: name not in without)
        monkeypatch.setattr(environment.socket, "gethostbyname", lambda _: address)

    return give


@pytest.mark.parametrize(("given", "expected"), SET)
def test_what_libraries_read_unless_the_user_chose(environ, interfaces, given, expected):
    interfaces("10.0.0.7", "lo", "hsn0", "hsn1", "ib0", "ib1")
    environ |= given
    environment.prepare_environment(3, sharers=2)
    assert {name: environ.get(name) for name in expected} == expected


UNREACHED = {"^lo,docker": "hsn1", "^lo,docker,hsn": "ib0", "^=hsn1": "ib0", "^lo,hsn,ib,d": None}


@pytest.mark.parametrize(("wanted", "chosen"), UNREACHED.items())
def test_gloo_leaves_the_address_of_a_name_that_no_other_node_reaches(
    environ, interfaces, wanted, chosen
):
    interfaces("127.0.1.1", "lo", "docker0", "hsn0", "hsn1", "ib0")
    environ["NCCL_SOCKET_IFNAME"] = wanted
    environment.prepare_environment(3, sharers=2)
    assert environ.get("GLOO_SOCKET_IFNAME") == chosen


THREADS = [(None, 8, 2, 4), (None, 2, 4, 1), (3, 8, 2, 3)]


@pytest.mark.parametrize("threads, cores, sharers, found", THREADS)
def test_cores_are_shared_among_the_ranks_that_have_them(environ, threads, cores, sharers, found):
    environment.os.sched_getaffinity = lambda _: set(range(cores))
    assert environment.prepare_environment(threads, sharers) == found
    assert environ["OMP_NUM_THREADS"] == str(found)


def test_our_warnings_are_printed_and_the_libraries_are_not(environ, capsys):
    environment.prepare_environment(1, sharers=1)
    logging.getLogger("verl_hpc.trainer").warning("a group was dropped")
    for name in LIBRARIES:
        logging.getLogger(f"{name}.deep.inside").warning("advice to developers")
    assert capsys.readouterr().err == "verl_hpc: a group was dropped\n"


@pytest.mark.parametrize("asked, heard", [(None, []), ("default", ["look here"])])
def test_python_warnings_of_libraries_are_heard_only_if_asked_for(environ, asked, heard):
    """An explicit origin, as a library's own module would have."""
    if asked is not None:
        environ["PYTHONWARNINGS"] = asked
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        environment.prepare_environment(1, sharers=1)
        warnings.warn_explicit("look here", UserWarning, "x.py", 1, module="torch.nn.modules")
        warnings.warn_explicit("ours", UserWarning, "y.py", 1, module="verl_hpc.trainer")
    assert [str(w.message) for w in caught] == [*heard, "ours"]


BELOW_SLURM = {"PMI_FD": "11", "SLURM_JOB_ID": "7"}


DEVICES = [
    ("ch4:ucx ofi", BELOW_SLURM, "ofi"),
    ("ch4:ofi,ucx", BELOW_SLURM, "ofi"),
    ("ch4:ucx", BELOW_SLURM, None),
    ("ch4:ofi (MPICH ABI)", BELOW_SLURM, None),
    ("ch3:nemesis", BELOW_SLURM, None),
    ("ch4:ucx ofi", {"PMI_FD": "11"}, None),
    ("ch4:ucx ofi", {"SLURM_JOB_ID": "7"}, None),
    ("ch4:ucx ofi", BELOW_SLURM | {"MPIR_CVAR_CH4_NETMOD": "ucx"}, "ucx"),
]


@pytest.mark.parametrize("device, launcher, network", DEVICES)
def test_ucx_and_other_libraries_are_left_alone_but_for_slurms_own_pmi(
    environ, device, launcher, network
):
    environ |= launcher
    environment.choose_mpi_network("Open MPI v5.0.3, package: Debian, ident: 5.0.3")
    assert environ == launcher
    environment.choose_mpi_network(f"MPICH Version:      5.0.2\nMPICH Device:       {device}\n")
    assert environ.get("MPIR_CVAR_CH4_NETMOD") == network


@pytest.mark.parametrize("cores, name", [(8, "29123"), (7, "29123-rank5")])
def test_shared_memory_is_shared_only_where_every_thread_has_a_core(environ, cores, name):
    environ |= {"OMP_NUM_THREADS": "2", "MASTER_PORT": "29123"}
    environment.os.cpu_count = lambda: cores
    environment.name_shared_memory(WORLD)
    assert environ["VLLM_DIST_IDENT"] == name


LAUNCHERS = [
    ({}, 0),
    ({"PMI_RANK": "2"}, 2),
    ({"PMIX_RANK": "3"}, 3),
    ({"SLURM_PROCID": "4"}, 4),
    ({"SLURM_PROCID": "0", "PMI_RANK": "1"}, 1),
]


@pytest.mark.parametrize("announced, rank", LAUNCHERS)
def test_the_rank_before_mpi_starts(environ, announced, rank):
    environ |= announced
    assert environment.launcher_rank() == rank


@pytest.mark.parametrize("seed, again", [(None, True), ("random", True), ("0", False)])
def test_hashing_is_fixed_by_starting_again_once(environ, seed, again):
    started = []
    environment.os.execv = lambda *words: started.append(words)
    if seed is not None:
        environ["PYTHONHASHSEED"] = seed
    environment.fix_hash_seed()
    assert environ["PYTHONHASHSEED"] == "0"
    assert started == [(sys.executable, sys.orig_argv)] * again


SCRATCH = [
    ({}, "/tmp"),
    ({"TMPDIR": "/scratch"}, "/scratch"),
    ({"TMPDIR": "/scratch", "SLURM_TMPDIR": "/job"}, "/job"),
    ({"TMPDIR": "/scratch", "SLURM_TMPDIR": ""}, "/scratch"),
]


@pytest.mark.parametrize("given, directory", SCRATCH)
def test_scratch_is_the_jobs_own_where_there_is_one(environ, given, directory):
    environ |= given
    assert environment.scratch_directory() == Path(directory)


def test_more_threads_than_cores_are_refused_before_there_are_any(monkeypatch):
    monkeypatch.setattr(environment.os, "cpu_count", lambda: 8)
    environment.check_threads(8)
    with pytest.raises(ConfigError, match=r"threads_per_rank = 9: \S+ has 8 cores; choose fewer"):
        environment.check_threads(9)


def test_an_interface_that_has_an_address():
    assert environment._has_address("lo")
    assert not environment._has_address("no_such_name")


def test_the_name_at_which_a_node_is_reached(environ):
    assert environment.node_address("jwb1.juwels") == "jwb1.juwels"
    for template, address in (("{node}i", "jwb1i"), ("ib-{node}.x", "ib-jwb1.x")):
        environ["VERL_HPC_NODE_ADDRESS"] = template
        assert environment.node_address("jwb1.juwels") == address


def test_hidden_gpus(environ):
    environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    environment.hide_gpus()
    assert environ["CUDA_VISIBLE_DEVICES"] == environ["HIP_VISIBLE_DEVICES"] == ""
