"""A debugger in one rank of a real run, over the debug adapter protocol."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.debug_client import Client
from tests.jobs.launch import start_training, succeeds, verl_hpc, wait_until, write_config
from verl_hpc.runs.ranks import read_ranks

pytest.importorskip("debugpy", reason="debugpy is not installed")

RANK = 1
REWARD = f"""
import os
import time
from pathlib import Path

GO_ON = Path(__file__).with_name("go_on")


def look(answer):
    return GO_ON.exists()  # here


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    while os.environ["RANK"] == "{RANK}" and not look(ground_truth):
        time.sleep(0.1)
    return 1.0
"""
LINE = 1 + REWARD.splitlines().index("    return GO_ON.exists()  # here")


STOPS = """
seen = []


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if not seen:
        seen.append(solution_str)
        breakpoint()
    return 1.0
"""


STRANGER = """
import encodings.idna, os, socket, sys
os.setuid(65534)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
try:
    connection.sendall(b"Content-Length: 2\\r\\n\\r\\n{}")
    print(connection.recv(100))
except OSError:
    print(b"")
"""


def start_run(directory, tree, reward):
    """A job of two ranks in DIRECTORY/run that calls the reward function of a file."""
    changes = {"steps": 2, "algorithm": {}, "roles": {}, "parallel": {}}
    changes["reward"] = {"function": f"{reward}:compute_score", "timeout_s": 3600}
    changes["runtime"] = {"late_after_s": 4}
    config = write_config(directory / "config.yaml", tree | changes)
    return start_training(2, config)


def test_attach_stop_look_and_go_on(tree, tmp_path):
    reward = tmp_path / "attach_reward.py"
    reward.write_text(REWARD)
    job = start_run(tmp_path, tree, reward)
    run = tmp_path / "run"
    try:
        assert wait_until(lambda: in_reward(run, [RANK]), job), job.communicate()[0]
        refused = verl_hpc("attach", run, "--rank", 2)
        assert refused.returncode == 1
        assert "--rank 2" in refused.stderr and "has the ranks 0 to 1" in refused.stderr

        done = verl_hpc("attach", run, "--rank", RANK, "--json")
        assert done.returncode == 0, done.stderr
        attached = json.loads(done.stdout)
        assert attached["pid"] == read_ranks(run).ranks[RANK].pid
        debug(attached["port"], reward)
        again = verl_hpc("attach", run, "--rank", RANK)
        assert f"listens at 127.0.0.1:{attached['port']}, to your user alone" in again.stdout
        assert f'"port": {attached["port"]}' in again.stdout
        if os.geteuid() == 0:
            words = [sys.executable, "-c", STRANGER, str(attached["port"])]
            stranger = subprocess.run(words, capture_output=True, text=True, timeout=120)
            assert stranger.stdout == "b''\n", "another user's connection is closed unheard"
        second = Client(attached["port"])
        assert second.ask("initialize", adapterID="test")["supportsConfigurationDoneRequest"]
        second.ask("disconnect", terminateDebuggee=False)
        second.close()
    finally:
        (tmp_path / "go_on").touch()
        succeeds(job)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def in_reward(run, wanted):
    ranks = read_ranks(run)
    return ranks is not None and all(ranks.ranks[r].operator == "reward" for r in wanted)


def test_every_rank_stands_at_a_breakpoint_and_is_attached_to(tree, tmp_path):
    """All ranks call the reward function, so that all wait for a debugger at once."""
    reward = tmp_path / "stops.py"
    reward.write_text(STOPS)
    job = start_run(tmp_path, tree, reward)
    run = tmp_path / "run"
    try:
        assert wait_until(lambda: in_reward(run, (0, 1)), job), job.communicate()[0]
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(verl_hpc, "attach", run, "--rank", r, "--json") for r in (0, 1)]
        for done in (one.result() for one in asked):
            assert done.returncode == 0, done.stderr
            client = Client(json.loads(done.stdout)["port"])
            client.attach()
            stopped, frame = client.stop()
            assert frame["name"] == "compute_score"
            client.ask("continue", threadId=stopped["threadId"])
            client.ask("disconnect", terminateDebuggee=False)
            client.close()
    finally:
        output = succeeds(job)
    assert all(f"verl_hpc attach {run} --rank {rank}" in output for rank in (0, 1))


def debug(port, reward):
    """Stop the rank in the reward function, look at a variable there, and let it go on."""
    client = Client(port)
    client.attach(reward, LINE)
    stopped, frame = client.stop()
    assert stopped["reason"] == "breakpoint"
    assert (frame["name"], frame["line"]) == ("look", LINE)
    value = client.ask("evaluate", expression="answer", frameId=frame["id"], context="watch")
    assert value["result"].strip("'").lstrip("-").isdecimal()
    client.ask("setBreakpoints", source={"path": str(reward)}, breakpoints=[])
    client.ask("continue", threadId=stopped["threadId"])
    client.ask("disconnect", terminateDebuggee=False)
    client.close()
