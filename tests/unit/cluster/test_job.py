"""What a job asks Slurm for: options, mounts, variables, and the origin of each."""

import pytest

from tests.unit.cluster.requests import CONTAINERS, profile, request
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT, RUN_CONFIG, SITE
from verl_hpc.errors import ConfigError


def plan(directory, *overrides, overridden=None, **fields):
    return plan_job(request(directory, *overrides, site=profile(directory, overridden, **fields)))


def values(settings):
    return {setting.name: setting.value for setting in settings}


def origins(settings):
    return {setting.name: setting.origin for setting in settings}


def among(found, expected):
    """The values of the names that are expected; `...` for those that are not there."""
    return {name: found.get(name, ...) for name in expected}


GPU_RANKS = {"ntasks-per-node": "4", "gpus-per-node": "4", "cpus-per-task": "8"}
SHARED = {"exclusive": False}
GRES = {"gpu_request": "gres"}
MORE = ["--gres=nvme:1", "--constraint=a", "--constraint=b", "--licenses=x", "--licenses=y"]
HOSTS = ["--exclude=n[5,3]", "--exclude=n[1,3]"]
OWN = {"extra_directives": ["--gres=gpu:4,nvme:1"]}
VALUES = [
    # One rank per GPU that sees all GPUs.
    ({}, "directives", GPU_RANKS | {"gpus-per-task": ...}),
    ({}, "srun", GPU_RANKS | {"gpus-per-task": ..., "gpu-bind": "none", "kill-on-bad-exit": "1"}),
    ({}, "environment", {"SRUN_CPUS_PER_TASK": "8", "CUDA_VISIBLE_DEVICES": ...}),
    # Without MPI nothing else would end the other ranks.
    ({"mpi": "none"}, "srun", {"mpi": "none", "kill-on-bad-exit": "1"}),
    ({}, "directives", {"signal": "USR2@900", "requeue": None, "no-requeue": ...}),
    ({"signal_lead_s": 1800}, "directives", {"signal": "USR2@1800"}),
    ({"restarts": {"by": "chain"}}, "directives", {"requeue": ..., "no-requeue": None}),
    ({}, "environment", {"VERL_HPC_KEPT_CACHES": ..., "HF_HUB_OFFLINE": "1"}),
    ({"offline": False}, "environment", {"HF_HUB_OFFLINE": ...}),
    ({"code": "installed"}, "environment", {"PYTHONPATH": ...}),
    # Words of the site replace ours, lists of Slurm grow, and others follow.
    ({"extra_directives": ["--mem=900G", "--contiguous"]}, "directives",
     {"mem": "900G", "contiguous": None}),
    ({"srun_args": ["--cpu-bind=mask_cpu:0xff,0xff00", "--label"]}, "srun",
     {"cpu-bind": "mask_cpu:0xff,0xff00", "label": None}),
    (GRES | {"extra_directives": MORE}, "directives",
     {"gres": "gpu:4,nvme:1", "licenses": "x,y", "constraint": "b"}),
    # A second request of GPUs takes the place of the first; none is not an item of a list.
    (GRES | {"extra_directives": ["--gres=gpu:8"]}, "directives", {"gres": "gpu:8"}),
    (GRES | {"extra_directives": ["--gres=none"]}, "directives", {"gres": "none"}),
    (GRES | {"extra_directives": ["--gres=none", "--gres=gpu:4"]}, "directives", {"gres": "gpu:4"}),
    ({"extra_directives": HOSTS}, "directives", {"exclude": "n[5,3],n[1,3]"}),
    ({"gpu_request": "none"} | OWN, "directives", {"gres": "gpu:4,nvme:1", "gpus-per-node": ...}),
    ({"drop_directives": ["gpus-per-node"]} | OWN, "directives",
     {"gres": "gpu:4,nvme:1", "gpus-per-node": ...}),
    ({"drop_directives": ["gpus-per-node"]}, "srun", {"gpus-per-node": ...}),
    ({"extra_directives": ["--gpus-per-node=h100:4"]}, "directives", {"gpus-per-node": "h100:4"}),
    # A job of a shared node does not take all its memory.
    ({}, "directives", {"mem": "0"}),
    (SHARED, "directives", {"mem": ...}),
    (SHARED | {"memory": "0"}, "directives", {"mem": ...}),
    (SHARED | {"memory": "120G"}, "directives", {"mem": "120G"}),
    ({"memory": None}, "directives", {"mem": ...}),
    # Steps take over what the script exports.
    ({}, "srun", {"export": "ALL"}),
    ({"srun_args": ["--export=ALL,X=1"]}, "srun", {"export": "ALL,X=1"}),
    ({"extra_directives": ["--export=NONE"]}, "directives", {"export": "NONE"}),
    *(
        ({"extra_directives": [f"--export={given}"], "pass_environment": ["A", "B"]}, "directives",
         {"export": exported, "get-user-env": user_env})
        for given, exported, user_env in (
            ("NONE", "A,B", None), ("none", "A,B", None), ("NIL", "A,B", ...),
            ("C,D=1", "C,D=1,A,B", ...), ("ALL,D=1", "ALL,D=1", ...), ("all", "all", ...),
        )
    ),
    ({"pass_environment": ["WANDB_API_KEY"]}, "passed", {"WANDB_API_KEY": None}),
    ({"pass_environment": ["WANDB_API_KEY"]}, "environment", {"WANDB_API_KEY": ...}),
    ({}, "variables", {"IMAGE": ...}),
    # Packages of whoever submits do not shadow those of an image, without which they may be all
    # that there is.
    ({}, "environment", {"PYTHONNOUSERSITE": ...}),
    *(({"container": CONTAINERS[kind]}, "environment",
       {"PYTHONNOUSERSITE": "1", "PYTHONPATH": "$RUN/job/code"})
      for kind in ("pyxis", "apptainer", "bwrap", "podman")),
]  # fmt: skip
"""Fields of a site, a part of the job, and the values of some of its settings."""


