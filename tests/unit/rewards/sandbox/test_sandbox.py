"""Programs, hostile ones above all, under both kinds of containment."""

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.rewards.sandbox.conftest import LIMITS, sandbox_of
from verl_hpc.errors import RewardError, SandboxError
from verl_hpc.rewards.sandbox import sandbox as module
from verl_hpc.rewards.sandbox.sandbox import start_helper
from verl_hpc.runtime.processes import below


@pytest.fixture(autouse=True)
def nothing_left():
    """After every test no program is there any more, and the helper is."""
    yield
    helper = start_helper().process
    assert helper.poll() is None
    deadline = time.monotonic() + 10
    while left := below(helper.pid, 100):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def run(sandbox, text, stdin=""):
    return sandbox.run(textwrap.dedent(text), stdin)


def test_a_program_reads_and_prints(sandbox):
    result = run(
        sandbox, "import sys\nprint(sys.stdin.read()[::-1])\nprint('é', file=sys.stderr)", "ab\n"
    )
    assert (result.ending, result.status, result.message) == ("exited", 0, "")
    assert (result.stdout, result.stderr) == ("\nba\n", "é\n")
    assert 0 < result.wall_s < LIMITS.timeout_s


def test_megabytes_of_input_are_read_or_left(sandbox):
    result = run(sandbox, "print(len(input()))", "x" * 5_000_000)
    assert result.stdout == "5000000\n"
    assert run(sandbox, "pass", "x" * 5_000_000).ending == "exited"


def test_a_text_that_is_no_unicode_comes_back_readable(sandbox):
    result = run(sandbox, "import os\nos.write(1, b'a\\xff')\nprint('\ud800')")
    assert result.stdout == "a\ufffd?\n"


def test_a_program_has_one_directory_that_is_its_own(sandbox):
    text = (
        "import os\nopen('mine', 'w').write('x')\nprint(os.path.samefile('.', os.environ['HOME']))"
    )
    assert run(sandbox, text).stdout == "True\n"
    again = run(sandbox, "import os\nprint(*os.listdir('.'))")
    assert "program.py" in again.stdout.split() and "mine" not in again.stdout.split()


def test_deep_and_closed_directories_are_removed(sandbox):
    first = f"d{os.getpid()}"  # other tests that run meanwhile have directories there, too
    result = run(
        sandbox,
        f"""
        import os
        os.mkdir("{first}")
        os.chdir("{first}")
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        os.mkdir("closed")
        os.chmod("closed", 0)
        """,
    )
    assert (result.ending, result.status) == ("exited", 0), result.stderr
    assert list(Path(tempfile.gettempdir()).glob(f"verl_hpc_program_*/{first}")) == []


# Limits of resources.


def test_an_endless_loop_ends(containment):
    sandbox = sandbox_of(containment, replace(LIMITS, cpu_s=0.5))
    result = run(sandbox, "while True: pass")
    assert result.ending == "timed_out" and "processor time" in result.message


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(60)",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)",
        "import os, time\nos.closerange(0, 1000)\ntime.sleep(60)",
        "import ctypes, time\nctypes.CDLL(None).prctl(1, 0)\ntime.sleep(60)",
    ],
    ids=["sleep", "ignores SIGTERM", "closes its descriptors", "would outlive its parent"],
)
def test_a_program_that_waits_ends(containment, text):
    sandbox = sandbox_of(containment, replace(LIMITS, timeout_s=0.6))
    start = time.monotonic()
    result = run(sandbox, text)
    assert (result.ending, result.message) == ("timed_out", "more than 0.6 s")
    assert time.monotonic() - start < 50


