"""A tool that runs programs: the model writes <python>print(6 * 7)</python>, and reads 42."""

from __future__ import annotations

from verl_hpc.config.environment import PROGRAM_S
from verl_hpc.environments.environment import Tool
from verl_hpc.rewards.sandbox.containment import MIB, Limits, Result
from verl_hpc.rewards.sandbox.sandbox import Containment, Sandbox


class Python(Tool):
    """Answers with the output of a program, run in the sandbox that docs/rewards.md describes.

    Args:
        begin, end, template: those of `Tool`.
        timeout_s: longest that a program may run; below rollout.environment.timeout_s.
        memory_mib: most memory of a program.
        longest: most characters of an observation; the middle of a longer one is left out.
        containment: auto, bubblewrap or limits.

    Raises:
        RewardError: no containment that is allowed works here.
    """

    def __init__(
        self,
        begin: str = "<python>",
        end: str = "</python>",
        template: str = "{result}",
        timeout_s: float = PROGRAM_S,
        memory_mib: int = 512,
        longest: int = 2000,
        containment: Containment = "auto",
    ) -> None:
        super().__init__(begin, end, template)
        self._longest = longest
        limits = Limits(timeout_s, timeout_s, memory_mib * MIB)
        self._sandbox = Sandbox(limits, containment, max_concurrent=1)

    def result(self, call: str) -> str:
        text = _told(self._sandbox.run(call)).strip("\n")
        if len(text) <= self._longest:
            return text
        half = self._longest // 2
        return f"{text[:half]} ... {text[len(text) - half :]}"


def _told(result: Result) -> str:
    """Return a program's output, and its error if it failed."""
    if result.ending != "exited":
        return f"{result.stdout}\nerror: {result.ending.replace('_', ' ')}: {result.message}"
    if result.status:
        last = result.stderr.rstrip().rpartition("\n")[2] or f"exit status {result.status}"
        return f"{result.stdout}\nerror: {last}"
    return result.stdout if result.stdout.strip("\n") else "(no output)"