@pytest.mark.parametrize(("fields", "part", "expected"), VALUES)
def test_values_of_settings(tmp_path, fields, part, expected):
    assert among(values(getattr(plan(tmp_path, **fields), part)), expected) == expected


def test_variables_of_the_ranks_win_over_those_of_an_image(tmp_path):
    job = plan(tmp_path, container=CONTAINERS["pyxis"], pass_environment=["HF_TOKEN"])
    names = values(job.srun)["container-env"].split(",")
    assert names == ["VERL_HPC_ATTEMPT", *values(job.environment), "HF_TOKEN"]


def test_origins_of_options(tmp_path):
    job = plan(tmp_path, "name=other", account="site's", overridden={"qos": "high"}, mpi="pmix")
    expected = {
        "job-name": COMMAND_LINE, "account": SITE, "qos": COMMAND_LINE, "nodes": COMMAND_LINE,
        "time": COMMAND_LINE, "mem": DEFAULT, "signal": DEFAULT, "open-mode": DEFAULT,
        "gpus-per-node": SITE, "partition": ...,
    }  # fmt: skip
    assert among(origins(job.directives), expected) == expected
    assert origins(job.srun)["mpi"] == SITE
    bare = plan(tmp_path, extra_directives=["--mem=900G"]).directives
    assert (origins(bare)["job-name"], origins(bare)["mem"]) == (RUN_CONFIG, SITE)
    assert len(bare) == len(values(bare)), "each option is there once"


def test_a_short_job_is_warned_within_its_time(tmp_path):
    short = plan_job(request(tmp_path, time="10")).directives
    assert values(short)["signal"] == "USR2@200"
    assert origins(short)["signal"] == "default: a third of 600 s"


def test_the_sites_variables_win_and_say_so(tmp_path):
    variables = {"NCCL_NET": "IB", "WANDB_MODE": "online"}
    job = plan(tmp_path, overridden={"environment.NCCL_DEBUG": "INFO"}, environment=variables)
    assert values(job.environment)["WANDB_MODE"] == "online"
    expected = {"WANDB_MODE": SITE, "NCCL_NET": SITE, "NCCL_DEBUG": COMMAND_LINE}
    expected["PYTHONHASHSEED"] = DEFAULT
    assert among(origins(job.environment), expected) == expected


def test_what_a_run_writes_to_is_on_top_of_what_the_site_mounts(tmp_path):
    """A profile may show a whole project read-only, the checkout and the run's directory in it."""
    container = {**CONTAINERS["bwrap"], "mounts": ["/scratch/project:/scratch/project:ro"]}
    targets = [mount.target for mount in plan(tmp_path, container=container).mounts]
    assert targets.index("/scratch/project") < targets.index("$PWD")


