"""Files that import verl, which is not installed here."""

import sys

import pytest

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards import verl_imports
from verl_hpc.rewards.registry import get_reward_function
from verl_hpc.rewards.request import Request
from verl_hpc.rewards.scoring import score_responses
from verl_hpc.rewards.verl_imports import MODULES


@pytest.fixture(autouse=True)
def without_verl(monkeypatch):
    monkeypatch.setattr(verl_imports, "_is_installed", lambda: False)
    for name in [n for n in sys.modules if n.split(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [n for n in sys.modules if n.split(".")[0] == "verl"]:
        del sys.modules[name]


def score(folder, text, response="", truth="", source="openai/gsm8k"):
    path = folder / "mine.py"
    path.write_text(text)
    config = RewardConfig(function=f"{path}:score")
    request = Request(0, source, truth, {}, response)
    (found,) = score_responses(get_reward_function(config), [request], config)
    return found


HEAD = "def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
WORKS = [
    (
        "from verl.utils.reward_score import gsm8k\n" + HEAD
        + "    assert gsm8k.extract_solution(solution_str) == '1200'\n"
        "    return gsm8k.compute_score(solution_str, ground_truth, method='strict')\n",
        "#### 1,200", "1200", 1.0,
    ),
    (
        "from verl.utils.reward_score.math import last_boxed_only_string, remove_boxed, is_equiv\n"
        + HEAD + "    return is_equiv(remove_boxed(last_boxed_only_string(solution_str)), '0.5')\n",
        r"so \boxed{\frac{1}{2}} it is", "", 1.0,
    ),
    (
        HEAD + "    from verl.utils.reward_score import default_compute_score\n"
        "    return default_compute_score(data_source, solution_str, ground_truth, extra_info,\n"
        "                                 sandbox_fusion_url=None)\n",
        "#### 72", "71", 0.0,
    ),
    (
        "import verl.utils.reward_score.math_dapo as dapo\n" + HEAD
        + "    return dapo.compute_score(solution_str, ground_truth)\n",
        "Answer: 35", "34", -1.0,
    ),
    (
        ("from verl.utils.reward_score.math_batch import *\n"
         "def score(solution_strs, **lists):\n"
         "    return compute_score_batched(solution_strs=solution_strs, **lists)\n"),
        r"\boxed{3}", "3", 1.0,
    ),
    (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from verl import DataProto\n"
        "try:\n    from verl.utils.fs import copy_to_local\nexcept ImportError:\n    pass\n"
        "from verl.utils.reward_score.math_verify import compute_score\n" + HEAD
        + "    return compute_score(solution_str, ground_truth)\n",
        r"\boxed{3}", "4", 0.0,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "response", "truth", "value"), WORKS)
def test_what_there_is_scores_as_ours(tmp_path, text, response, truth, value):
    assert score(tmp_path, text, response, truth).value == value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("from verl.utils.reward_score import prime_code", "reward_score.prime_code,"),
        ("from verl.utils.reward_score.math import strip_string", "math.strip_string,"),
        ("from verl import DataProto", "verl.DataProto,"),
        ("import verl", "verl,"),
        ("import verl.utils.fs as fs", "verl.utils.fs,"),
        (
            HEAD + "    from verl.utils.reward_score.rlla import compute_score",
            "rlla.compute_score,",
        ),
        ("try:\n    import verl.trainer\nfinally:\n    pass", "verl.trainer,"),
        ("try:\n    import verl.trainer\nexcept KeyError:\n    pass", "verl.trainer,"),
        ("try:\n    pass\nexcept ImportError:\n    import verl.tools", "verl.tools,"),
    ],
)
def test_what_there_is_not_is_refused_at_load_with_the_line(tmp_path, text, what):
    path = tmp_path / "mine.py"
    path.write_text(f"1 / 0\n{text}\n")
    with pytest.raises(RewardError) as error:
        get_reward_function(RewardConfig(function=f"{path}:score"))
    words = str(error.value)
    line = next(n for n, one in enumerate(text.splitlines(), 2) if "import" in one.split()[:3])
    assert f"{path}, line {line} imports verl" in words
    assert f"{what.removesuffix(',')}, and verl is not installed" in words
    assert "gsm8k (compute_score, extract_solution)" in words


def test_an_installed_verl_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / "verl").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not verl_imports._is_installed()
    (tmp_path / "verl/__init__.py").write_text("ANSWER = 0.25\n")
    assert verl_imports._is_installed()
    text = "from verl import ANSWER\ndef score(response, truth):\n    return ANSWER\n"
    assert score(tmp_path, text).value == 0.25


def test_a_file_that_does_not_import_verl_finds_none(tmp_path):
    text = "import sys\ndef score(response, truth):\n    return float('verl' in sys.modules)\n"
    assert score(tmp_path, text).value == 0.0


def test_answers_as_text():
    gsm8k = MODULES["verl.utils.reward_score.gsm8k"]["extract_solution"]
    assert [gsm8k("#### 1,200."), gsm8k("#### ..."), gsm8k("7")] == ["1200", None, None]
    assert [gsm8k("3 or 4.50 ...", "flexible"), gsm8k("-7", "flexible")] == ["4.50", "-7"]
    of_math = MODULES["verl.utils.reward_score.math"]
    last, remove = of_math["last_boxed_only_string"], of_math["remove_boxed"]
    for text, box, held in [
        (r"\boxed{1} \boxed{\frac{1}{2}}.", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"$\boxed 5$ so", r"\boxed 5", "5"),
        (r"\fbox{3}", r"\fbox{3}", "3"),
    ]:
        assert last(text) == box
        assert remove(box) == held
    assert last("none") is last(r"\boxed{open") is None
    equal = of_math["is_equiv"]
    assert equal(None, None) and equal("", " ") and equal(r"\frac{1}{2}", "$0.5$")
    assert not equal("1", None) and not equal("1", "") and not equal("1", "2")


def test_settings_of_a_sandbox_are_refused():
    default = MODULES["verl.utils.reward_score"]["default_compute_score"]
    with pytest.raises(RewardError, match="sandbox_fusion_url = 'http.*expected None"):
        default("math", "", "1", sandbox_fusion_url="http://x")
    with pytest.raises(NotImplementedError, match="'codecontests' has no reward function"):
        default("codecontests", "", "1")


def test_dapo_prefers_what_is_stated():
    dapo = MODULES["verl.utils.reward_score.math_dapo"]["compute_score"]
    assert dapo("Answer: 34", "34") == {"score": 1.0, "acc": True, "pred": "34"}
    assert dapo(r"Answer: 35 \boxed{34}", "34", strict_box_verify=True)["score"] == 1.0
    assert dapo(r"\boxed{34}", "34")["pred"] == "34"
    assert dapo("34", "34") == {"score": -1.0, "acc": False, "pred": "[INVALID]"}
