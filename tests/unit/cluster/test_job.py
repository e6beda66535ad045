"""What a job asks Slurm for: options, mounts, variables, and the origin of each."""

import re

import pytest

from tests.unit.cluster.requests import CONTAINERS, CPU_SITE, profile, request, write
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.setting import COMMAND_LINE, DEFAULT, RUN_CONFIG, SITE
from verl_hpc.errors import ConfigError


def plan(directory, *overrides, overridden=None, **fields):
    return plan_job(request(directory, *overrides, site=profile(directory, overridden, **fields)))


def values(settings):
    return {setting.name: setting.value for setting in settings}


def origins(settings):
    return {setting.name: setting.origin for setting in settings}


def test_one_rank_per_gpu_that_sees_all_gpus(tmp_path):
    job = plan(tmp_path)
    for options in (values(job.directives), values(job.srun)):
        assert options["ntasks-per-node"] == "4"
        assert options["gpus-per-node"] == "4"
        assert options["cpus-per-task"] == "8"
        assert "gpus-per-task" not in options
    assert values(job.srun)["gpu-bind"] == "none"
    assert values(job.srun)["kill-on-bad-exit"] == "1"
    assert values(job.environment)["SRUN_CPUS_PER_TASK"] == "8"
    assert "CUDA_VISIBLE_DEVICES" not in values(job.environment)


def test_ranks_that_do_without_mpi(tmp_path):
    job = plan(tmp_path, mpi="none")
    assert values(job.srun)["mpi"] == "none"
    assert values(job.srun)["kill-on-bad-exit"] == "1", "nothing else would end the others"
    assert " train --bootstrap slurm --config " in " ".join(job.command)
    assert "--bootstrap" not in plan(tmp_path).command


def test_nodes_without_gpus_ask_for_none(tmp_path):
    site = load_profile(write(tmp_path / "cpu.yaml", CPU_SITE))
    job = plan_job(request(tmp_path, site=site))
    assert not [s.name for s in (*job.directives, *job.srun) if "gpu" in s.name]
    assert values(job.srun)["ntasks-per-node"] == "2"


def test_origins_of_options(tmp_path):
    job = plan(tmp_path, "name=other", account="site's", overridden={"qos": "high"}, mpi="pmix")
    found = origins(job.directives)
    assert found["job-name"] == COMMAND_LINE
    assert (found["account"], found["qos"]) == (SITE, COMMAND_LINE)
    assert (found["nodes"], found["time"]) == (COMMAND_LINE, COMMAND_LINE)
    assert (found["mem"], found["signal"], found["open-mode"]) == (DEFAULT, DEFAULT, DEFAULT)
    assert found["gpus-per-node"] == SITE
    assert origins(job.srun)["mpi"] == SITE
    assert "partition" not in found
    assert origins(plan(tmp_path).directives)["job-name"] == RUN_CONFIG


def test_the_warning_reaches_ranks_and_not_the_shell(tmp_path):
    assert values(plan(tmp_path).directives)["signal"] == "USR2@900"
    assert values(plan(tmp_path, signal_lead_s=1800).directives)["signal"] == "USR2@1800"
    short = plan_job(request(tmp_path, time="10")).directives
    assert values(short)["signal"] == "USR2@200"
    assert origins(short)["signal"] == "default: a third of 600 s"


def test_both_ways_to_go_on(tmp_path):
    assert "requeue" in values(plan(tmp_path).directives)
    chained = values(plan(tmp_path, restarts={"by": "chain"}).directives)
    assert "no-requeue" in chained
    assert "requeue" not in chained


# Escape hatches


def test_extra_options_replace_ours_and_others_follow(tmp_path):
    job = plan(
        tmp_path,
        extra_directives=["--mem=900G", "--gres=nvme:1", "--contiguous"],
        srun_args=["--cpu-bind=mask_cpu:0xff,0xff00", "--label"],
    )
    assert values(job.directives)["mem"] == "900G"
    assert values(job.directives)["gres"] == "nvme:1"
    assert values(job.directives)["contiguous"] is None
    assert values(job.srun)["cpu-bind"] == "mask_cpu:0xff,0xff00"
    assert origins(job.directives)["mem"] == SITE
    names = [s.name for s in job.directives]
    assert len(names) == len(set(names))


def test_dropped_options_are_in_neither(tmp_path):
    job = plan(tmp_path, drop_directives=["gpus-per-node", "exclusive"])
    assert not {"gpus-per-node", "exclusive"} & {s.name for s in (*job.directives, *job.srun)}


