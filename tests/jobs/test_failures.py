"""One rank in trouble ends the whole job, fast, and says what and where."""

import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.jobs import launch
from tests.jobs.conftest import VLLM
from tests.slow import all_slow

BODY = """
import os, sys, time
from verl_hpc.runtime.session import session

with session(late_after_s=1.0) as here:
    import torch
    import torch.distributed as dist
    from verl_hpc.errors import ConfigError
    here.enter("warm up")
    dist.all_reduce(torch.ones(1))
    print("READY", flush=True)
    {}
"""


SUPERVISED = """
import os, sys, time
from pathlib import Path
from verl_hpc.runtime.session import session
from verl_hpc.runtime.supervise import supervised

with supervised(Path(sys.argv[1])) as note, session(note=note) as here:
    here.enter("reward")
    here.control.barrier()
    if here.world.rank == 1:
        print("LEAVES", time.time(), flush=True)
        {}
    here.control.barrier()
"""


def job(tmp_path, body, **environment):
    """Three ranks with a session that do what `body` says."""
    script = tmp_path / "job.py"
    script.write_text(BODY.format(body))
    return launch.start(3, [script], **environment)


def failed(tmp_path, body, timeout=240) -> str:
    """The output of such a job, which must fail."""
    status, output = launch.finish(job(tmp_path, body), timeout)
    assert status != 0
    return output


def test_an_exception_on_one_rank_soon_ends_all_with_its_traceback_first(tmp_path):
    body = """
    here.enter("reward")
    if here.world.rank == 1:
        raise ValueError(f"first line\\nat {time.time()}")
    dist.all_reduce(torch.ones(1))
"""
    output = failed(tmp_path, body)
    assert time.time() - float(output.split("first line\nat ")[1].split()[0]) < 10
    told = output.replace("READY", "").strip().splitlines()
    where = f"verl_hpc: rank 1 of 3 on {socket.gethostname()} failed in reward:"
    expected = [f"{where} ValueError: first line", "Traceback (most recent call last):"]
    assert told[:2] == expected
    assert output.count("Traceback") == 1, "only the rank that failed may print one"


@pytest.mark.parametrize("way", ["os._exit(0)", "sys.exit(0)"])
def test_a_rank_that_leaves_with_status_0_ends_the_job_as_a_failure(tmp_path, way):
    script = tmp_path / "job.py"
    script.write_text(SUPERVISED.format(way))
    status, output = launch.finish(launch.start(2, [script, tmp_path]), timeout=120)
    assert status != 0
    assert "verl_hpc: rank 1 " in output and " failed in reward:" in output
    assert ("SystemExit: 0" in output) == (way == "sys.exit(0)")
    assert float(output.split("LEAVES ")[1].split()[0]) > time.time() - 30


def with_reward(tree, tmp_path, body, **changes):
    """A run whose reward function has this body."""
    imports = "import subprocess, sys, threading, time\n"
    text = imports + "def compute_score(**_):\n" + textwrap.indent(body, "    ")
    (tmp_path / "reward.py").write_text(text)
    return launch.write_config(tmp_path / "config.yaml", tree | changes)


SHORT = {
    "roles": {},
    "algorithm": {},
    "steps": 1,
    "checkpoint": {"every": 0},
    "metrics": {"terminal": "lines", "report": False},
}


LEAVE_A_THREAD = "threading.Thread(target=time.sleep, args=(600,), name='judge').start()\n"


def test_a_thread_that_a_reward_leaves_does_not_keep_the_job(tree, tmp_path):
    output = launch.trained(
        2, with_reward(tree, tmp_path, LEAVE_A_THREAD + "return 0.5\n", **SHORT)
    )
    assert output.count("verl_hpc: at the end threads still run, and are ended: judge, judge") == 2
    stages = re.findall(r"^verl_hpc: \d+ s: (.*)$", output, re.MULTILINE)
    assert stages == [
        "start MPI and torch",
        "import the engines",
        "read model, data and reward",
        "build actor",
        "build rollout (hf)",
        "restore",
    ]


def test_a_thread_that_a_failed_reward_leaves_does_not_keep_the_job(tree, tmp_path):
    config = with_reward(tree, tmp_path, LEAVE_A_THREAD + "raise ValueError('no')\n", **SHORT)
    status, output = launch.train(2, config, timeout=150)
    assert (status, output.count("ValueError: no; mend the function")) == (1, 1)
    assert output.count("verl_hpc: at the end threads still run, and are ended: judge\n") == 2


def test_a_killed_rank_ends_the_job(tmp_path):
    process = job(tmp_path, "dist.all_reduce(torch.ones(1)); time.sleep(600)")
    launch.wait_until(lambda: len(launch.ranks_of(process)) == 3, process)
    time.sleep(4)
    assert launch.kill_rank(process, 1)
    killed = time.monotonic()
    assert launch.finish(process, timeout=60)[0] != 0
    assert time.monotonic() - killed < 30


