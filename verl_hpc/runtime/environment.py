"""Environment of a rank, set before torch or vLLM is imported. os.environ is written only here."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import struct
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from verl_hpc.errors import ConfigError
from verl_hpc.runs.contract import ATTEMPT, CACHE_DIRECTORY, CACHES, NODE_ADDRESS
from verl_hpc.runtime.device import MASKS
from verl_hpc.runtime.world import World

_LIBRARY_DEFAULTS = {
    # vLLM's engine core must live in this process, not in a child of it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Its warnings are about the choices made for it here, once per rank.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # Compute nodes have no way out; a library that tries to phone home only waits.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # Large host tensors in pages of 2 MiB: the kernel clears them several times as fast.
    "THP_MEM_ALLOC_ENABLE": "1",
    # With one queue to the GPU, Megatron-core's collectives start before the products that they
    # are meant to hide behind. Read when CUDA starts.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
_WAIT_ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
"""Where ranks share cores a spinning OpenMP team starves its neighbours."""

_ALLOCATOR_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Settings of torch's allocator on GPUs; the first that is set counts."""
_ALLOCATOR = "expandable_segments:True"
"""Rows of ever new lengths leave holes between blocks of fixed sizes. vLLM switches it off while
it allocates what its sleep mode frees."""


_SIOCGIFADDR = 0x8915
"""The kernel's request for an interface's address (netdevice(7))."""
_QUIET_MODULES = r"(torch|vllm|megatron|transformers|importlib)(\.|$)"
"""Libraries whose advice to their own developers would be printed by every rank."""