def test_dropping_what_is_not_there_is_a_mistake(tmp_path):
    with pytest.raises(
        ConfigError, match=r"drop_directives: 'gres' is not an option.*gpus-per-node"
    ):
        plan(tmp_path, drop_directives=["gres"])


# Variables


def test_caches_are_node_local_and_the_jobs_own(tmp_path):
    job = plan(tmp_path, node_scratch="$LOCAL_SCRATCH")
    cache = values(job.variables)["CACHE"]
    assert re.fullmatch(r"\$\{LOCAL_SCRATCH:\?.*\}/verl_hpc-\$SLURM_JOB_ID", cache)
    assert values(job.environment)["VERL_HPC_CACHE"] == "$CACHE"


def test_compile_caches_are_kept_where_the_site_says(tmp_path):
    assert "VERL_HPC_KEPT_CACHES" not in values(plan(tmp_path).environment)
    job = plan(tmp_path, caches="$PROJECT/caches", container=CONTAINERS["apptainer"])
    kept = values(job.variables)["CACHES"]
    assert re.fullmatch(r"\$\{PROJECT:\?caches of the site profile .*\}/caches", kept)
    assert values(job.environment)["VERL_HPC_KEPT_CACHES"] == "$CACHES"
    assert ("$CACHES", SITE) in [
        (mount.text.partition(":")[0], mount.origin) for mount in job.mounts
    ]


def test_a_relative_directory_of_caches_would_be_another_with_every_submission(tmp_path):
    with pytest.raises(ConfigError, match=r"caches = 'mine'"):
        plan(tmp_path, caches="mine")


def test_offline_is_a_choice(tmp_path):
    assert values(plan(tmp_path).environment)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in values(plan(tmp_path, offline=False).environment)


def test_the_sites_variables_win_and_say_so(tmp_path):
    job = plan(
        tmp_path,
        overridden={"environment.NCCL_DEBUG": "INFO"},
        environment={"NCCL_NET": "IB", "WANDB_MODE": "online"},
    )
    assert values(job.environment)["WANDB_MODE"] == "online"
    found = origins(job.environment)
    assert (found["WANDB_MODE"], found["NCCL_NET"]) == (SITE, SITE)
    assert (found["NCCL_DEBUG"], found["PYTHONHASHSEED"]) == (COMMAND_LINE, DEFAULT)


def test_which_code_ranks_run(tmp_path):
    assert values(plan(tmp_path).environment)["PYTHONPATH"].startswith("$RUN/job/code")
    assert "PYTHONPATH" not in values(plan(tmp_path, code="installed").environment)
    standalone = plan_job(request(tmp_path, standalone=True))
    assert values(standalone.environment)["PYTHONPATH"].startswith("$PWD")


@pytest.mark.parametrize("kind", ["pyxis", "apptainer", "bwrap", "podman"])
def test_packages_of_whoever_submits_do_not_shadow_those_of_the_image(tmp_path, kind):
    inside = values(plan(tmp_path, container=CONTAINERS[kind]).environment)
    assert (inside["PYTHONNOUSERSITE"], inside["PYTHONPATH"]) == ("1", "$RUN/job/code")
    # Without an image they may be all that there is.
    bare = values(plan(tmp_path).environment)
    assert "PYTHONNOUSERSITE" not in bare
    assert bare["PYTHONPATH"].endswith("${PYTHONPATH:+:$PYTHONPATH}")


def test_passed_variables_have_a_name_and_no_value(tmp_path):
    job = plan(tmp_path, pass_environment=["WANDB_API_KEY"])
    assert values(job.passed) == {"WANDB_API_KEY": None}
    assert "WANDB_API_KEY" not in values(job.environment)


# Containers


def test_pyxis_is_options_of_srun(tmp_path):
    job = plan(tmp_path, container=CONTAINERS["pyxis"], environment={"NCCL_NET": "IB"},
               pass_environment=["HF_TOKEN"])  # fmt: skip
    options = values(job.srun)
    assert options["container-image"] == "$IMAGE"
    assert options["container-mounts"] == "/tmp:/tmp,/data:/data:ro,$PWD:$PWD"
    assert options["container-workdir"] == "$PWD"
    assert "no-container-mount-home" in options
    names = options["container-env"].split(",")
    assert {"NCCL_NET", "HF_TOKEN", "VERL_HPC_ATTEMPT", "PYTHONPATH"} <= set(names)
    assert job.prefix == ()
    assert values(job.variables)["IMAGE"] == "/images/a.sqsh"


