"""Finding a reward function."""

from collections.abc import Mapping

import pytest

from verl_hpc.config.reward import REWARD_FUNCTIONS, RewardConfig, options_of, reward_module
from verl_hpc.errors import RewardError
from verl_hpc.rewards.built_in import built_in
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request, arguments, taken
from verl_hpc.rewards.scoring import score_responses


def find(function, **options):
    return get_reward_function(RewardConfig(function=function, options=options))


def call(function, response, truth, data_source="", extra=None):
    """The score, if it is called as scoring does: by keyword, with what it takes."""
    request = Request(0, data_source, truth, extra or {}, response)
    result = function(**arguments(request, taken(function)))
    return result["score"] if isinstance(result, Mapping) else result


def test_exact_match_needs_a_truth():
    for truth in (None, "", " ", ["None"], {"target": "None"}):
        with pytest.raises(RewardError, match="no ground_truth|is no answer that a response could"):
            call(find("exact_match"), "None", truth)


def test_options_are_bound():
    assert call(find("gsm8k", method="flexible", format_score=0.2), "it is 71", "72") == 0.2


SOURCES = [
    ("openai/gsm8k", "#### 72", "72", None),
    ("lighteval/MATH", r"\boxed{\frac12}", "0.5", None),
    ("DigitalLearningGmbH/MATH-lighteval", r"\boxed{2}", "2", None),
    ("HuggingFaceH4/MATH-500", r"\boxed{2}", "2", None),
    ("math_dapo", "Answer: 34", "34", None),
    ("aime2024", r"\boxed{204}", "204", None),
    ("numina_olympiads", r"\boxed{2}", "2", None),
    ("reasoning_gym/chain_sum", "5", "5", {"question": "2 + 3", "metadata": {}}),
    ("multiple_choice/gpqa", r"\boxed{Rome}", "B", {"choices": ["Paris", "Rome"]}),
]


def test_auto_goes_by_the_source_of_the_row():
    for source, response, truth, extra in SOURCES:
        assert call(find("auto"), response, truth, source, extra) == 1.0, source


@pytest.mark.parametrize("source", ["codecontests", "", "OPENAI/GSM8K"])
def test_auto_says_what_to_do_about_a_source_it_does_not_know(source):
    message = f"data_source = '{source}' has no reward function; .*py:function"
    with pytest.raises(RewardError, match=message):
        call(find("auto"), "1", "1", source)


def test_the_configuration_knows_the_names():
    assert (
        *("auto", "accuracy_reward", "code", "exact_match", "format", "gsm8k", "judge", "length"),
        *("math", "multiple_choice", "program", "reasoning_gym"),
    ) == REWARD_FUNCTIONS
    for name in REWARD_FUNCTIONS[1:]:
        kind = options_of(name)
        needs = kind is not None and any(f.is_required() for f in kind.model_fields.values())
        assert needs or name in ("format", "length") or callable(built_in(name)), name
    patterns = [
        p for n in REWARD_FUNCTIONS[1:] for p in vars(reward_module(n)).get("DATA_SOURCES", ())
    ]
    assert len(patterns) == len(set(patterns)) == 11


@pytest.mark.parametrize("function", ["gsm8k", "auto"])
def test_options_the_function_does_not_take_are_refused_before_the_run(function):
    message = r"it takes \((data_source|solution_str).*got an unexpected keyword argument 'metod'"
    with pytest.raises(RewardError, match=message):
        find(function, metod="strict")


@pytest.mark.parametrize(
    "parameters",
    [
        "response, reference", "solution_str, ground_truth", "response, reference, /",
        "response, reference, strict=False", "completion, answer, **options",
        "response, ground_truth",
    ],
)  # fmt: skip
def test_a_function_of_two_arguments_gets_response_and_truth(tmp_path, parameters):
    first, second = parameters.split(", ")[:2]
    body = f"return len({first}) + 10 * len({second})"
    assert call(find(written(tmp_path, parameters, body)), "four", "on") == 24


OF_USER = "data_source, solution_str, ground_truth, extra_info=None, **options"


@pytest.mark.parametrize(
    ("parameters", "value", "options", "score"),
    [
        ("ground_truth, solution_str", "len(solution_str) + 10 * len(ground_truth)", {}, 24),
        ("a, b, scale, power=1", "(scale * len(a)) ** power", {"scale": 2, "power": 2}, 64),
        ("truncated, **_", "truncated", {"truncated": 0.25}, 0.25),
        (OF_USER, "options['scale'] * len(solution_str)", {"scale": 0.5}, 2.0),
    ],
    ids=["names of verl", "two arguments", "an option that a keyword has the name of", "verl's"],
)
def test_arguments_by_name_and_options(tmp_path, parameters, value, options, score):
    function = find(written(tmp_path, parameters, f"return {value}"), **options)
    assert call(function, "four", "on") == score
    request = Request(0, "", "on", {}, "four")
    assert score_responses(function, [request], RewardConfig())[0].value == score


def test_a_function_of_a_list_takes_its_options(tmp_path):
    head = "from verl_hpc.rewards.request import batched\n@batched\n"
    body = "return [scale * len(r.response) for r in requests]"
    name = written(tmp_path, "requests, scale=1", body, head)
    requests = [Request(0, "", "", {}, text) for text in ("a", "bb")]
    found = score_responses(find(name, scale=3), requests, RewardConfig())
    assert [score.value for score in found] == [3, 6]
    with pytest.raises(RewardError, match=r"it is batched, takes \(requests, scale=1\)"):
        find(name, size=3)