def prepare_environment(threads: int | None, sharers: int) -> int:
    """Set what libraries read at import; a value the user has set stays.

    Args:
        threads: CPU threads of this rank; None takes its share of the cores it may run on.
        sharers: ranks of this node, this one included, that may run on these cores.

    Returns:
        The number of CPU threads of this rank.
    """
    for name, value in (_LIBRARY_DEFAULTS | (_WAIT_ASLEEP if sharers > 1 else {})).items():
        os.environ.setdefault(name, value)
    if (directory := os.environ.get(CACHE_DIRECTORY)) is not None:
        for name, kind in CACHES.items():
            os.environ.setdefault(name, f"{directory}/{kind}")
    _choose_gloo_interface()
    if not any(name in os.environ for name in _ALLOCATOR_NAMES):
        os.environ[_ALLOCATOR_NAMES[0]] = _ALLOCATOR
    if "PYTHONWARNINGS" not in os.environ:
        for category in (DeprecationWarning, FutureWarning, UserWarning):
            warnings.filterwarnings("ignore", category=category, module=_QUIET_MODULES)
    _speak_for_ourselves()
    cores = len(os.sched_getaffinity(0))
    count = threads or max(cores // sharers, 1)
    os.environ["OMP_NUM_THREADS"] = str(count)
    return count


def check_threads(count: int) -> None:
    """Before any is made: too many take a node down, and everybody on it.

    Raises:
        ConfigError: more than this node has cores.
    """
    cores = os.cpu_count() or 1
    if count > cores:
        raise ConfigError(
            f"runtime.threads_per_rank = {count}: {socket.gethostname()} has {cores} cores; "
            "choose fewer, or leave it out"
        )


def _speak_for_ourselves() -> None:
    """Print this package's warnings, and only errors of the libraries below it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("verl_hpc: %(message)s"))
    ours = logging.getLogger("verl_hpc")
    ours.handlers = [handler]
    ours.propagate = False
    for library in ("torch._library", "transformers", "megatron.core", "vllm"):
        logging.getLogger(library).setLevel(logging.ERROR)


def announce_world(world: World, address: str, port: int) -> None:
    """Set the torchrun-style variables that vLLM reads, from the world that MPI gave.

    It takes LOCAL_RANK for the index of its GPU, which it is not if every rank sees only its own.
    """
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(world.device_index),
        LOCAL_WORLD_SIZE=str(world.local_size),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )


def _choose_gloo_interface() -> None:
    """Have gloo use the interface that is chosen for NCCL, where none is chosen for gloo.

    NCCL takes the beginnings of names, or after `=` whole ones; gloo takes whole names alone. After
    `^` is a list of what not to use: gloo then keeps the address of the host's name, unless that
    is of this node alone, as 127.0.1.1 in Debian's and Ubuntu's /etc/hosts.
    """
    wanted = os.environ.get("NCCL_SOCKET_IFNAME", "")
    if "GLOO_SOCKET_IFNAME" in os.environ or not wanted:
        return
    if wanted.startswith("^"):
        if _named_by_itself():
            _choose_other_interface(wanted[1:].removeprefix("=").split(","), wanted[1:2] == "=")
        return
    for name in wanted.removeprefix("=").split(","):
        for _, interface in socket.if_nameindex():
            begins = not wanted.startswith("=") and interface.startswith(name)
            if (begins or interface == name) and _has_address(interface):
                os.environ["GLOO_SOCKET_IFNAME"] = interface
                return


def _choose_other_interface(unwanted: Sequence[str], whole: bool) -> None:
    """Have gloo use the first interface with an address that is not named, as NCCL does."""
    for _, interface in socket.if_nameindex():
        left_out = interface in unwanted if whole else interface.startswith(tuple(unwanted))
        if not left_out and interface != "lo" and _has_address(interface):
            os.environ["GLOO_SOCKET_IFNAME"] = interface
            return


def _named_by_itself() -> bool:
    """Whether this host's name leads to an address at which no other node reaches it."""
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return False


def _has_address(interface: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return False
    return True


def node_address(host: str) -> str:
    """The name at which other nodes reach `host`: its own, or as the site profile makes it."""
    template = os.environ.get(NODE_ADDRESS)
    return host if template is None else template.replace("{node}", host.partition(".")[0])


def hide_gpus() -> None:
    """Leave this process its cores alone. Before torch is imported, which counts GPUs once."""
    for name in MASKS:
        os.environ[name] = ""


def choose_mpi_network(library: str) -> None:
    """Keep an MPICH that has UCX and libfabric, too, from using UCX below Slurm's PMI.

    With UCX it publishes 4096 bytes for an address of some hundred, so that the rest is whatever
    lay beside it in memory, in lines of up to 1,073 characters. Slurm's PMI server reads 1,024 at
    a time and takes each for a whole request: the longest lines are never answered, and ranks wait
    in MPI_Init forever. MPICH's issue 6924. Libfabric's addresses are short.

    Args:
        library: what MPI_Get_library_version says.
    """
    device = re.search(r"MPICH Device:\s*ch4:(.*)", library)
    networks = device[1].replace(",", " ").split() if device else []
    by_slurm = "PMI_FD" in os.environ and "SLURM_JOB_ID" in os.environ
    if by_slurm and {"ucx", "ofi"} <= set(networks):
        os.environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")


def choose_compiler(device: str) -> None:
    """No torch.compile on CPU ranks: for the little that vLLM compiles there, every rank waits
    seconds for a C++ compiler. Before torch._dynamo is imported, which reads the variable once.
    """
    if device == "cpu":
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")


def uses_other_network() -> bool:
    """Whether the user or the site has chosen something else than InfiniBand for NCCL."""
    named = os.environ.get("NCCL_NET", "IB").upper() != "IB"
    plugin = os.environ.get("NCCL_NET_PLUGIN", "none") not in ("", "none")
    return named or plugin or os.environ.get("NCCL_IB_DISABLE", "0") != "0"


def use_network(name: str) -> None:
    """Have NCCL use IB or Socket, which is TCP. Before NCCL starts, which reads it once."""
    os.environ["NCCL_NET"] = name


def log_nccl(file: Path) -> Path:
    """Have NCCL write down what it uses. Before NCCL starts.

    Returns:
        Where it does: `file`, or what the user has set.
    """
    for name, value in (("DEBUG", "INFO"), ("DEBUG_SUBSYS", "INIT,NET"), ("DEBUG_FILE", str(file))):
        os.environ.setdefault(f"NCCL_{name}", value)
    return Path(os.environ["NCCL_DEBUG_FILE"])


def name_shared_memory(world: World) -> None:
    """Name vLLM's shared-memory segments on CPUs, or keep its ranks from using any.

    Its all-reduce spins on shared memory; with more ranks than cores, gloo is faster. Ranks whose
    names differ fall back to gloo. vLLM overwrites the name, so each engine needs it anew.
    """
    threads = int(os.environ["OMP_NUM_THREADS"])
    fits = (os.cpu_count() or 1) >= world.local_size * threads
    suffix = "" if fits else f"-rank{world.rank}"
    os.environ["VLLM_DIST_IDENT"] = f"{os.environ['MASTER_PORT']}{suffix}"


def launcher_rank() -> int:
    """This process's rank as its launcher says, before MPI is started; 0 if there is none."""
    for name in ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


def launcher_size() -> int | None:
    """Processes that the launcher has started, before MPI is started; 1 if there is none, and None
    if it does not say."""
    for name in ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        if name in os.environ:
            return int(os.environ[name])
    return None if is_launched() else 1


def is_launched() -> bool:
    """Whether mpiexec or srun has started this process."""
    ranks = ("PMI_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS")
    return any(name in os.environ for name in ranks)


def take_over(process: int, **changed: str) -> None:
    """Take the variables that `process`, one of this user's, was started with, but `changed`."""
    text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="surrogateescape")
    pairs = (line.partition("=") for line in text.split("\0") if line)
    os.environ.update({name: value for name, _, value in pairs} | changed)


def fix_hash_seed() -> None:
    """Run the same program again with hashing that does not change from process to process.

    Sets of strings iterate in hash order; reward functions and data sets use them, and ranks must
    agree. Python reads the seed when it starts, so this must come before MPI does.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606


def setting(name: str, default: str) -> str:
    """One variable of the environment, for the few settings that a test or a site may inject."""
    return os.environ.get(name, default)


def for_helper(root: Path) -> dict[str, str]:
    """Variables of a Python process that needs nothing but this package, which is below `root`."""
    names = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG")
    found = {name: os.environ[name] for name in names if name in os.environ}
    return found | {"PYTHONPATH": str(root)}


def for_tools(root: Path) -> dict[str, str]:
    """Variables of a Python process that runs code of the user, and is no rank: all but those of
    launchers. This package is below `root`."""
    launchers = ("PMI_", "PMI2_", "PMIX_", "MPI_", "MPIR_", "HYDRA_", "OMPI_")
    found = {name: v for name, v in os.environ.items() if not name.startswith(launchers)}
    path = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return found | {"PYTHONPATH": os.pathsep.join(path)}


def node_name() -> str:
    """This node, as Slurm calls it: the host's name may be another, and --exclude takes Slurm's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def has_rank_logs() -> bool:
    """Whether what a rank prints goes into a file of its node, each line with the rank before."""
    return ATTEMPT in os.environ


def job_id() -> str:
    """Slurm's number of the job; "local" without Slurm."""
    return os.environ.get("SLURM_JOB_ID", "local")


def expanded(path: str) -> Path:
    """A path of a site profile, its variables taken from the environment."""
    return Path(os.path.expandvars(path))


def scratch_directory() -> Path:
    """Node-local scratch: the job's own if Slurm gives one, else the system's."""
    return Path(os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # noqa: S108
