"""Reward functions that fail in every way that Python has.

But for KeyboardInterrupt: it stands for the user's own, and shows where the rank was.
"""

# ruff: noqa: E501

from __future__ import annotations

from tests.fuzz.cases import MOST_BYTES, REWARD, SCORE, Case, End, Place, replace_file, set_field

_HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    "

_BODIES: dict[str, tuple[str, End]] = {
    "raises": ("raise ValueError('no')", "error"),
    "raises with 5 MB": ("raise ValueError('x' * 5_000_000)", "error"),
    "raises with half characters": ("raise ValueError('\\ud800')", "error"),
    "raises what has no text": (
        "class E(Exception):\n        def __str__(self):\n            raise OSError\n    raise E", "error"),
    "raises a bare BaseException": ("raise BaseException('no')", "error"),
    "raises GeneratorExit": ("raise GeneratorExit", "error"),
    "raises StopIteration": ("raise StopIteration", "error"),
    "raises MemoryError": ("return 'x' * 10**14", "error"),
    "asserts": ("assert False", "error"),
    "divides by zero": ("return 1 / 0", "error"),
    "recurses": ("return compute_score(data_source, solution_str, ground_truth)", "error"),
    "sys.exit(0)": ("import sys; sys.exit(0)", "error"),
    "sys.exit(3)": ("import sys; sys.exit(3)", "error"),
    "sys.exit(text)": ("import sys; sys.exit('no')", "error"),
    "sleeps": ("import time; time.sleep(1000)", "error"),
    "loops": ("\n    while True:\n        pass", "error"),
    "returns None": ("return None", "error"),
    "returns text": ("return '1'", "error"),
    "returns a list for the only turn": (f"return [{SCORE}]", "same"),
    "returns a list of another length": ("return [1.0] * 5000", "error"),
    "returns an empty list": ("return []", "error"),
    "returns a list with nan": ("return [float('nan')]", "error"),
    "returns a list with a list": ("return [[1.0]]", "error"),
    "returns a list of itself": ("d = []; d.append(d); return d", "error"),
    "returns nan": ("return float('nan')", "error"),
    "returns inf": ("return float('inf')", "error"),
    "returns complex": ("return 1j", "error"),
    "returns a huge integer": ("return 10**400", "error"),
    "returns a large float": ("return 1e308", "either"),
    "returns a function": ("return compute_score", "error"),
    "returns an empty mapping": ("return {}", "error"),
    "returns a mapping without score": ("return {'accuracy': 1.0}", "error"),
    "returns a mapping with a text": ("return {'score': 'x'}", "error"),
    "returns a mapping with nan": ("return {'score': float('nan')}", "error"),
    "returns names that are no texts": (f"return {{'score': {SCORE}, 5: 1.0, 'a': 2.0}}", "same or error"),
    "returns a metric that is nan": (f"return {{'score': {SCORE}, 'a': float('nan')}}", "same or error"),
    "returns a huge metric": (f"return {{'score': {SCORE}, 'a': 10**400}}", "same or error"),
    "returns a mapping of itself": (f"d = {{'score': {SCORE}}}; d['d'] = d; return d", "same or error"),
    "returns True": ("return True", "either"),
    "returns Decimal": (f"import decimal; return decimal.Decimal({SCORE})", "same or error"),
    "returns numpy": (f"import numpy; return numpy.float32({SCORE})", "same or error"),
    "returns an array": ("import numpy; return numpy.ones(2)", "error"),
    "returns a tensor": (f"import torch; return torch.tensor([{SCORE}])", "same or error"),
    "returns a coroutine": ("async def f(): return 1\n    return f()", "error"),
    "is a generator": ("yield 1", "error"),
    "leaves the directory": (f"import os; os.chdir('/'); return {SCORE}", "same"),
    "changes the seed": (f"import random; random.seed(0); return {SCORE}", "same"),
    "leaves a thread": (f"import threading, time; threading.Thread(target=time.sleep, args=(30,)).start(); return {SCORE}", "same"),
    "leaves a thread and raises": ("import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); raise ValueError('no')", "error"),
    "closes stdout": (f"import sys; sys.stdout.close(); return {SCORE}", "same or error"),
    "closes stdout and raises": ("import sys; sys.stdout.close(); raise ValueError('no')", "error"),
    "closes the descriptor of stdout": (f"import os; os.close(1); return {SCORE}", "same or error"),
    "replaces stderr": (f"import io, sys; sys.stderr = io.StringIO(); return {SCORE}", "same"),
    "replaces stderr and raises": ("import io, sys; sys.stderr = io.StringIO(); raise ValueError('no')", "error"),
    "takes stderr away and raises": ("import sys; sys.stdout = sys.stderr = None; raise ValueError('no')", "error"),
    "os._exit(0)": ("import os; os._exit(0)", "gone"),
    "os._exit(3)": ("import os; os._exit(3)", "gone"),
    "closes its streams and os._exit(0)": ("import os; os.close(1); os.close(2); os._exit(0)", "gone"),
}  # fmt: skip