def written(folder, parameters, body="return 1.0", head=""):
    path = folder / "mine.py"
    path.write_text(f"{head}def score({parameters}):\n    {body}\n")
    return f"{path}:score"


TURNS = [{"role": "assistant", "content": "four", "token_ids": [5]}]
FULL = Request(
    0,
    "mine",
    "on",
    {"k": 1},
    "four",
    "",
    "ask",
    [5],
    TURNS,
    True,
    lambda: {"level": 3},
    "length",
    "run",
)
KNOWN = {
    "data_source": "mine", "solution_str": "four", "ground_truth": "on",
    "extra_info": {"k": 1, "num_turns": 2, "experiment_name": "run"},
    "response_ids": [5], "turns": TURNS, "truncated": True,
    "stop_reason": "length", "row": {"level": 3}, "prompt": "ask",
}  # fmt: skip


@pytest.mark.parametrize(
    "parameters",
    [
        "solution_str, ground_truth, turns", "solution_str", "*, truncated, prompt",
        "row, response_ids, scale=1", "extra_info, solution_str", ", ".join(reversed(KNOWN)),
    ],
)  # fmt: skip
def test_a_function_is_given_what_it_asks_for_and_no_more(tmp_path, parameters):
    function = find(written(tmp_path, parameters, "SEEN.append(locals()); return 1.0"))
    seen = function.func.__globals__["SEEN"] = []
    score_responses(function, [FULL], RewardConfig())
    names = parameters.removeprefix("*, ").replace("=1", "").split(", ")
    assert seen == [{name: KNOWN.get(name, 1) for name in names}]


PLURAL = "data_sources, solution_strs, ground_truths, extra_infos"
EACH = "len(solution_strs[i]) + ground_truths[i] + extra_infos[i]['k']"


@pytest.mark.parametrize(
    ("parameters", "result", "expected"),
    [
        (PLURAL, f"[{EACH} for i in range(3)]", [0, 3, 6]),
        ("solution_strs, unit=1, **kwargs", "[len(kwargs['extra_infos'])] * 3", [3, 3, 3]),
        ("solution_strs", "__import__('numpy').arange(3.0)", [0, 1, 2]),
        ("solution_strs", "__import__('torch').arange(3.0)", [0, 1, 2]),
        ("solution_strs", "tuple({'score': len(s)} for s in solution_strs)", [0, 1, 2]),
    ],
)
def test_what_verl_gives_a_list_is_given_by_its_plural_names(
    tmp_path, parameters, result, expected
):
    requests = [Request(i, "mine", i, {"k": i}, "x" * i) for i in range(3)]
    function = find(written(tmp_path, parameters, f"return {result}"))
    assert [s.value for s in score_responses(function, requests, RewardConfig())] == expected


def test_an_asynchronous_function_of_a_list_is_awaited(tmp_path):
    name = written(tmp_path, "solution_strs", "return [len(s) for s in solution_strs]", "async ")
    requests = [Request(0, "", "", {}, text) for text in ("a", "bb")]
    found = score_responses(find(name), requests, RewardConfig())
    assert [score.value for score in found] == [1, 2]


@pytest.mark.parametrize("parameters", ["solution_strs, prompts", "solution_strs, data_source"])
def test_a_function_of_a_list_that_asks_for_more_is_refused(tmp_path, parameters):
    message = "argument: '(prompts|data_source)'.*solution_strs, ground"
    with pytest.raises(RewardError, match=message):
        find(written(tmp_path, parameters))


@pytest.mark.parametrize(
    "parameters",
    [
        "response", "response, reference, more", "solution_str, ground_truth, tokenizer",
        "solution_str, /", "response=None, ground_truth=None", "ground_truth, prompt, row",
        "*, response, reference", "ground_truth, response", "reference, response",
        "prompt, response", "prompts, completions", "reference_solution, r", "response, prompt",
        "extra_info, answer", "reference, solution_str", "",
    ],
)  # fmt: skip
def test_other_signatures_are_refused_with_both_that_are_taken(tmp_path, parameters):
    with pytest.raises(RewardError) as error:
        find(written(tmp_path, parameters))
    text = str(error.value)
    assert f"it takes ({parameters})" in text
    assert "data_source, solution_str, ground_truth, extra_info" in text
    assert "function(response, ground_truth)" in text


JUDGE = """class Judge:
    def __call__(self, response, ground_truth): return 1.0
    @property
    def __signature__(self): {}
score = Judge()
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score = max\n", "nothing says what it takes"),
        (JUDGE.format("exec('while True: pass')"), r"longer than import_timeout_s = 0\.2"),
        (JUDGE.format("1 / 0"), r"its arguments cannot be read: ZeroDivisionError"),
        (JUDGE.format("return 3"), r"its arguments cannot be read: TypeError"),
    ],
)
def test_a_signature_that_cannot_be_read(tmp_path, no_alarm, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    config = RewardConfig(function=f"{path}:score", import_timeout_s=0.2)
    with pytest.raises(RewardError, match=message):
        get_reward_function(config)
