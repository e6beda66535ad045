"""Score responses by another model, at an address that speaks OpenAI's protocol.

The client is httpx: it loads in a fifth of the 1.5 s that OpenAI's own takes, and a request is one
POST.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from verl_hpc.errors import RewardError
from verl_hpc.rewards.request import Request, RewardFunction, bounded, text_of_prompt
from verl_hpc.rewards.verdict import Scale, answer_of, read_verdict
from verl_hpc.runtime import environment
from verl_hpc.section import Finite, NonNegative, Pattern, Positive, Seconds, Section
from verl_hpc.section import Options as Fields

if TYPE_CHECKING:
    import httpx

_LONGEST_WAIT_S = 60.0
_MOST_BYTES = 2**22
"""Most bytes of an answer, which is usually a few words."""
_NOT_AGAIN = {400, 401, 403, 404, 405, 410, 413, 422}
"""HTTP statuses that a retry would only repeat."""


CALLED_BY_THE_RANK = True


def _check_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
        raise ValueError("no address; expected such as http://node17:8000/v1")
    return url.rstrip("/")


class Options(Section):
    """Ask a model at an OpenAI-compatible address for a score."""

    base_url: Annotated[str, AfterValidator(_check_url)]
    """Address of the service, up to and with /v1; /chat/completions is added."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model there."""
    prompt: Annotated[str, Field(pattern=r"\{response\}")]
    """Question to the model; {response}, {prompt}, {ground_truth} and {data_source} stand for the
    row's."""
    system: str | None = None
    """A system message before it."""
    pattern: Pattern | None = None
    """A regular expression whose first group is the score; the last match in the answer counts.
    null reads a verdict in the usual forms: Score: 7/10, [[7]], {"score": 7}, Verdict: not correct
    (docs/reward_functions.md), and no prose."""
    minimum: Finite = 0.0
    """Smallest score; an answer below it is malformed."""
    maximum: Finite = 1.0
    """Largest score; an answer above it is malformed."""
    variable: str | None = None
    """Environment variable that holds the key; the site profile's pass_environment brings it to the
    ranks. null sends none."""
    parameters: Fields = {"temperature": 0.0}
    """Further fields of the request, such as max_tokens."""
    timeout_s: Seconds = 60.0
    """Longest that one request may take."""
    retries: Annotated[NonNegative, Field(le=20)] = 3
    """Requests after the first, where one fails or its answer is malformed."""
    backoff_s: Seconds = 1.0
    """Wait before the first retry, doubled before each further one, up to a minute."""
    max_concurrent: Annotated[Positive, Field(le=1024)] = 16
    """Requests that a rank has open at a time."""

    @model_validator(mode="after")
    def _names_a_variable(self) -> Options:
        # An error of the field would print its value, which may be the key itself.
        if self.variable is not None and not re.fullmatch("[A-Z_][A-Z0-9_]{0,99}", self.variable):
            raise ValueError(
                "variable: names no environment variable, such as JUDGE_KEY; give the variable's "
                "name and not what it holds"
            )
        return self

    @model_validator(mode="after")
    def _has_a_score(self) -> Options:
        if self.pattern is not None and re.compile(self.pattern).groups < 1:
            raise ValueError(f"pattern = {self.pattern}: needs a group, in ( ), around the score")
        if self.minimum >= self.maximum:
            raise ValueError(f"minimum = {self.minimum:g} is not below maximum = {self.maximum:g}")
        return self


class JudgeError(Exception):
    """No score for a response, after all retries."""


class _AgainError(Exception):
    """A failure that a retry may mend."""


def make(options: Options) -> RewardFunction:
    """Make the reward function with its client.

    Raises:
        RewardError: the variable of the key is not set.
    """
    import httpx

    headers = {}
    if options.variable is not None:
        key = environment.setting(options.variable, "")
        if not key:
            raise RewardError(
                f"judge: variable = {options.variable} is not set on {environment.node_name()}; "
                "export it, and name it in the site profile's pass_environment"
            )
        headers["Authorization"] = f"Bearer {key}"
    # A line for each request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    limits = httpx.Limits(max_connections=options.max_concurrent)
    client = httpx.Client(headers=headers, limits=limits, timeout=options.timeout_s)
    return bounded(partial(compute_scores, ask=partial(_ask, client, options), options=options))