def test_mounts_and_their_origins(tmp_path):
    bare = plan(tmp_path)
    assert (bare.mounts, bare.prefix) == ((), ())
    fields = {"node_scratch": "/local", "caches": "$PROJECT/caches"}
    inside = plan(tmp_path, container=CONTAINERS["apptainer"], **fields)
    expected = {"$PWD": DEFAULT, "/local": SITE, "/data": SITE, "$CACHES": SITE}
    assert {mount.source: mount.origin for mount in inside.mounts} == expected
    outside = plan(tmp_path, "directory=/elsewhere", container=CONTAINERS["bwrap"])
    assert [m.origin for m in outside.mounts if m.source == "$RUN"] == [COMMAND_LINE]


@pytest.mark.parametrize(
    ("overrides", "fields", "message"),
    [
        (["directory='a b'"], {}, "directory = "),
        (["directory='a%j'"], {}, "directory = "),
        (["directory='x:y'"], {}, "directory = "),
        # A relative directory of caches would be another with every submission.
        ([], {"caches": "mine"}, "caches = 'mine'"),
        ([], {"drop_directives": ["gres"]}, "'gres' is not an option.*gpus-per-node"),
        *(
            ([], {"srun_args": [f"--export={value}"]}, r"srun_args.*export=ALL,NAME=value")
            for value in ("NONE", "nil", "A,B=1")
        ),
    ],
)
def test_what_is_refused(tmp_path, overrides, fields, message):
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, *overrides, **fields)


def test_numbers_of_nodes_that_no_cluster_has_and_a_chain_with_a_script_of_its_own(tmp_path):
    for nodes in (0, -1, 65_534, 99_999_999_999):
        with pytest.raises(ConfigError, match=f"--nodes {nodes}: from 1 to 65533"):
            plan_job(request(tmp_path, nodes=nodes))
    site = profile(tmp_path, restarts={"by": "chain"})
    with pytest.raises(ConfigError, match="--resume-by chain"):
        plan_job(request(tmp_path, site=site, standalone=True))


@pytest.mark.parametrize(
    "fields, option",
    [
        ({}, ("gpus-per-node", "4")),
        ({"gpu_type": "h100"}, ("gpus-per-node", "h100:4")),
        ({"gpu_request": "gres"}, ("gres", "gpu:4")),
        ({"gpu_request": "gres", "gpu_type": "gh200"}, ("gres", "gpu:gh200:4")),
        ({"gpu_request": "none"}, None),
    ],
)
def test_gpus_are_written_once_and_come_out_as_the_site_asks(tmp_path, fields, option):
    job = plan(tmp_path, **fields)
    for settings in (job.directives, job.srun):
        asked = [(s.name, s.value) for s in settings if s.name in ("gpus-per-node", "gres")]
        assert asked == ([] if option is None else [option])
    assert ("gpu-bind" in values(job.srun)) == (option is not None)


@pytest.mark.parametrize("name", ["extra_directives", "srun_args"])
@pytest.mark.parametrize(
    "fields, word, other",
    [
        ({"gpu_request": "gres"}, "--gpus-per-node=4", "--gres=gpu:4 [site]"),
        ({"gpu_request": "gres"}, "--gpus=8", "--gres=gpu:4 [site]"),
        ({}, "--gpus-per-task=1", "--gpus-per-node=4 [site]"),
        ({}, "--gres=nvme:1,gpu:a100:4", "--gpus-per-node=4 [site]"),
    ],
)
def test_gpus_are_asked_for_once(tmp_path, name, fields, word, other):
    with pytest.raises(ConfigError) as refused:
        plan(tmp_path, **fields, **{name: [word]})
    told = f"{name}: {word} [site] asks for GPUs, as {other} does; leave one out: set gpu_request"
    assert str(refused.value).startswith(told)


WORDS = ["gpus-per-node=2", "gpus-per-node=h100:2", "gres=nvme:8,gpu:2", "gres=gpu:h100"]


@pytest.mark.parametrize("word", WORDS)
def test_jobs_have_the_gpus_that_ranks_are_started_for(tmp_path, word):
    told = r"extra_directives: --.*\[site\]: is less than gpus_per_node = 4"
    with pytest.raises(ConfigError, match=told):
        plan(tmp_path, gpu_request=word.partition("=")[0], extra_directives=[f"--{word}"])