def test_apptainer_is_words_before_the_command(tmp_path):
    words = " ".join(plan(tmp_path, container=CONTAINERS["apptainer"]).prefix)
    assert words == (
        'apptainer exec --nv --bind /tmp:/tmp --bind /data:/data --bind "$PWD:$PWD" --pwd "$PWD" '
        '"$IMAGE"'
    )


@pytest.mark.parametrize("gpu, flag", [("amd", "--rocm"), ("none", "exec --bind")])
def test_apptainer_without_nvidia(tmp_path, gpu, flag):
    job = plan(tmp_path, container={**CONTAINERS["apptainer"], "gpu": gpu})
    assert flag in " ".join(job.prefix)
    assert "--nv" not in job.prefix


def test_bwrap_mounts_and_changes_directory(tmp_path):
    words = " ".join(plan(tmp_path, container=CONTAINERS["bwrap"]).prefix)
    assert "bwrap --ro-bind $IMAGE /" in words.replace('"', "")
    assert '--bind "$PWD" "$PWD"' in words
    assert "--ro-bind /data /in" in words
    assert words.endswith('--chdir "$PWD" --')


def test_what_a_run_writes_to_is_on_top_of_what_the_site_mounts(tmp_path):
    """A profile may show a whole project read-only, the checkout and the run's directory in it."""
    container = {**CONTAINERS["bwrap"], "mounts": ["/scratch/project:/scratch/project:ro"]}
    targets = [mount.target for mount in plan(tmp_path, container=container).mounts]
    assert targets.index("/scratch/project") < targets.index("$PWD")


def test_no_container_mounts_nothing(tmp_path):
    job = plan(tmp_path)
    assert (job.mounts, job.prefix) == ((), ())
    assert "IMAGE" not in values(job.variables)


def test_a_run_directory_elsewhere_is_mounted(tmp_path):
    inside = plan(tmp_path, container=CONTAINERS["bwrap"])
    outside = plan(tmp_path, "directory=/elsewhere", container=CONTAINERS["bwrap"])
    assert "$RUN" not in [mount.source for mount in inside.mounts]
    assert [m.origin for m in outside.mounts if m.source == "$RUN"] == [COMMAND_LINE]


def test_origins_of_mounts(tmp_path):
    job = plan(tmp_path, container=CONTAINERS["apptainer"], node_scratch="/local")
    assert {mount.source: mount.origin for mount in job.mounts} == {
        "$PWD": DEFAULT,
        "/local": SITE,
        "/data": SITE,
    }


# Paths


def test_a_submitted_job_names_its_directory_in_full(tmp_path):
    job = plan(tmp_path)
    assert values(job.variables)["RUN"] == str(tmp_path / "runs/run")
    assert values(job.variables)["CONFIG"] == "$RUN/job/config.yaml"
    assert values(job.directives)["output"] == str(tmp_path / "runs/run/job/slurm-%j.log")
    assert job.command[-2:] == ("--config", '"$CONFIG"')


def test_a_standalone_script_names_paths_as_they_were_given(tmp_path):
    job = plan_job(request(tmp_path, "seed=3", "data.train.task=a b", standalone=True))
    assert values(job.variables)["RUN"] == "runs/run"
    assert values(job.variables)["CONFIG"] == "run.yaml"
    assert values(job.directives)["output"] == "%x-%j.log"
    assert job.command[-2:] == ("seed=3", "'data.train.task=a b'")
    assert str(tmp_path) not in str(job)


@pytest.mark.parametrize("directory", ["a b", "a%j", "x:y"])
def test_a_run_directory_that_slurm_would_misread(tmp_path, directory):
    with pytest.raises(ConfigError, match="directory = "):
        plan(tmp_path, f"directory={directory!r}")


def test_no_nodes(tmp_path):
    with pytest.raises(ConfigError, match="--nodes = 0"):
        plan_job(request(tmp_path, nodes=0))


def test_a_chain_has_no_script_of_its_own(tmp_path):
    site = profile(tmp_path, restarts={"by": "chain"})
    with pytest.raises(ConfigError, match="--resume-by chain"):
        plan_job(request(tmp_path, site=site, standalone=True))


@pytest.mark.parametrize(
    "fields, memory",
    [
        ({}, "0"),
        ({"exclusive": False}, None),
        ({"exclusive": False, "memory": "0"}, None),
        ({"exclusive": False, "memory": "120G"}, "120G"),
        ({"memory": None}, None),
    ],
)
def test_a_job_of_a_shared_node_does_not_take_all_its_memory(tmp_path, fields, memory):
    assert values(plan(tmp_path, **fields).directives).get("mem") == memory


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
        found = [(s.name, s.value) for s in settings if s.name in ("gpus-per-node", "gres")]
        assert found == ([] if option is None else [option])
    assert ("gpu-bind" in values(job.srun)) == (option is not None)