MACHINE = os.uname().machine
CLONE = {"x86_64": 56, "aarch64": 220}[MACHINE]
ILLEGAL = {"x86_64": b"\x0f\x0b", "aarch64": bytes(4)}[MACHINE]
FILLED = {"ending": "out_of_memory"}
FORKED = {"ending": "too_many_processes", "message": "a program may start no other"}
ENDINGS = {
    **{f"exit {n}": (f"import os\nos._exit({n})", {"ending": "exited", "status": n})
       for n in (1, 7, 127)},
    "memory, bit by bit": ("kept = []\nwhile True: kept.append(bytearray(10**6))", FILLED),
    "memory, at once": ("kept = bytearray(10**13)", FILLED),
    "memory, shared": ("import mmap\nm = mmap.mmap(-1, 2**30)\nm.write(bytes(2**26) * 16)", FILLED),
    "a fork bomb": ("import os\nwhile True: os.fork()", FORKED),
    "vfork": ("import subprocess\nsubprocess.run(['true'])", FORKED),
    "a shell's bomb": (
        "import os\nos.execv('/bin/sh', ['sh', '-c', 'b() { b | b & }; b'])", FORKED),
    "a spawned program": ("import os\nos.posix_spawn('/bin/true', ['true'], {})", FORKED),
    "clone": (f"import ctypes\nctypes.CDLL(None).syscall({CLONE}, 17, 0, 0, 0, 0)", FORKED),
    "a bad address": (
        "import ctypes\nctypes.string_at(0)", {"ending": "killed", "status": signal.SIGSEGV}),
    "a bad instruction": (
        f"""import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write({ILLEGAL!r})
at = ctypes.addressof(ctypes.c_char.from_buffer(m))\nctypes.CFUNCTYPE(None)(at)()""",
        {"ending": "killed", "status": signal.SIGILL}),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDINGS)
def test_how_a_program_ends_is_told(sandbox, name):
    text, told = ENDINGS[name]
    result = run(sandbox, text)
    assert {field: getattr(result, field) for field in told} == told


def test_threads_are_allowed_up_to_a_number(sandbox):
    text = """
        import threading, time
        threads = [threading.Thread(target=time.sleep, args=(SECONDS,)) for _ in range(NUM)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print("done")
    """
    few = text.replace("SECONDS", "0.01").replace("NUM", "8")
    assert run(sandbox, few).stdout == "done\n"
    many = text.replace("SECONDS", "60").replace("NUM", "100")
    result = run(sandbox, many)
    assert result.ending == "too_many_processes"
    assert result.message == "more than 16 processes or threads"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_gigabyte_of_output_is_cut(sandbox, stream):
    result = run(sandbox, f"import sys\nfor _ in range(1000): sys.{stream}.write('x' * 2**20)")
    assert result.ending == "output_too_large"
    assert result.message == f"more than 65,536 bytes of {stream}"
    assert len(getattr(result, stream)) == LIMITS.output_bytes


def test_output_up_to_the_limit_is_whole(sandbox):
    assert len(run(sandbox, "print('x' * (64 * 1024 - 1))").stdout) == LIMITS.output_bytes
    assert run(sandbox, "print('x' * 64 * 1024)").ending == "output_too_large"


def test_a_file_has_a_limit(sandbox):
    result = run(sandbox, "open('big', 'wb').write(bytes(8 * 2**20))")
    assert (result.ending, result.status) == ("exited", 1)
    assert "OSError: [Errno" in result.stderr


def test_files_together_have_a_limit_in_a_namespace():
    sandbox = sandbox_of("bubblewrap")
    text = "for i in range(8): open(str(i), 'wb').write(bytes(2**20))"
    assert "No space left" in run(sandbox, text).stderr


# What a program may reach.


