"""The dashboard over HTTP: who is let in, what is shown, and what is refused."""

import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlencode

import pytest

from tests.dashboards import serving
from tests.unit.cli.status_runs import beat, make_run, submit_run, without_slurm, work
from verl_hpc.cli.dashboard.pages import MetricsTail
from verl_hpc.cli.dashboard.parts import tail
from verl_hpc.cli.dashboard.server import make_server
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.samples import SampleGroup, SampleLog, SampleResponse
from verl_hpc.metrics.timeline import Timeline
from verl_hpc.runs.ranks import Progress, Ranks, write_ranks

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    without_slurm(tmp_path, monkeypatch)
    directory = tmp_path / "runs"
    directory.mkdir()
    return directory


@pytest.fixture
def server(runs):
    with serving(runs) as running:
        yield running


def ask(server, path, cookie=True, method="GET", **headers):
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    if cookie:
        headers["Cookie"] = f"other=1; {server.cookie}={server.token}"
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def test_the_token_becomes_a_cookie_and_leaves_the_address(server):
    status, headers, _ = ask(server, f"/run?token={server.token}&name=a%20b", cookie=False)
    assert (status, headers["Location"]) == (303, "/run?name=a+b")
    assert f"{server.cookie}={server.token}; HttpOnly; SameSite=Lax" in headers["Set-Cookie"]
    assert server.address.endswith(f":{server.port}/?token={server.token}")
    assert len(server.token) >= 43
    for path in ("//evil.example/", "/\\evil.example"):
        status, headers, _ = ask(server, f"{path}?token={server.token}", cookie=False)
        assert status == 303
        assert headers["Location"].rstrip("/") == "/evil.example", "a path, not a host"


