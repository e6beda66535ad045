r"""Mathematical equality of what \boxed{} holds."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_hpc.errors import RewardError
from verl_hpc.rewards.functions.math import compute_score


def score(response, truth, **options) -> float:
    return compute_score(response, truth, **options)


RIGHT = [
    # What verl's string rules are for: spaces, dfrac, units, degrees, x=, 0.5, bare fractions.
    (r"so $\boxed{\dfrac{1}{2}}$", r"\frac{1}{2}"),
    (r"\boxed{\frac12}", r"\frac{1}{2}"),
    (r"\boxed{1/2}", r"\frac{1}{2}"),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    (r"\boxed{.5}", "0.5"),
    (r"\boxed{x=5}", "5"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{18 \text{ dollars}}", "18"),
    (r"\boxed{\$18}", "18"),
    (r"\boxed{1{,}000}", "1000"),
    (r"\boxed{\left(1, 2\right)}", "(1,2)"),
    (r"\boxed{\sqrt3}", r"\sqrt{3}"),
    (r"\boxed{50\%}", "50"),
    (r"\boxed{\text{east}}", r"\text{east}"),
    # Equal, and written otherwise.
    (r"\boxed{(x+1)^2}", "x^2+2x+1"),
    (r"\boxed{\frac{\sqrt2}{2}}", r"\frac{1}{\sqrt{2}}"),
    (r"\boxed{\{1,2,3\}}", r"\{3,2,1\}"),
    # Where the answer is looked for.
    (r"\boxed{1} was wrong, \boxed{2} is right", "2"),
    (r"The answer is 7, I mean \boxed{3}.", "3"),
    ("The final answer is $\\frac{3}{4}$.", r"\frac{3}{4}"),
    ("Answer: 34", "34"),
    # Truths as MATH writes them.
    (r"\boxed{(3,\pi/2)}", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"\boxed{Evelyn}", r"\text{Evelyn}"),
    (r"\boxed{(-\infty,-8)\cup(-8,\infty)}", r"(-\infty,-8)\cup(-8,\infty)"),
    (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\boxed{90}", r"90^\circ"),
    (r"\boxed{-2,1}", "1,-2"),
    (r"\boxed{32348}", r"\$32,\!348"),
    (r"\boxed{10}", r"10\%"),
    (r"\boxed{9i+6}", "6+9i"),
    (r"\boxed{\sqrt{20}}", r"2\sqrt{5}"),
    (r"\boxed{52_8}", "52_8"),
    (r"\boxed{B}", r"\text{(B)}"),
]
WRONG = [
    (r"\boxed{3}", "4"),
    (r"\boxed{2} is right, no: \boxed{1}", "2"),
    (r"\boxed{1, 2}", "2"),
    (r"\boxed{2", "2"),
    (r"\boxed{}", "2"),
    ("I computed 2", "2"),
    ("", "2"),
    (r"\boxed{\text{west}}", r"\text{east}"),
    (r"\boxed{" + "(" * 200 + "2" + "}", "2"),
    *((r"\boxed{77}", truth) for _, truth in RIGHT),
]


@pytest.mark.parametrize(("pairs", "right"), [(RIGHT, 1.0), (WRONG, 0.0)], ids=["right", "wrong"])
def test_answers_are_told_apart(pairs, right):
    assert not [pair for pair in pairs if score(*pair) != right]


@pytest.mark.parametrize("truth", [None, "", "  ", [], ["4"], {"target": 4}])
def test_a_row_without_truth_is_an_error(truth):
    with pytest.raises(RewardError, match=r"ground_truth = .* is not an answer"):
        score(r"\boxed{2}", truth)


def test_an_answer_that_takes_forever_is_wrong_and_the_alarm_is_off(no_alarm):
    start = time.monotonic()
    assert score(r"\boxed{9^{9^{9^9}}}", "2", timeout_s=0.3) == 0.0
    assert time.monotonic() - start < 30
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_works_off_the_main_thread():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(score, r"\boxed{0.5}", "1/2").result() == 1.0


def test_says_nothing_of_timeouts(caplog):
    score(r"\boxed{2}", "2")
    assert not caplog.records