def test_nothing_is_inherited(sandbox, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    leaked = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    result = run(
        sandbox,
        """
        import os
        print(sorted(os.environ), open("/proc/self/environ").read())
        print(sorted(int(fd) for fd in os.listdir("/proc/self/fd")))
        """,
    )
    os.close(leaked)
    names, descriptors = result.stdout.splitlines()
    assert "hunter2" not in result.stdout and "PATH" in names
    assert "SLURM" not in names and "PYTHONPATH" not in names
    # The last is that of the directory which is listed.
    assert descriptors == "[0, 1, 2, 3]"


def test_other_processes_are_not_seen_in_a_namespace():
    sandbox = sandbox_of("bubblewrap")
    result = run(
        sandbox,
        """
        import os
        print(sorted(int(p) for p in os.listdir("/proc") if p.isdigit()))
        print(os.uname().nodename, os.path.exists("/home"), os.listdir("/etc"))
        """,
    )
    assert result.stdout.startswith("[1, 2]\nsandbox False [")
    assert "passwd" not in result.stdout


@pytest.mark.parametrize("path", ["/escaped", "/usr/escaped", "/dev/escaped", "/etc/escaped"])
def test_writes_outside_fail_in_a_namespace(path):
    sandbox = sandbox_of("bubblewrap")
    result = run(sandbox, f"open({path!r}, 'w')")
    assert result.status == 1 and "Read-only file system" in result.stderr
    assert not Path(path).exists()


def test_files_of_the_user_are_not_there_in_a_namespace(tmp_path):
    (tmp_path / "secret").write_text("hunter2")
    sandbox = sandbox_of("bubblewrap")
    result = run(sandbox, f"print(open('{tmp_path}/secret').read())")
    assert result.status == 1 and "No such file" in result.stderr
    shown = sandbox_of("bubblewrap", paths=[str(tmp_path)])
    assert run(shown, f"print(open('{tmp_path}/secret').read())").stdout == "hunter2\n"
    assert "Read-only" in run(shown, f"open('{tmp_path}/other', 'w')").stderr


SOCKETS = {
    "internet": "socket.create_connection(('127.0.0.1', {port}), timeout=5)",
    "listening": "socket.create_server(('127.0.0.1', 0))",
    "local": "socket.socket(socket.AF_UNIX).connect({path!r})",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
}


@pytest.mark.parametrize("name", SOCKETS)
def test_there_are_no_sockets(sandbox, tmp_path, name):
    path = str(tmp_path / "here")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(path)
        local.listen()
        text = SOCKETS[name].format(port=server.getsockname()[1], path=path)
        result = run(sandbox, f"import socket\n{text}")
    assert result.status == 1
    assert "PermissionError: [Errno 1]" in result.stderr


# Each says "no" where it is refused.
SIGNALS = {
    "to its parent": "os.kill(os.getppid(), 9)",
    "to the process that runs the tests": "os.kill({tests}, 9)",
    "to the helper": "os.kill({helper}, 9)",
    "to its group": "os.killpg(0, 9)",
    "to the helper's group": "os.killpg({helper}, 9)",
    "to all": "os.kill(-1, 9)",
    "to a thread": "libc.syscall({tgkill}, {tests}, {tests}, 9) and fail()",
    "by a descriptor": "os.pidfd_open({tests})",
    "by an owner of input": "fcntl.fcntl(0, fcntl.F_SETOWN, {tests})",
    "by the owner's signal": "fcntl.fcntl(0, 10, 9)",
}
OTHERS = {
    "ptrace": "libc.ptrace(16, {tests}, 0, 0) and fail()",
    "memory": "libc.process_vm_readv({tests}, 0, 0, 0, 0, 0) and fail()",
    "limits": "resource.prlimit({tests}, resource.RLIMIT_NOFILE, (3, 3))",
    "priority": "os.setpriority(os.PRIO_PROCESS, {tests}, 19)",
    "cores": "os.sched_setaffinity({tests}, [0])",
    "shared memory": "libc.shmget(0, 4096, 0o1600) < 0 and fail()",
    "namespaces": "libc.unshare(0x10000000) and fail()",
    "io_uring": "libc.syscall(425, 1, 0) < 0 and fail()",
}


@pytest.mark.parametrize("name", [*SIGNALS, *OTHERS])
def test_other_processes_are_out_of_reach(sandbox, name):
    text = """
        import ctypes, errno, fcntl, os, resource, sys
        libc = ctypes.CDLL(None, use_errno=True)
        def fail():
            raise OSError(ctypes.get_errno(), "no")
        try:
            ACTION
        except OSError as error:
            print(error.errno == errno.EPERM)
    """
    tgkill = {"x86_64": 234, "aarch64": 131}[MACHINE]
    action = (SIGNALS | OTHERS)[name]
    action = action.format(tests=os.getpid(), helper=start_helper().process.pid, tgkill=tgkill)
    before = resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0)
    result = run(sandbox, textwrap.dedent(text).replace("ACTION", action))
    assert (result.ending, result.stdout) == ("exited", "True\n"), result
    assert (resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0)) == before


