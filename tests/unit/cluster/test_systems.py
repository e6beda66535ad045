"""Profiles of public systems: their dry runs hold what the centres' own texts ask for.

The lines are those of the pages and scripts that the head of each profile names.
"""

import shlex

import pytest

from tests.unit.cluster.goldens import GOLDEN, ROOT
from tests.unit.cluster.requests import request
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.profile import load_profile
from verl_hpc.errors import ConfigError

MASKS = ",".join(f"0xfe{'0' * zeros}" for zeros in (12, 14, 4, 6, 0, 2, 8, 10))
PAGES = {
    "lumi_g": (
        "partition=standard-g", "gpus-per-node=8", "ntasks-per-node=8", "cpus-per-task=7",
        "mem=480G", "$ module use /appl/local/laifs/modules",
        "$ module load lumi-aif-singularity-bindings", f"srun --cpu-bind=mask_cpu:{MASKS}",
        "no srun --mpi=pmi2", "no singularity exec --rocm",
    ),
    "leonardo_booster": (
        "partition=boost_usr_prod", "ntasks-per-node=4", "cpus-per-task=8", "gres=gpu:4",
        "mem=494000", "export NCCL_SOCKET_IFNAME=ib0", "no qos=boost_qos_bprod",
        "no gpus-per-node=4",
    ),
    "juwels_booster": (
        "partition=booster", "gres=gpu:4", "hint=nomultithread",
        "export CUDA_VISIBLE_DEVICES=0,1,2,3", "export VERL_HPC_NODE_ADDRESS={node}i",
        "export NCCL_SOCKET_IFNAME=ib0", "export GLOO_SOCKET_IFNAME=ib0",
        "export NCCL_IB_TIMEOUT=50", "export NCCL_IB_RETRY_CNT=10", "export UCX_RC_TIMEOUT=4s",
        "export SRUN_CPUS_PER_TASK=12", "no srun --gpu-bind=none", "no mem=0",
    ),
    "perlmutter_gpu": (
        "qos=regular", "constraint=gpu&hbm80g", "ntasks-per-node=4", "cpus-per-task=32",
        "gpus-per-node=4", "export CUDA_VISIBLE_DEVICES=3,2,1,0", "export NCCL_NET=AWS Libfabric",
        "export NCCL_SOCKET_IFNAME=hsn", "export NCCL_CROSS_NIC=1",
        "export FI_MR_CACHE_MONITOR=userfaultfd", "export HDF5_USE_FILE_LOCKING=FALSE", "no mem=0",
    ),
    "marenostrum5_acc": (
        "qos=acc_ehpc", "cpus-per-task=20", "gres=gpu:4", "export SRUN_CPUS_PER_TASK=20",
        "$ module load singularity", "no mem=0",
    ),
    "roihu_gpu": (
        "partition=gpularge", "ntasks-per-node=4", "cpus-per-task=72", "gres=gpu:gh200:4",
        "$ module purge", "$ module load python-pytorch", "no mem=0",
    ),
    "alps_clariden": (
        "ntasks-per-node=4", "constraint=thp_never&nvidia_vboost_enabled", "srun --mpi=pmix",
        "srun --network=disable_rdzv_get", "srun --environment=$IMAGE", "$ ulimit -c 0",
        "no gpus-per-node=4", "no mem=0",
    ),
    "alex_a100": (
        "gres=gpu:a100:8", "constraint=a100_80", "qos=a100multi", "export=NONE",
        "cpus-per-task=16", "#!/bin/bash -l", "$ unset SLURM_EXPORT_ENV", "srun --export=ALL",
        "export SRUN_CPUS_PER_TASK=16", "no mem=0",
    ),
}  # fmt: skip
FILES = sorted((ROOT / "slurm/systems").glob("*.yaml"))
MANDATORY = {"lumi_g", "leonardo_booster", "juwels_booster", "marenostrum5_acc", "roihu_gpu"}


def asked_for(script):
    """A script's options, lines and words, in the words of PAGES."""
    lines = script.splitlines()
    asked = {lines[0], *(f"$ {line}" for line in lines)}
    for line in script.replace("\\\n", "").splitlines():
        first, *words = (
            shlex.split(line) if line.startswith(("#SBATCH", "export", "srun")) else [""]
        )
        if first == "#SBATCH":
            asked |= {word.removeprefix("--") for word in words}
        if first == "export":
            asked |= {f"export {word}" for word in words}
        if first == "srun":
            asked |= {f"srun {word}" for word in words if word.startswith("--")}
            asked |= {f"singularity exec {word}" for word in words if "singularity" in words}
    return asked


def test_eight_systems_are_there():
    assert {path.stem for path in FILES} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_dry_run_is_what_the_centre_asks_for(name):
    asked = asked_for((GOLDEN / f"systems/{name}.sbatch").read_text())
    wanted = {line for line in PAGES[name] if not line.startswith("no ")}
    unwanted = {line.removeprefix("no ") for line in PAGES[name]} - wanted
    assert (wanted - asked, unwanted & asked) == (set(), set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_not_verified_is_said_in_the_file(path):
    head = path.read_text().partition("\nname:")[0]
    assert "Not run by us." in head
    assert "Not verified" in head


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_account_that_is_mandatory(path, tmp_path):
    profile = load_profile(path)
    if path.stem not in MANDATORY:
        assert plan_job(request(tmp_path, site=profile))
        return
    with pytest.raises(ConfigError, match=f"account: {path.stem} charges every job to one"):
        plan_job(request(tmp_path, site=profile))