def compute_scores(
    requests: Sequence[Request], ask: Callable[[Request], float], options: Options
) -> list[float | Exception]:
    """Return the scores of responses, or JudgeError where the judge gives none; several requests
    are open at a time.

    Args:
        requests: the responses.
        ask: function that asks once; raises _AgainError or JudgeError.
        options: number of retries, and of requests at a time.
    """
    if not requests:
        return []
    pool = ThreadPoolExecutor(min(options.max_concurrent, len(requests)))
    try:
        return list(pool.map(partial(_with_retries, ask, options), requests))
    finally:
        # If this ends early, requests under way are not waited for.
        pool.shutdown(wait=False, cancel_futures=True)


def _with_retries(
    ask: Callable[[Request], float], options: Options, request: Request
) -> float | Exception:
    wait_s = options.backoff_s
    reason = ""
    for left in range(options.retries, -1, -1):
        try:
            return ask(request)
        except JudgeError as error:
            return error
        except _AgainError as error:
            reason = str(error)
        if left:
            time.sleep(min(wait_s, _LONGEST_WAIT_S))
            wait_s *= 2
    times = options.retries + 1
    return JudgeError(f"{options.base_url} gives no score, asked {times} times: {reason}")


def _ask(client: httpx.Client, options: Options, request: Request) -> float:
    import httpx

    body = {"model": options.model, "messages": _messages(options, request), **options.parameters}
    address = f"{options.base_url}/chat/completions"
    deadline = time.monotonic() + options.timeout_s
    try:
        with client.stream("POST", address, json=body) as response:
            content = bytearray()
            for piece in response.iter_bytes():
                content += piece
                if time.monotonic() > deadline:  # httpx's own limit is for each piece
                    raise _AgainError(f"no whole answer in timeout_s = {options.timeout_s:g}")
                if len(content) > _MOST_BYTES:
                    raise _AgainError(f"an answer of more than {_MOST_BYTES:,} bytes")
    except httpx.HTTPError as error:
        raise _AgainError(f"{type(error).__name__}: {error}") from None
    if response.status_code != 200:
        words = f"HTTP status {response.status_code}: {content[:200].decode(errors='replace')}"
        raise (JudgeError if response.status_code in _NOT_AGAIN else _AgainError)(words)
    return read_score(_text_of(bytes(content)), options)


def _messages(options: Options, request: Request) -> list[dict[str, str]]:
    values = {
        "response": request.response,
        "prompt": text_of_prompt(request.prompt),
        "ground_truth": str(request.ground_truth),
        "data_source": request.data_source,
    }
    # In one pass: a response may also hold such a word. Templates may hold other braces.
    names = re.compile("|".join(rf"\{{{name}\}}" for name in values))
    text = names.sub(lambda found: values[found[0][1:-1]], options.prompt)
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _text_of(content: bytes) -> str:
    """Return the answer in a reply of the service."""
    try:
        text = json.loads(content)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        shown = content[:200].decode(errors="replace")
        raise _AgainError(f"a malformed reply ({type(error).__name__}): {shown}") from None
    if not isinstance(text, str):
        raise _AgainError(f"a reply whose content is {type(text).__name__}")
    return text


def read_score(text: str, options: Options) -> float:
    """Read the score in an answer.

    Raises:
        _AgainError: there is none, or not between the bounds.
    """
    answer = answer_of(text)
    score = _by_pattern(answer, options.pattern) if options.pattern else _by_form(answer, options)
    if not math.isfinite(score) or not options.minimum <= score <= options.maximum:
        bounds = f"{options.minimum:g} to {options.maximum:g}"
        raise _AgainError(f"the score in {text!r:.200} is {score:g}, not from {bounds}")
    return score


def _by_form(answer: str, options: Options) -> float:
    verdict = read_verdict(answer, Scale(options.minimum, options.maximum))
    if verdict is None:
        raise _AgainError(
            f"the answer {answer!r:.200} has no verdict that is clear; have the prompt ask for a "
            f"last line such as Score: {options.maximum:g}, or set pattern"
        )
    return verdict


def _by_pattern(answer: str, pattern: str) -> float:
    text: Any = None
    for match in re.finditer(pattern, answer):
        text = match[1]
    if text is None:
        raise _AgainError(f"the answer {answer!r:.200} has no match of pattern = {pattern}")
    try:
        return float(text)
    except ValueError:
        raise _AgainError(f"the score in {answer!r:.200} is {text!r:.60}, no number") from None
