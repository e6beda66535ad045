"""Programs that speak to an endpoint, hostile ones above all, in both kinds of sandbox."""

import http.server
import json
import os
import selectors
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import textwrap
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.waiting import wait_for
from verl_hpc.agents.programs import ProgramJob, Programs
from verl_hpc.errors import SandboxError
from verl_hpc.rewards.sandbox.containment import MIB, Limits
from verl_hpc.runtime.processes import below

LIMITS = Limits(
    timeout_s=60.0,
    cpu_s=20.0,
    memory_bytes=256 * MIB,
    tasks=30,
    files_bytes=8 * MIB,
    output_bytes=64 * 1024,
)


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers chat completions with the last message and the key, in pieces if asked to."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Authorization"].removeprefix("Bearer ")
        text = f"{key} {request['messages'][-1]['content']}"
        if request.get("stream"):
            pieces = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in text]
            lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
            return self._send("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))
        message = {"role": "assistant", "content": text}
        return self._send("application/json", json.dumps({"choices": [{"message": message}]}))

    def _send(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 256


@pytest.fixture(scope="module")
def endpoint():
    with (
        tempfile.TemporaryDirectory() as directory,  # a socket's path is short
        Server(f"{directory}/endpoint", Endpoint) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address
        server.shutdown()


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Where directories of programs are made."""
    tmp_path_factory.getbasetemp()  # else pytest makes it in the one that is removed here
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        patch.setenv("PMI_RANK", "3")
        patch.setenv("OF_THE_USER", "seen")
        yield Path(directory)


@pytest.fixture(scope="module")
def programs(directories):
    programs = Programs()
    yield programs
    helper = programs._helper.process
    programs.close()
    assert helper.returncode == 0


@pytest.fixture(scope="module")
def why_not(programs, endpoint):
    """Why this machine has no bubblewrap that works, or nothing."""
    job = ProgramJob(["true"], "{}", endpoint, "key", "bubblewrap", "none", None, [], LIMITS)
    try:
        return "" if finish(programs.begin(job)).status == 0 else "true fails"
    except SandboxError as error:
        return str(error)


@pytest.fixture(params=["bubblewrap", "none"])
def start(request, programs, endpoint, directories, why_not):
    """Start a text of Python or a command, and see to it that nothing of it is left."""

    def start(what, limits=LIMITS, **more):
        words = what if isinstance(what, list) else ["python", "-Sc", textwrap.dedent(what)]
        where = request.param, "none", None, [], limits
        job = ProgramJob(words, '{"a": "é"}', endpoint, "key", *where)
        return programs.begin(replace(job, **more))

    start.sandbox = request.param
    if request.param == "bubblewrap" and why_not:
        pytest.skip(why_not)
    yield start
    wait_for(lambda: not below(programs._helper.process.pid, 100))
    assert not [*Path(programs.directory).iterdir()]


in_a_sandbox = pytest.mark.parametrize("start", ["bubblewrap"], indirect=True)


@pytest.fixture
def run(start):
    return lambda what, limits=LIMITS, **more: finish(start(what, limits, **more))


def finish(program):
    (ended,) = finish_all([program])
    return ended


def finish_all(programs):
    """Return the ends of programs in their order, as a rank waits for them."""
    ended = {}
    with selectors.DefaultSelector() as selector:
        for program in programs:
            selector.register(program, selectors.EVENT_READ)
        while len(ended) < len(programs):
            keys = selector.select(90)
            assert keys, "nothing ends"
            for key, _ in keys:
                ended[key.fileobj] = key.fileobj.ended()
                selector.unregister(key.fileobj)
    return [ended[program] for program in programs]


def test_a_program_reads_its_row_and_writes_a_score(run):
    ended = run(
        """
        import json, os, sys
        row = json.load(open(os.environ["VERL_HPC_ROW"]))
        print(row["a"], {os.environ["HOME"], os.environ["TMPDIR"]} == {os.getcwd()})
        print("last", file=sys.stderr)
        open(os.environ["VERL_HPC_SCORE"], "w").write(json.dumps({"reward": 1.5}))
        sys.exit(7)
        """
    )
    assert (ended.ending, ended.status, ended.message) == ("exited", 7, "")
    assert sorted(ended.output.split("\n")) == ["", "last", "é True"]
    assert json.loads(ended.score) == {"reward": 1.5} and ended.wall_s > 0


def test_a_number_is_a_score_and_none_is_none(run):
    assert run(["sh", "-c", "echo 0.5 > $VERL_HPC_SCORE"]).score == "0.5\n"
    assert run(["true"]).score is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ln -s /etc/passwd $VERL_HPC_SCORE", "Too many levels of symbolic links"),
        ("mkfifo $VERL_HPC_SCORE", "it is not a regular file"),
        ("mkdir $VERL_HPC_SCORE", "it is not a regular file"),
        ("truncate -s 1048577 $VERL_HPC_SCORE", "it is larger than 1048576 bytes"),
        ("truncate -s 10G $VERL_HPC_SCORE; true", ""),
    ],
)
def test_a_forged_score_is_none(run, text, message):
    ended = run(["sh", "-c", text])
    assert (ended.ending, ended.status, ended.score or None) == ("exited", 0, None)
    assert ended.message.endswith(message) and bool(ended.message) == bool(message)


def test_a_program_starts_in_the_directory_of_its_files(run, tmp_path):
    (tmp_path / "agent.py").write_text("import os; print(os.getcwd(), os.listdir('.'))")
    ended = run(["python", "agent.py"], directory=str(tmp_path))
    assert ended.output == f"{tmp_path} ['agent.py']\n"


@pytest.mark.parametrize("place", ["command", "directory", "paths"])
def test_a_program_reads_its_virtual_environment_and_the_interpreter_of_it(run, tmp_path, place):
    base, venv = tmp_path / "base", tmp_path / "agent/.venv"
    for path, text in {
        base / "bin/python3": f"#!/bin/sh\ncat {base}/lib/module\n",
        base / "lib/module": "its module",
        venv / "pyvenv.cfg": f"home = {base}/bin\nversion = 3.9\n",
        venv / "bin/agent": f"#!{venv}/bin/python\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (venv / "bin/python").symlink_to(base / "bin/python3")
    command, more = {
        "command": (["sh", "-c", "exec python"], {}),
        "directory": ([".venv/bin/agent"], {"directory": str(tmp_path / "agent")}),
        "paths": (["sh", "-c", f"{venv}/bin/agent"], {"paths": [str(venv)]}),
    }[place]
    if place == "command":
        (venv / "bin/sh").symlink_to("/bin/sh")
        command[0] = str(venv / "bin/sh")
    assert run(command, **more).output == "its module"


def test_further_paths_are_read_only(run, tmp_path):
    (tmp_path / "data").write_text("data")
    ended = run(["sh", "-c", f"cat {tmp_path}/*; echo >{tmp_path}/new"], paths=[str(tmp_path)])
    assert ended.output.startswith("data")
    assert (tmp_path / "new").exists() == ("Read-only" not in ended.output)


def test_ends_of_the_first_process(run):
    assert run(["gone"]).status == 127
    assert run(["sh", "-c", "kill -9 $$"]).ending == "killed"
    ended = run(["sh", "-c", "kill -TERM $$"])
    assert (ended.ending, ended.status) == ("killed", signal.SIGTERM)


def test_programs_give_way_to_ranks(run):
    ended = run(["sh", "-c", "cat /proc/self/oom_score_adj; nice"])
    assert ended.output == f"1000\n{min(os.nice(0) + 10, 19)}\n"


def test_variables(run):
    ended = run(["env"])
    names = dict(line.split("=", 1) for line in ended.output.splitlines())
    assert (names["OPENAI_API_KEY"], names["ANTHROPIC_API_KEY"]) == ("key", "key")
    assert names["OPENAI_BASE_URL"] == names["ANTHROPIC_BASE_URL"] + "/v1"
    assert names["OMP_NUM_THREADS"] == "1" and "PMI_RANK" not in names
    outside = names["HOME"] != "/tmp"
    assert outside == ("OF_THE_USER" in names) == ("PYTHONPATH" in names)


# What is left of a program, and what it may use.

DAEMON = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
"""
KEEPS = "python -Sc 'import time; kept = b\"1\" * 10**8; time.sleep(60)'"
FORKS = """
    import os, time
    while True:
        if os.fork() == 0:
            time.sleep(600)
"""
WAITS = """
    import time
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("text", "limits", "ending"),
    [
        (DAEMON, {}, "exited"),
        (DAEMON + WAITS, {"timeout_s": 1.0}, "timed_out"),
        (["sh", "-c", "trap '' TERM; sleep 600"], {"timeout_s": 0.5}, "timed_out"),
        ("while True: pass", {"cpu_s": 0.5}, "timed_out"),
        (["sh", "-c", "while true; do (python -Sc pass); done"], {"cpu_s": 0.5}, "timed_out"),
        (FORKS, {}, "too_many_processes"),
        (["bash", "-c", "b() { b | b & }; b; sleep 600"], {}, "too_many_processes"),
        (["sh", "-c", "yes & yes >&2"], {}, "output_too_large"),
        ("kept = []\nwhile True: kept.append(bytearray(10**6))", {}, "out_of_memory"),
        (["sh", "-c", f"for i in 1 2 3; do {KEEPS} & done; wait"], {}, "out_of_memory"),
    ],
    ids=["daemon", "daemon and hang", "ignores SIGTERM", "loop", "many small ones", "forks",
         "bomb", "flood", "memory", "memory of several"],
)  # fmt: skip
def test_limits(run, text, limits, ending):
    text = textwrap.dedent(text) if isinstance(text, str) else text
    ended = run(text, replace(LIMITS, **limits))
    assert ended.ending == ending, ended
    assert len(ended.output) <= LIMITS.output_bytes and ended.wall_s < 30


def test_files_are_bounded(run):
    ended = run(["sh", "-c", "head -c 9000000 /dev/zero > file; wc -c file"])
    assert int(ended.output.splitlines()[-1].split()[0]) <= 8 * MIB


def test_as_many_tasks_as_may_be(run):
    ended = run(["sh", "-c", "for i in $(seq 25); do sleep 0.5 & done; wait; echo all"])
    assert (ended.ending, ended.output) == ("exited", "all\n")


def test_several_processes_share_memory(run):
    ended = run(
        """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(sum(pool.map(abs, range(10))))
        """
    )
    assert (ended.output, ended.status) == ("45\n", 0)


def test_a_program_that_nobody_waits_for_ends(start):
    program = start(DAEMON + WAITS)
    assert program.ended() is None
    program.end()


# What a program may reach.

ASKS = """
    from openai import OpenAI
    client = OpenAI()
    text = "é" * 10**6
    words = [{"role": "user", "content": text}]
    for _ in range(3):
        said = client.chat.completions.create(model="m", messages=words).choices[0].message.content
        words.append({"role": "user", "content": said})
    print(said == "key key key " + text)
    words = [{"role": "user", "content": "bit by bit"}]
    for part in client.chat.completions.create(model="m", messages=words, stream=True):
        print(part.choices[0].delta.content, end="")
"""


@in_a_sandbox
def test_the_public_client_speaks_to_the_endpoint(run):
    ended = run(["python", "-c", textwrap.dedent(ASKS)])
    assert ended.output == "True\nkey bit by bit"


TALKS = """
    import os, socket, time
    host, port = os.environ["ANTHROPIC_BASE_URL"][7:].split(":")
    def talk(word):
        talk = socket.create_connection((host, int(port)))
        talk.sendall(word)
        return talk
    with talk(b"half") as half:
        half.shutdown(socket.SHUT_WR)
        assert half.recv(100) == b"answer"
    with talk(b"hang up") as hung_up:
        assert (hung_up.recv(100), hung_up.recv(100)) == (b"begun", b"")
    with talk(b"stream") as stream:
        stream.recv(6)
    time.sleep(600)
"""


def test_either_side_learns_that_the_other_has_closed(start):
    """The endpoint that a request is cancelled, and the client that an answer has ended."""
    half, is_cancelled = [], threading.Event()

    class Talk(socketserver.BaseRequestHandler):
        def handle(self):
            word = self.request.recv(100)
            if word == b"half":
                half.append(self.request.recv(100))
                self.request.sendall(b"answer")
            elif word == b"hang up":
                self.request.sendall(b"begun")
            else:
                with suppress(BrokenPipeError, ConnectionResetError):
                    while True:
                        self.request.sendall(b"stream")
                is_cancelled.set()

    with tempfile.TemporaryDirectory() as directory, Server(f"{directory}/talk", Talk) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        program = start(TALKS, socket=server.server_address)
        assert is_cancelled.wait(30) and program.ended() is None
        program.end()
        server.shutdown()
    assert half == [b""]


@in_a_sandbox
def test_the_network_of_the_node(run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        assert run(text, network="node").status == 0
        refused = run(text)
    assert refused.status == 1 and "ConnectionRefusedError" in refused.output


@in_a_sandbox
def test_without_a_network_nothing_else_is_reached(run):
    ended = run(
        """
        import os, socket
        print(os.listdir("/sys/class/net") if os.path.exists("/sys") else "no sys")
        print(open("/proc/net/dev").read().count(":"))
        for family, address in [
            (socket.AF_INET, ("1.1.1.1", 53)),
            (socket.AF_INET, ("169.254.169.254", 80)),
            (socket.AF_UNIX, "/run/dbus/system_bus_socket"),
            (socket.AF_VSOCK, (2, 1024)),
        ]:
            try:
                socket.socket(family).connect(address)
                print("connected", address)
            except OSError as error:
                print(type(error).__name__)
        """
    )
    lines = ended.output.splitlines()
    assert lines[:2] == ["no sys", "1"]  # the loopback alone
    assert lines[2:] == ["OSError", "OSError", "FileNotFoundError", "PermissionError"]


@in_a_sandbox
def test_what_a_sandbox_denies(run, tmp_path):
    ended = run(
        f"""
        import ctypes, os
        call = ctypes.CDLL(None, use_errno=True)
        print(call.ptrace(0, 0, 0, 0), call.mount(b"none", b"/tmp", b"tmpfs", 0, 0))
        print(call.unshare(0x10000000))
        for path in ("{tmp_path}/new", "/usr/new", "/new", "{sys.prefix}/new"):
            try:
                open(path, "w")
            except OSError as error:
                print(error.errno)
        print(os.path.exists("{Path(__file__).parent}"), len(os.listdir("/proc/self/fd")))
        print([line for line in open("/proc/self/status") if line.startswith("Cap")][-2:])
        """,
        directory=str(tmp_path),
    )
    lines = ended.output.splitlines()
    assert lines[:2] == ["-1 -1", "-1"]
    assert lines[2:6] == ["30"] * 4 and lines[6] == "False 4", ended.output
    assert lines[7].count("0000000000000000") == 2


# The ends of those that look after programs.


def test_without_a_helper_programs_end(endpoint, directories):
    programs = Programs()
    helper = programs._helper.process
    job = ProgramJob(["sleep", "600"], "{}", endpoint, "key", "none", "none", None, [], LIMITS)
    program = programs.begin(job)
    wait_for(lambda: len(below(helper.pid, 100)) == 4)  # guard, keeper, forwarder, sleep
    left = below(helper.pid, 100)
    helper.kill()
    helper.wait()
    with pytest.raises(SandboxError, match="helper that starts programs is gone"):
        finish(program)
    assert not Path(programs.directory).exists(), "the helper would have removed it"
    with pytest.raises(SandboxError, match="helper that starts programs is gone"):
        programs.begin(job)
    wait_for(lambda: not any(Path("/proc", str(process)).exists() for process in left))
    programs.close()


@pytest.mark.parametrize("number", range(3))
def test_nothing_is_left_by_those_that_are_killed(start, programs, number):
    """Neither by the guard, the keeper nor the first process that the keeper starts."""
    program = start(DAEMON + WAITS)
    helper = programs._helper.process.pid
    around = {"none": 3, "bubblewrap": 4}[start.sandbox]
    wait_for(lambda: len(below(helper, 100)) == around + 2)
    os.kill(below(helper, 100)[number], signal.SIGKILL)
    ended = finish(program)
    assert (ended.ending, ended.status, ended.score) == ("killed", signal.SIGKILL, None)
    assert ("looks after it" in ended.message) == (number < 2) and ended.wall_s > 0


def test_close_ends_what_is_under_way(endpoint, directories):
    programs = Programs()
    job = ProgramJob(["sleep", "600"], "{}", endpoint, "key", "none", "none", None, [], LIMITS)
    under_way = [programs.begin(job) for _ in range(3)]
    wait_for(lambda: len(list(Path(programs.directory).iterdir())) == len(under_way))
    programs.close()
    assert programs._helper.process.returncode == 0
    assert not Path(programs.directory).exists()


RANK = """
    import sys, time
    from verl_hpc.agents.programs import ProgramJob, Programs
    from verl_hpc.rewards.sandbox.containment import Limits
    programs = Programs()
    words = ["sh", "-c", "setsid sleep 600 & sleep 600"]
    rest = ("none", None, [], Limits())
    kept = [programs.begin(ProgramJob(words, "{}", sys.argv[1], "key", sandbox, *rest))
            for sandbox in sys.argv[2:]]
    print(programs._helper.process.pid, programs.directory, flush=True)
    time.sleep(600)
"""


def test_a_killed_rank_leaves_nothing(start, endpoint, directories):
    rank = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RANK), endpoint, *[start.sandbox] * 3],
        stdout=subprocess.PIPE,
    )
    helper, directory = rank.stdout.readline().decode().split()
    helper = int(helper)
    around = {"none": 3, "bubblewrap": 4}[start.sandbox]
    wait_for(lambda: len(below(helper, 100)) == 3 * (around + 3))
    everything = [helper, *below(helper, 100)]
    rank.kill()
    rank.wait()
    wait_for(lambda: not any(Path("/proc", str(process)).exists() for process in everything))
    assert not Path(directory).exists()


def test_what_cannot_be_started_is_named(programs, endpoint):
    job = ProgramJob(["true"], "{}", "/gone", "key", "bubblewrap", "none", None, [], LIMITS)
    with pytest.raises(SandboxError, match=r"bwrap.*(/gone|not installed|namespace)"):
        finish(programs.begin(job))


BODY = '{"messages": [{"content": "hi"}]}'
ASKS_BY_BASH = f"""
    address=${{ANTHROPIC_BASE_URL#http://}}
    exec 3<>/dev/tcp/${{address%:*}}/${{address#*:}}
    printf 'POST / HTTP/1.0\\r\\nContent-Length: {len(BODY)}\\r\\n' >&3
    printf 'Authorization: Bearer %s\\r\\n\\r\\n%s' $OPENAI_API_KEY '{BODY}' >&3
    cat <&3 >$VERL_HPC_SCORE
"""


@pytest.mark.parametrize("number", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_many_at_once(start, number):
    words = ["bash", "-c", textwrap.dedent(ASKS_BY_BASH)]
    under_way = [start(words, token=f"key{i}") for i in range(number)]
    for i, ended in enumerate(finish_all(under_way)):
        assert (ended.ending, ended.status, ended.output) == ("exited", 0, "")
        assert f'"key{i} hi"' in ended.score