PATHS = ["/", "/run?name=a", "/part?of=runs", "/dashboard.js", "/nowhere"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cookie", [None, "", "x", "\xe4", "a=b; ;;="])
def test_without_the_token_there_is_nothing(server, runs, path, cookie):
    make_run(runs, "a")
    headers = {} if cookie is None else {"Cookie": f"{server.cookie}={cookie}"}
    status, _, text = ask(server, path, cookie=False, **headers)
    assert status == 403
    assert "runs" not in text.replace("dashboard", "")


def test_a_wrong_token(server):
    for token in ("", "x", "%C3%A4", "A" * 43):
        status, headers, _ = ask(server, f"/?token={token}", cookie=False)
        assert (status, "Set-Cookie" in headers) == (403, False), token


def test_another_name_for_this_machine_is_refused_and_another_port_is_not(server):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert ask(server, "/", Host=host)[0] == 421
        assert ask(server, f"/?token={server.token}", cookie=False, Host=host)[0] == 421
    for host in ("localhost", "localhost:1", "127.0.0.1:8080", "[::1]:8080"):
        assert ask(server, "/", Host=host)[0] == 200, "the end of a tunnel"


def test_it_only_reads(server):
    methods = ("POST", "PUT", "DELETE", "OPTIONS")
    assert [ask(server, "/", method=method)[0] for method in methods] == [501] * 4


OUTSIDE = """
    /../../etc/passwd /run?name=../outside /run?name=..%2Foutside /run?name=/etc /run?name= /run
    /part?of=log&name=../outside /part?of=x&name=a /part /__init__.py /%2e%2e/dashboard/server.py
"""


@pytest.mark.parametrize("path", OUTSIDE.split())
def test_nothing_outside_the_runs_can_be_reached(server, runs, path):
    make_run(runs, "a")
    make_run(runs.parent, "outside")
    assert ask(server, path)[0] == 404


def test_headers_that_keep_other_sites_out(server):
    _, headers, _ = ask(server, "/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_an_answer_that_has_not_changed_is_not_sent_again(server):
    _, headers, text = ask(server, "/dashboard.css")
    status, _, again = ask(server, "/dashboard.css", If_None_Match=headers["ETag"])
    assert (status, again) == (304, "")
    status, headers, body = ask(server, "/dashboard.css", method="HEAD")
    assert (status, body, int(headers["Content-Length"])) == (200, "", len(text.encode()))


def test_the_list_and_a_run(server, runs):
    work(make_run(runs, "group/a"), 2)
    beat(runs / "group/a", "rollout", 3)
    _, _, text = ask(server, "/")
    assert '<a href="/run?name=group%2Fa">group/a</a>' in text
    assert '<span class="state good">running</span>' in text
    status, _, text = ask(server, "/run?name=group%2Fa")
    assert status == 200
    assert "Reward" in text and "Step time by operator" in text
    assert '<progress aria-label="steps done" value="2" max="3">' in text
    assert "http:" not in text and "https:" not in text, "no assets of other sites"


def test_parts_follow_the_run(server, runs):
    run = make_run(runs, "a")
    assert ask(server, "/part?of=charts&name=a")[2] == ""
    work(run, 2)
    first = ask(server, "/part?of=charts&name=a")[2]
    with MetricsLog(run, resumed_from=2) as log:
        log.write(3, {"critic/score/mean": 0.9})
    second = ask(server, "/part?of=charts&name=a")[2]
    assert first.count("step 3\n") == 0 and second.count("step 3\n") == 1


def test_a_directory_that_is_a_run(runs):
    with make_server(make_run(runs, "alone")) as server:
        assert "alone" in server.pages.overview()
        assert "alone" in server.pages.run("alone")


def test_what_runs_say_is_only_text(server, runs):
    run = submit_run(runs, "1")
    attempt = run / "job/attempts/0"
    attempt.mkdir(parents=True)
    (attempt / "n0.log").write_text(f"0: {EVIL}\nsrun: &amp;\n")
    (run / "config.yaml").write_text("steps: 3\n")
    beat(run, EVIL, 1)
    with MetricsLog(run) as log:
        log.write(1, {"timing_s/<b>": 1.0, "timing_s/step": 1.0, "<i>": float("nan")})
    now = 1000.0
    row = Progress(0, 1, EVIL, 900.0, EVIL, 1)
    write_ranks(run, Ranks(now, 10.0, 120.0, None, (row, Progress(1, 2, "reward", 1.0, "n0", 2))))
    name = run.relative_to(runs)
    text = ask(server, f"/run?name={name}")[2]
    assert "&lt;script&gt;alert(1)" in text and "   0 &lt;script&gt;" in text
    assert "Late" in text and "<script>" not in text and "<b>&lt;" not in text
    assert "<i>:" not in text and "&lt;i&gt;: nan" in text
    assert "     srun: &amp;amp;" in text


def test_files_of_a_run_are_linked_and_shown(server, runs):
    run = make_run(runs, "x")
    (run / "report.html").write_text("<h1>what it did</h1><script>1</script>")
    for step in (20, 40, 60):
        (run / f"checkpoints/step_{step:08}").mkdir(parents=True)
    for step in (20, 40):
        (run / f"checkpoints/step_{step:08}/manifest.json").write_text("{}")
    _, _, page = ask(server, "/part?of=status&name=x")
    assert "<dt>directory</dt>" in page
    assert "<dt>checkpoints</dt><dd>steps 20, 40</dd>" in page
    assert 'href="/file?name=x&amp;file=report.html">report</a>' in page
    assert "flow.txt" not in page
    status, headers, text = ask(server, "/file?name=x&file=report.html")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';")
    assert text.startswith("<h1>what it did")
    status, headers, text = ask(server, "/file?name=x&file=config.yaml")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert text.startswith("name: ")


def test_only_named_regular_files_are_shown(server, runs, tmp_path):
    run = make_run(runs, "x")
    (tmp_path / "secret").write_text("secret")
    (run / "report.html").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "flow.txt")
    for name in ("report.html", "flow.txt", "../secret", "metrics.jsonl", "/etc/passwd", ""):
        status, _, text = ask(server, f"/file?name=x&file={name}")
        assert (status, "secret" in text) == (404, False)
    assert "report.html" not in ask(server, "/part?of=status&name=x")[2]


def test_what_is_no_address_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(
            b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        with connection.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 400 ")


def test_only_what_is_new_is_read(tmp_path):
    tail_of = MetricsTail(tmp_path)
    assert tail_of.rows() == []
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [row["step"] for row in tail_of.rows()] == [1, 2]
    with file.open("a") as more:
        more.write('ep": 3}\n')
    assert [row["step"] for row in tail_of.rows()] == [1, 2, 3]
    fresh = tmp_path / "metrics.part"
    fresh.write_text('{"step": 1}\n{"step": 7}\n{"step": 8}\n{"step": 9}\n')
    fresh.replace(file)
    assert [row["step"] for row in tail_of.rows()] == [1, 7, 8, 9]
    file.unlink()
    assert tail_of.rows() == []


def test_the_end_of_a_long_log(tmp_path):
    log = tmp_path / "n0.log"
    log.write_text("".join(f"3: line {i} {'x' * 100}\n" for i in range(2000)))
    lines = tail(log, 100)
    assert len(lines) == 100
    assert lines[-1].startswith("   3 line 1999")
    assert tail(tmp_path / "none.log", 3) == []


def test_the_verb_prints_an_address_that_works_and_ends_at_an_interrupt(runs):
    # Whoever runs tests in the background has interrupts ignored, and so would have their children.
    heeding = ["/usr/bin/env", "--default-signal=INT"]
    command = [*heeding, sys.executable, "-m", "verl_hpc", "dashboard", str(runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        host, _, rest = process.stdout.readline().strip().removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("GET", f"/{rest}")
        assert connection.getresponse().status == 303
        connection.close()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_bad_words(tmp_path, runs, refuses):
    assert "no such directory" in refuses("dashboard", tmp_path / "none")
    told = refuses("dashboard", runs, "--port", "70000")
    assert "--port 70000: a number from 1 to 65535" in told
    with make_server(runs) as server:
        told = refuses("dashboard", runs, "--port", server.port)
    assert "Address already in use; name another" in told


def test_samples_and_timeline_of_a_run(server, runs):
    run = make_run(runs, "ab").rename(runs / "a&b")
    assert "/samples?" not in ask(server, "/run?name=a%26b")[2]
    assert "This run has no samples." in ask(server, "/samples?name=a%26b")[2]
    seconds = itertools.count(1000.0)
    with Timeline(run, 0, None, lambda: next(seconds)) as timeline:
        for step in range(1, 10):
            timeline.begin(step, "rollout", "all")
    log = SampleLog(run, None)
    for step in (3, 6):
        answers = [SampleResponse(f"{EVIL} {step}", 1.0, None, False, None)]
        log.write(step, "train", [SampleGroup(EVIL, "", answers)])
    page = ask(server, "/run?name=a%26b&steps=4-5")[2]
    assert "<b>steps 4-5</b> of 1-9" in page
    assert 'data-src="/part?of=timeline&amp;name=a%26b&amp;steps=4-5"' in page
    assert '<a href="/samples?name=a%26b">prompts and responses of 2 steps</a>' in page
    for path, step in (("/samples?name=a%26b", 6), ("/samples?name=a%26b&step=3", 3)):
        status, _, page = ask(server, path)
        assert status == 200 and EVIL not in page
        assert f"&lt;script&gt;alert(1)&lt;/script&gt; {step}" in page
        assert f"Training, step {step}" in page and f"<b>{step}</b>" in page
    assert "no samples of step 5" in ask(server, "/samples?name=a%26b&step=5")[2]
    assert "Training, step 6" in ask(server, "/samples?name=a%26b&step=../6")[2]
    assert ask(server, "/samples?name=..%2Fa")[0] == 404
    assert ask(server, "/samples?name=a%26b", cookie=False)[0] == 403


def test_nobody_has_run_anything_yet(here, prints):
    assert prints("dashboard").startswith(f"no runs in {here / 'runs'} yet; ")


@pytest.mark.parametrize("error, told", [(ConnectionResetError(), False), (ValueError("x"), True)])
def test_a_browser_that_leaves_early_is_not_told(runs, capsys, error, told):
    server = make_server(runs)
    try:
        raise error
    except (ConnectionError, ValueError):
        server.handle_error(None, ("127.0.0.1", 1))
    finally:
        server.server_close()
    printed = capsys.readouterr().err
    assert ("ValueError: x" in printed) is told
    assert told or not printed


def test_chosen_runs_are_compared_on_one_page(server, runs):
    names = ("a", f"b{EVIL.replace('/', '')}")
    for name, lr in zip(names, (1e-5, 1e-6), strict=True):
        run = make_run(runs, "run", optimizer={"lr": lr})
        work(run, 3)
        run.rename(runs / name)
    _, _, text = ask(server, "/")
    assert text.count('type="checkbox"') == 2
    status, _, text = ask(server, f"/compare?{urlencode({'run': names}, doseq=True)}")
    assert status == 200
    assert "Settings that differ" in text
    assert "<script>alert" not in text
    for query, problem in (("run=a", "at least two"), ("run=a&run=../a", "no such run")):
        status, _, text = ask(server, f"/compare?{query}")
        assert status == 404
        assert problem in text