def test_limits_cannot_be_raised_nor_the_filter_taken_off(sandbox):
    text = """
        import resource
        for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_CORE"):
            soft, hard = resource.getrlimit(getattr(resource, name))
            print(soft == hard != resource.RLIM_INFINITY)
        print([l.split()[1] for l in open("/proc/self/status") if l[:4] in ("NoNe", "Secc")][:2])
    """
    assert run(sandbox, text).stdout == "True\n" * 4 + "['1', '2']\n"


@pytest.mark.skipif(MACHINE != "x86_64", reason="x86-64 has a second set of calls")
def test_the_second_set_of_calls_is_no_way_round(sandbox):
    text = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.syscall(0x40000000 + 62, {os.getpid()}, 9), ctypes.get_errno())
    """
    assert run(sandbox, text).stdout == "-1 1\n"


# The sandbox itself.


def test_as_many_run_at_a_time_as_may(containment):
    sandbox = sandbox_of(containment, max_concurrent=2)
    text = "import time\nprint(time.time())\ntime.sleep(0.5)\nprint(time.time())"
    results = []
    threads = [threading.Thread(target=lambda: results.append(sandbox.run(text))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = [tuple(map(float, result.stdout.split())) for result in results]
    together = [sum(start <= begun < end for start, end in spans) for begun, _ in spans]
    assert len(spans) == 5 and max(together) == 2


def test_a_program_ends_with_who_asked_for_it():
    """The helper's patron is killed while programs wait."""
    script = """
        import sys, threading
        from verl_hpc.rewards.sandbox.sandbox import Sandbox, start_helper
        sandbox = Sandbox(containment="limits")
        run = lambda: sandbox.run("import time; time.sleep(60)")
        for _ in range(2): threading.Thread(target=run).start()
        print(start_helper().process.pid, flush=True)
    """
    patron = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    helper = int(patron.stdout.readline())
    while len(below(helper, 100)) < 4:  # two keepers with a program each
        time.sleep(0.02)
    programs = below(helper, 100)
    patron.kill()
    patron.wait()
    deadline = time.monotonic() + 10
    while any(Path("/proc", str(process)).exists() for process in [helper, *programs]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_a_helper_programs_cannot_be_run(sandbox, monkeypatch):
    helper = module.start_helper.__wrapped__()
    helper.process.kill()
    helper.process.wait()
    monkeypatch.setattr(module, "start_helper", lambda: helper)
    with pytest.raises(SandboxError, match="helper (is gone|gives no answer)"):
        sandbox.run("pass")


def test_an_interpreter_that_is_not_there():
    with pytest.raises(RewardError, match=r"containment = limits: no program .*No such file"):
        module.Sandbox(LIMITS, "limits", python="/gone/bin/python")


@pytest.fixture
def without_bubblewrap(monkeypatch):
    """A helper that finds no bubblewrap."""
    monkeypatch.setenv("PATH", "/gone")
    helper = module.start_helper.__wrapped__()
    monkeypatch.setattr(module, "start_helper", lambda: helper)
    module._choose.cache_clear()
    yield
    module._choose.cache_clear()
    helper.connection.close()
    helper.process.wait()


def test_what_is_not_contained_is_said_once(without_bubblewrap, caplog):
    for _ in range(2):
        sandbox = module.Sandbox(LIMITS)
        assert not sandbox.is_contained
        assert sandbox.run("print(1)").stdout == "1\n"
    (record,) = caplog.records
    assert "may read and write all files that this user may" in record.getMessage()
    assert "bwrap is not installed" in record.getMessage()


def test_bubblewrap_may_be_demanded(without_bubblewrap):
    with pytest.raises(RewardError, match="containment = bubblewrap: .*bwrap is not installed"):
        module.Sandbox(LIMITS, "bubblewrap")
