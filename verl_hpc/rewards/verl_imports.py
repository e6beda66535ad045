"""Functions of verl's rewards, which serve imports of verl in users' files if it is not installed.

Names, arguments and results of the functions are those of `verl.utils.reward_score` (0.9); answers
are equal if `gsm8k` and `math` find them equal.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from verl_hpc.errors import RewardError, VerlHpcError
from verl_hpc.rewards.built_in import function_for, score_by_data_source
from verl_hpc.rewards.functions import gsm8k
from verl_hpc.rewards.functions import math as math_reward

PACKAGE = "verl.utils.reward_score"
_GSM8K = {"strict": re.compile(r"#### (-?[0-9.,]+)"), "flexible": re.compile(r"-?[0-9.,]+")}
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_SANDBOX = ("sandbox_fusion_url", "concurrent_semaphore", "memory_limit_mb")
"""Settings of verl's sandbox; other further arguments are not read, as in verl."""


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Score a response like `reward.function: auto`.

    Raises:
        NotImplementedError: no function is known for `data_source`.
        RewardError: settings of verl's sandbox are given, or the row cannot be scored.
    """
    for name in _SANDBOX:
        if (value := settings.get(name)) is not None:
            raise RewardError(
                f"default_compute_score: {name} = {value!r:.100}; expected None: programs run in "
                "the sandbox of reward.function code"
            )
    try:
        function_for(data_source)
    except RewardError as error:
        raise NotImplementedError(str(error)) from None
    return score_by_data_source(data_source, solution_str, ground_truth, extra_info)


def gsm8k_answer(solution_str: str, method: str = "strict") -> str | None:
    """Return the number that a response ends with, as text without commas."""
    texts = (text.replace(",", "").rstrip(".") for text in _GSM8K[method].findall(solution_str))
    numbers = [text for text in texts if text.strip("-.")]
    return numbers[-1] if numbers else None


def math_scores(
    data_sources: Sequence[str],  # noqa: ARG001
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Any],  # noqa: ARG001
) -> list[float]:
    """Return the score of `reward.function: math` of each response."""
    return [
        math_reward.compute_score(s, t) for s, t in zip(solution_strs, ground_truths, strict=True)
    ]


def math_verify_score(model_output: str, ground_truth: Any) -> float:
    """Score a response like `reward.function: math`."""
    return math_reward.compute_score(model_output, ground_truth)


def dapo_score(
    solution_str: str, ground_truth: Any, strict_box_verify: bool = False
) -> dict[str, Any]:
    r"""Return 1 or -1 as `score`, whether the answer is right as `acc`, and its text as `pred`.

    Args:
        strict_box_verify: only a \boxed{} counts, not 'Answer: ...'.
    """
    stated = [] if strict_box_verify else [*_ANSWER.finditer(solution_str)]
    answer = stated[-1][0] if stated else last_box(solution_str) or ""
    right = math_reward.compute_score(answer, ground_truth) == 1.0
    pred = stated[-1][1] if stated else unboxed(answer) if answer else "[INVALID]"
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": pred}


def math_equal(str1: str | None, str2: str | None, verbose: bool = False) -> bool:
    """Whether two answers are mathematically equal, or both None."""
    del verbose
    if str1 is None or str2 is None:
        return str1 is str2
    if str1.strip() == str2.strip():
        return True
    both = str1.strip() and str2.strip()
    return bool(both) and math_reward.compute_score(f"\\boxed{{{_bare(str1)}}}", _bare(str2)) == 1.0


def _bare(answer: str) -> str:
    return answer.strip().strip("$")


def last_box(string: str) -> str | None:
    r"""Return the last \boxed{...} or \fbox{...} with its braces, or \boxed with the text after
    it."""
    boxes = [*_BOX.finditer(string)]
    if not boxes:
        return None
    start, end = boxes[-1].span()
    if string[end : end + 1] != "{":
        return string[start:].split("$")[0]
    depth = 0
    for place in range(end, len(string)):
        depth += {"{": 1, "}": -1}.get(string[place], 0)
        if depth == 0:
            return string[start : place + 1]
    return None


def unboxed(s: str) -> str:
    r"""Return what a text that begins with \boxed holds."""
    begin = _BOX.match(s)
    if begin is None:
        raise ValueError(f"remove_boxed: {s!r:.100} does not begin with \\boxed")
    held = s[begin.end() :]
    return held[1:-1] if held.startswith("{") and held.endswith("}") else held


_MATH: Mapping[str, Callable[..., Any]] = {
    "compute_score": math_reward.compute_score,
    "is_equiv": math_equal,
    "last_boxed_only_string": last_box,
    "remove_boxed": unboxed,
}
MODULES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    PACKAGE: {
        "default_compute_score": default_compute_score,
        "_default_compute_score": default_compute_score,
    },
    f"{PACKAGE}.gsm8k": {"compute_score": gsm8k.compute_score, "extract_solution": gsm8k_answer},
    f"{PACKAGE}.math": _MATH,
    f"{PACKAGE}.math_reward": _MATH,
    f"{PACKAGE}.math_batch": {"compute_score_batched": math_scores},
    f"{PACKAGE}.math_dapo": {
        "compute_score": dapo_score,
        "last_boxed_only_string": last_box,
        "remove_boxed": unboxed,
    },
    f"{PACKAGE}.math_verify": {"compute_score": math_verify_score},
}
"""Provided functions, by module and name of verl."""


_ROOT = "verl"
_PARENTS = (_ROOT, "verl.utils")
_SAYS_MISSING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def answer_imports(path: Path, setting: str, error: type[VerlHpcError] = RewardError) -> None:
    """Check a file before it is imported, and provide what it imports of verl.

    Imports inside functions count as well. Those that the file can do without, and those for
    type checkers, may fail.

    Args:
        path: the file.
        setting: the setting that names it, for messages.
        error: type of error to raise.

    Raises:
        RewardError: or `error`: it imports parts of verl that are not provided.
    """
    imported = _imports(path)
    if not imported.imports or _is_installed():
        return
    for line, module, name in imported.needed:
        if not _there_is(module, name):
            what = f"{module}.{name}" if name else module
            raise error(
                f"{setting}: {path}, line {line} imports {what}, and verl is not installed; "
                f"verl_hpc has in its place {', '.join(_told())}. Copy what else is needed into "
                "the file, or install verl"
            )
    _provide()


class _Imports(ast.NodeVisitor):
    """Collects imports of verl: line, module, and the name imported from it."""

    def __init__(self) -> None:
        self.imports: list[tuple[int, str, str | None]] = []
        self.needed: list[tuple[int, str, str | None]] = []
        self._is_needed = True

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note(node.lineno, alias.name, None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names if node.module and not node.level else ():
            self._note(node.lineno, node.module or "", alias.name)

    def visit_Try(self, node: ast.Try) -> None:
        self._visit(node.body, any(map(_says_missing, node.handlers)))
        self._visit([*node.handlers, *node.orelse, *node.finalbody])

    def visit_If(self, node: ast.If) -> None:
        self._visit(node.body, "TYPE_CHECKING" in ast.dump(node.test))
        self._visit(node.orelse)

    def _note(self, line: int, module: str, name: str | None) -> None:
        if module.split(".")[0] == _ROOT:
            self.imports.append((line, module, name))
            self.needed += self.imports[-1:] if self._is_needed else []

    def _visit(self, nodes: Sequence[ast.AST], may_fail: bool = False) -> None:
        before = self._is_needed
        self._is_needed = before and not may_fail
        for node in nodes:
            self.visit(node)
        self._is_needed = before


def _imports(path: Path) -> _Imports:
    visitor = _Imports()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):
        # The import, which comes next, fails as well, and says it better.
        return visitor
    visitor.visit(tree)
    return visitor


def _says_missing(handler: ast.ExceptHandler) -> bool:
    """Whether a failed import is handled here."""
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id in _SAYS_MISSING for n in ast.walk(handler.type))


def _is_installed() -> bool:
    """Whether verl is installed; a mere directory of that name, such as one for data, does not
    count."""
    spec = PathFinder.find_spec(_ROOT)
    return spec is not None and spec.origin is not None


def _there_is(module: str, name: str | None) -> bool:
    if f"{module}.{name}" in MODULES:
        return True
    return module in MODULES and (name in (None, "*") or name in MODULES[module])


def _told() -> Iterator[str]:
    for module, functions in MODULES.items():
        short = module.removeprefix(f"{PACKAGE}.")
        yield f"{short} ({', '.join(name for name in functions if name[0] != '_')})"


def _provide() -> None:
    for name in (*_PARENTS, *MODULES):
        if name in sys.modules:
            continue
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(MODULES.get(name, {}))
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