def test_lists_of_slurm_grow_and_other_options_are_replaced(tmp_path):
    more = ["--gres=nvme:1", "--constraint=a", "--constraint=b", "--licenses=x", "--licenses=y"]
    found = values(plan(tmp_path, gpu_request="gres", extra_directives=more).directives)
    assert found["gres"] == "gpu:4,nvme:1"
    assert found["licenses"] == "x,y"
    assert found["constraint"] == "b"
    again = plan(tmp_path, gpu_request="gres", extra_directives=["--gres=gpu:8"]).directives
    assert values(again)["gres"] == "gpu:8", "a second request of GPUs takes the place of the first"
    for words in (["--gres=none"], ["--gres=none", "--gres=gpu:4"]):
        none = plan(tmp_path, gpu_request="gres", extra_directives=words).directives
        assert values(none)["gres"] == words[-1].partition("=")[2], "none is not an item of a list"


@pytest.mark.parametrize("name", ["extra_directives", "srun_args"])
@pytest.mark.parametrize(
    "fields, word, beside",
    [
        ({"gpu_request": "gres"}, "--gpus-per-node=4", "--gres=gpu:4 [site]"),
        ({"gpu_request": "gres"}, "--gpus=8", "--gres=gpu:4 [site]"),
        ({}, "--gpus-per-task=1", "--gpus-per-node=4 [site]"),
        ({}, "--gres=nvme:1,gpu:a100:4", "--gpus-per-node=4 [site]"),
    ],
)
def test_gpus_are_asked_for_once(tmp_path, name, fields, word, beside):
    with pytest.raises(ConfigError) as refused:
        plan(tmp_path, **fields, **{name: [word]})
    told = f"{name}: {word} [site] asks for GPUs, as {beside} does; leave one out: set gpu_request"
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    "request_by, word",
    [
        ("gpus-per-node", "--gpus-per-node=2"),
        ("gpus-per-node", "--gpus-per-node=h100:2"),
        ("gres", "--gres=nvme:8,gpu:2"),
        ("gres", "--gres=gpu:h100"),
    ],
)
def test_jobs_have_the_gpus_that_ranks_are_started_for(tmp_path, request_by, word):
    told = r"extra_directives: --.*\[site\]: is less than gpus_per_node = 4"
    with pytest.raises(ConfigError, match=told):
        plan(tmp_path, gpu_request=request_by, extra_directives=[word])
    assert plan(tmp_path, extra_directives=["--gpus-per-node=h100:4"])


def test_sites_may_ask_for_gpus_in_their_own_way(tmp_path):
    own = {"gpu_request": "none"}, {"drop_directives": ["gpus-per-node"]}
    for fields in own:
        job = plan(tmp_path, **fields, extra_directives=["--gres=gpu:4,nvme:1"])
        assert values(job.directives)["gres"] == "gpu:4,nvme:1"
        assert "gpus-per-node" not in values(job.directives)


def test_passed_variables_reach_jobs_that_start_without_the_others(tmp_path):
    without = plan(tmp_path, extra_directives=["--export=NONE"]).directives
    assert values(without)["export"] == "NONE"
    cases = {
        "NONE": ("A,B", True),
        "none": ("A,B", True),
        "NIL": ("A,B", False),
        "C,D=1": ("C,D=1,A,B", False),
        "ALL,D=1": ("ALL,D=1", False),
        "all": ("all", False),
    }
    for given, expected in cases.items():
        fields = {"extra_directives": [f"--export={given}"], "pass_environment": ["A", "B"]}
        found = values(plan(tmp_path, **fields).directives)
        assert (found["export"], "get-user-env" in found) == expected


@pytest.mark.parametrize("value", ["NONE", "nil", "A,B=1"])
def test_steps_take_over_what_the_script_exports(tmp_path, value):
    assert values(plan(tmp_path).srun)["export"] == "ALL"
    with pytest.raises(ConfigError, match=r"srun_args.*export=ALL,NAME=value"):
        plan(tmp_path, srun_args=[f"--export={value}"])
    kept = plan(tmp_path, srun_args=["--export=ALL,X=1"]).srun
    assert values(kept)["export"] == "ALL,X=1"


def test_lists_of_hosts_with_brackets_stay_whole(tmp_path):
    more = ["--exclude=n[5,3]", "--exclude=n[1,3]"]
    assert values(plan(tmp_path, extra_directives=more).directives)["exclude"] == "n[5,3],n[1,3]"
