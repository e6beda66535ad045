"""A judge at a real address of this machine: one that answers, and others that do not."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scoring import score_responses


def reply(text):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


class Judge(ThreadingHTTPServer):
    """Answers the n-th request with the n-th of some replies, the last one for ever; a reply is
    (status, body), or a function that is given the request's handler."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies = [reply("Score: 0.5")]
        self.asked = []
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, dict(self.headers), self.body))
            number = min(len(self.server.asked), len(self.server.replies))
        answer = self.server.replies[number - 1]
        answer(self) if callable(answer) else self.send(*answer)

    def send(self, status, text=""):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def judge():
    with Judge() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def scores(judge, *requests, on_error="stop", **options):
    url = judge if isinstance(judge, str) else judge.url
    given = {"base_url": url, "model": "m", "prompt": "Judge {response}", "backoff_s": 0.01}
    config = RewardConfig(function="judge", options=given | options, on_error=on_error)
    return score_responses(get_reward_function(config), requests or [request()], config)


def request(response="out", **fields):
    return Request(7, "mine", "72", {}, response, **fields)


def test_the_judge_is_asked_as_the_protocol_says(judge, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "hunter2")
    (score,) = scores(
        judge,
        request("a {prompt}", prompt=[{"role": "user", "content": "1 + 1"}]),
        prompt="{prompt} = {response}? {ground_truth} {data_source} \\boxed{x}",
        system="You judge.",
        variable="JUDGE_KEY",
        parameters={"temperature": 0.0, "max_tokens": 9},
    )
    assert score.value == 0.5
    ((path, headers, body),) = judge.asked
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", "Bearer hunter2")
    system = {"role": "system", "content": "You judge."}
    user = {"role": "user", "content": "1 + 1 = a {prompt}? 72 mine \\boxed{x}"}
    settings = {"model": "m", "temperature": 0.0, "max_tokens": 9}
    assert body == settings | {"messages": [system, user]}


def test_the_last_match_is_the_score_and_a_verdict_where_no_pattern_is_set(judge):
    judge.replies = [reply("<think>9?</think>Of 10 points it has [[3]], or [[8]].\nScore: 7/10")]
    pattern = r"\[\[(\d+)\]\]"
    assert scores(judge, pattern=pattern, maximum=10.0)[0].value == 8.0
    assert (scores(judge)[0].value, scores(judge, maximum=10.0)[0].value) == (0.7, 7.0)


def test_a_prompt_whose_messages_have_parts_or_nothing_is_shown(judge):
    parts = [{"type": "text", "text": "1 + 1"}]
    call = {"role": "assistant", "tool_calls": []}
    prompt = [{"role": "user", "content": parts}, call]
    scores(judge, request("2", prompt=prompt), prompt="{prompt} = {response}?")
    assert judge.asked[0][2]["messages"][0]["content"] == "1 + 1 = 2?"


def test_responses_are_judged_at_a_time_and_in_order(judge):
    all_asked = threading.Barrier(12, timeout=30)

    def together(handler):
        all_asked.wait()
        said = handler.body["messages"][0]["content"].removeprefix("Judge ")
        handler.send(*reply(said))

    judge.replies = [together]
    values = [number / 16 for number in range(12)]
    scored = scores(judge, *[request(f"Score: {v}") for v in values], max_concurrent=12)
    assert [score.value for score in scored] == values


def test_no_more_are_under_way_than_may_be(judge):
    under_way, most = [], []

    def count(handler):
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.05)
        under_way.pop()
        handler.send(*reply("1"))

    judge.replies = [count]
    scores(judge, *[request()] * 9, max_concurrent=3)
    assert max(most) == 3


TRANSIENT = [
    ((500, "busy"), "HTTP status 500: busy"),
    ((429, "slow down"), "HTTP status 429"),
    ((200, "{"), "malformed reply (JSONDecodeError): {"),
    ((200, "[]"), "malformed reply (TypeError)"),
    ((200, '{"choices": []}'), "malformed reply (IndexError)"),
    ((200, '{"choices": [{"message": {"content": null}}]}'), "content is NoneType"),
    (reply("no score in it"), "'no score in it' has no verdict that is clear"),
    (reply("1.5"), "is 1.5, not from 0 to 1"),
    (reply("-1"), "is -1, not from 0 to 1"),
]


@pytest.mark.parametrize(("bad", "words"), TRANSIENT)
def test_what_may_go_better_is_asked_again_and_is_a_named_error_in_the_end(judge, bad, words):
    judge.replies = [bad, bad, reply("0.75")]
    assert (scores(judge)[0].value, len(judge.asked)) == (0.75, 3)
    judge.asked, judge.replies = [], [bad]
    with pytest.raises(RewardError) as caught:
        scores(judge, retries=2)
    text = str(caught.value)
    assert words in text
    assert f"row 7, response 'out': JudgeError: {judge.url} gives no score, asked 3 times" in text
    assert len(judge.asked) == 3
    (score,) = scores(judge, retries=0, on_error="zero")
    assert score.value == 0.0 and words in score.error


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_would_go_wrong_again_is_not_asked_again(judge, status):
    judge.replies = [(status, "no such model")]
    with pytest.raises(RewardError, match=f"HTTP status {status}: no such model"):
        scores(judge)
    assert len(judge.asked) == 1


def test_a_judge_that_is_down():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    with pytest.raises(RewardError, match=r"asked 2 times: ConnectError: .*refused"):
        scores(url, retries=1)


def silent(handler):
    time.sleep(3)


def dribbling(handler):
    handler.send(200)
    for _ in range(60):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def hanging_up(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def endless(handler):
    handler.send(200)
    while True:
        handler.wfile.write(b" " * 2**20)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (silent, "ReadTimeout"),
        (dribbling, "no whole answer in timeout_s = 0.3"),
        (hanging_up, "RemoteProtocolError|ReadError"),
        (endless, "an answer of more than 4,194,304 bytes"),
    ],
)
def test_a_judge_that_does_not_finish(judge, bad, words):
    judge.replies = [bad]
    with pytest.raises(RewardError, match=words):
        scores(judge, retries=1, timeout_s=0.3 if bad is not endless else 10.0)


def test_one_failure_leaves_the_others(judge):
    judge.replies = [reply("nothing"), reply("1")]
    both = scores(judge, request("a"), request("b"), retries=0, max_concurrent=1, on_error="zero")
    assert [score.value for score in both] == [0.0, 1.0]


def test_retries_wait_longer_each_time(judge, monkeypatch):
    waits = []
    monkeypatch.setattr("verl_hpc.rewards.functions.judge.time.sleep", waits.append)
    judge.replies = [(500, "")]
    scores(judge, retries=4, backoff_s=20.0, on_error="zero")
    assert waits == [20.0, 40.0, 60.0, 60.0]


def test_a_key_that_is_not_there_is_told_at_the_start(judge, monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(RewardError, match=r"variable = JUDGE_KEY is not set .*pass_environment"):
        scores(judge, variable="JUDGE_KEY")