# Eight calls that print, or the calls and libraries that a crash shows.
_LONG: dict[str, tuple[str, End, int]] = {
    "prints 5 MB": (f"print('x' * 5_000_000); return {SCORE}", "same", 8 * 5_000_001 + MOST_BYTES),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "gone", 30_000),
    "aborts": ("import os; os.abort()", "gone", 30_000),
}

_FILES: dict[str, tuple[str, End]] = {
    "is empty": ("", "error"),
    "is not Python": ("def (", "error"),
    "has a NUL": ("x = 1\0", "error"),
    "is bytes": ("\udcff\udcfe", "error"),
    "fails at import": ("1 / 0", "error"),
    "misses a module": ("import no_such_module_at_all", "error"),
    "leaves at import": ("import sys; sys.exit(0)", "error"),
    "never ends its import": ("while True: pass", "error"),
    "defines a number": ("compute_score = 5", "error"),
    "defines a class": ("class compute_score: pass", "error"),
    "takes no arguments": ("def compute_score(): return 1.0", "error"),
    "takes one argument": ("def compute_score(a): return 1.0", "error"),
    "takes others": ("def compute_score(a, b, c, d, e, f): return 1.0", "error"),
    "leaves a thread and fails at import": ("import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n1 / 0", "error"),
    "is gone at import": ("import os; os._exit(0)", "gone"),
    "takes all": (f"def compute_score(**k): solution_str = k['solution_str']; return {SCORE}", "same"),
    "imports more": ("import json, math\n" + REWARD, "same"),
}  # fmt: skip

_SETTINGS: dict[str, tuple[str, object, End]] = {
    "no file": ("reward.function", "gone.py:f", "error"),
    "no function": ("reward.function", "reward.py:gone", "error"),
    "a directory": ("reward.function", "model:f", "error"),
    "no Python file": ("reward.function", "problems.jsonl:f", "error"),
    "no name": ("reward.function", "reward.py:", "error"),
    "no colon": ("reward.function", "reward.py", "error"),
    "an unknown option": ("reward.options", {"scale": 2}, "error"),
    "an option given twice": ("reward.options", {"solution_str": "x"}, "error"),
    "auto without a source": ("reward.function", "auto", "error"),
    "gsm8k on sums": ("reward.function", "gsm8k", "either"),
    "reasoning_gym on sums": ("reward.function", "reasoning_gym", "error"),
}


def _written(name: str, text: str, end: End, most_bytes: int = MOST_BYTES) -> Case:
    change = replace_file("reward.py", text.encode(errors="surrogateescape"))
    return Case(f"reward {name}", change, end, most_bytes)


def _surviving(name: str, end: End = "either") -> Case:
    """A failing function where failures score 0."""
    body, _ = _BODIES[name]

    def change(place: Place) -> None:
        (place.directory / "reward.py").write_text(_HEAD + body)
        place.set("reward.on_error", "zero")
        place.set("reward.timeout_s", 0.2)

    return Case(f"reward {name}, on_error zero", change, end)


CASES = (
    *(_written(name, _HEAD + body, end) for name, (body, end) in _BODIES.items()),
    *(_written(name, _HEAD + body, end, most) for name, (body, end, most) in _LONG.items()),
    *(_written(name, text, end) for name, (text, end) in _FILES.items()),
    *(Case(f"reward: {name}", set_field(*to), end) for name, (*to, end) in _SETTINGS.items()),
    *map(_surviving, ("raises", "loops", "returns nan", "recurses", "raises what has no text")),
    _surviving("os._exit(0)", "gone"),
)