def test_shared_memory_of_killed_ranks_is_given_back(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import os\n"
        "from verl_hpc.runtime.mpi import start_mpi\n"
        "world = start_mpi(60).COMM_WORLD\n"
        "for line in open('/proc/self/maps'):\n"
        "    if '/dev/shm/mpich_shm_' in line:\n"
        "        print('SEGMENT', line.split()[5], flush=True)\n"
        "world.Barrier()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    status, output = launch.finish(launch.start(2, [script]))
    assert status != 0
    segments = {line.split()[1] for line in output.splitlines() if line.startswith("SEGMENT")}
    assert segments
    assert [name for name in segments if Path(name).exists()] == []


@pytest.mark.parametrize("what", ["split(here.world.rank)", *all_slow("barrier()")])
def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_allowed(tmp_path, what):
    body = f"""
    from verl_hpc.runtime.channel import MpiChannel
    from verl_hpc.runtime.control import Control
    from verl_hpc.runtime.mpi import start_mpi
    here.enter("reward")
    control = Control(MpiChannel(start_mpi(60).COMM_WORLD), timeout_s=2).split(0)
    if here.world.rank == 1:
        time.sleep(600)
    control.{what}
"""
    output = failed(tmp_path, body, timeout=120)
    assert "of 3 on" in output and "failed in reward:" in output
    told = "TimeoutError: waited 2 s (runtime.collective_timeout_s) for ranks that do not come"
    assert told in output


@pytest.mark.parametrize(
    "meets, ending",
    [("here.world.rank == 2", " (on rank 2)"), *all_slow(("True", ""))],
    ids=["one", "all"],
)
def test_a_users_error_is_printed_once_without_traceback_and_names_the_one_rank(
    tmp_path, meets, ending
):
    body = f"""
    def work():
        if {meets}:
            raise ConfigError("lr = -3: above 0")
    here.control.together(work)
"""
    output = failed(tmp_path, body)
    assert output.count(f"ConfigError: lr = -3: above 0{ending}\n") == 1
    assert "Traceback" not in output


def test_the_watchdog_names_the_late_rank_and_what_it_is_in(tmp_path):
    body = """
    here.enter("reward")
    if here.world.rank == 1:
        time.sleep(5)
    here.enter("old_log_probs")
    dist.all_reduce(torch.ones(1))
"""
    output = launch.succeeds(job(tmp_path, body))
    host = socket.gethostname()
    assert f"verl_hpc: late ranks:\n  rank 1 on {host}: in 'reward' for " in output
    assert "2 of 3 ranks wait in 'old_log_probs'" in output
    assert output.count("in 'reward'") == 1, "one report an episode"


@pytest.mark.parametrize("plugin", [{"PMI_SIZE": "4"}, {"SLURM_PROCID": "0"}])
def test_an_environment_that_does_not_fit_is_refused(tmp_path, plugin):
    script = tmp_path / "alone.py"
    script.write_text(BODY.format("pass"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM"))}
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, env=clean | plugin)
    assert done.returncode != 0
    assert "is set and" in done.stderr and "start with mpiexec or srun" in done.stderr


def test_a_misspelt_setting_is_told_once(tree, tmp_path):
    config = launch.write_config(tmp_path / "config.yaml", tree | {"optimzer": {"lr": 1}})
    status, output = launch.train(3, config)
    assert status != 0
    assert output.count("optimzer: no such setting; did you mean optimizer") == 1
    assert "Traceback" not in output


def test_a_reward_function_that_raises_is_named_with_its_row_and_variables(tree, tmp_path):
    tree["rollout"] |= VLLM
    body = "api_key, total = 'sesame', 41\nreturn total / (total - 41)\n"
    config = with_reward(tree, tmp_path, body, runtime={"post_mortem": True})
    status, output = launch.train(2, config)
    assert status != 0
    assert output.count("RewardError: reward.function = ") == 1
    assert "ZeroDivisionError: division by zero" in output
    assert "set reward.on_error to zero" in output
    assert "variables are in" in output and "post_mortem/rank_00000.txt" in output
    text = (tmp_path / "run/post_mortem/rank_00000.txt").read_text()
    assert "ZeroDivisionError: division by zero" in text
    assert "    total = 41\n" in text and "    api_key = [redacted]\n" in text
    assert "sesame" not in text


def test_with_on_error_zero_a_nan_reward_is_counted_and_the_run_goes_on(tree, tmp_path):
    tree["reward"]["on_error"] = "zero"
    changes = {"steps": 1, "metrics": {"terminal": "lines"}}
    launch.trained(2, with_reward(tree, tmp_path, "return float('nan')\n", **changes))
    rows = (tmp_path / "run/metrics.jsonl").read_text()
    assert '"reward/num_failed": 8.0' in rows
    assert (tmp_path / "run/report.html").is_file()
