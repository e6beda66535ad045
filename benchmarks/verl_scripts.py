"""How many of verl's own scripts run here as they are, and why do the others not? Starts nothing.

A model counts by its name (verl_hpc/migration/rows/models.toml), because nothing is downloaded.

git clone https://github.com/verl-project/verl && git -C verl checkout 1dda039b9c
python -m benchmarks.verl_scripts verl/examples
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

from verl_hpc.errors import ConfigError
from verl_hpc.migration.script import words_of
from verl_hpc.migration.translate import migrate

_STARTS = re.compile(r"-m\s+verl\.trainer\.main_ppo(?![\w.])")
REFUSED = "keys are refused by name"
_OTC = "actor_rollout_ref.actor.megatron.override_transformer_config"
FIRST = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.rollout.expert_parallel_size",
    f"{_OTC}.moe_aux_loss_coeff",
    "distillation.teacher_models",
)
"""Keys by which a script is counted; of several the first counts."""
_HOME = {"HOME": "/home/me"}
"""All that scripts find in the environment."""
_ASKED = re.compile(r"\$(\w+) is not set|: (\w+): ")
_VALUES = {"INFER_BACKEND": "vllm"}
"""Values of variables that are no path."""


def given_all(script: Path) -> tuple[list[str], list[str]]:
    """The words of a script that is given each variable that it asks for, and these variables.

    Raises:
        ConfigError: it asks for something else.
    """
    given: dict[str, str] = {}
    while True:
        try:
            return list(words_of(script, _HOME | given)), list(given)
        except ConfigError as error:
            asked = _ASKED.search(str(error).removeprefix(str(script)))
            name = (asked[1] or asked[2]) if asked else None
            if name is None or name in given:
                raise
            given[name] = _VALUES.get(name, f"/given/{name}")


def outcome(script: Path) -> tuple[str, list[str]]:
    """What becomes of a script, and why it is no run."""
    try:
        words, asked = given_all(script)
    except ConfigError as error:
        return "asks for what is not in the script", [str(error).removeprefix(f"{script}: ")]
    if asked:
        what, reasons = of_words(words, script)
        return f"asks for a variable, and with it: {what}", [*asked, *reasons]
    return of_words(words, script)


def of_words(words: list[str], script: Path) -> tuple[str, list[str]]:
    """What becomes of verl's words, and why they are no run."""
    try:
        found = migrate(words, script.parent)
        if found.refused:
            return REFUSED, [str(one) for one in found.refused]
        found.config()
    except ConfigError as error:
        return "a word or a setting is an error", [str(error)]
    return "a run", []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--why", action="store_true", help="each script's reasons as well")
    arguments = parser.parse_args()
    counts, blamed = Counter[str](), Counter[str]()
    for script in sorted(arguments.folder.rglob("*.sh")):
        if not _STARTS.search(script.read_text(encoding="utf-8")):
            continue
        what, reasons = outcome(script)
        counts[what] += 1
        if what == REFUSED:
            keys = dict.fromkeys(reason.partition(": ")[0] for reason in reasons)
            blamed[next((name for name in FIRST if name in keys), "other keys alone")] += 1
        if arguments.why:
            print(f"{script}: {what}", *reasons, sep="\n  ")
    print("| of verl's scripts | number |\n|---|---|")
    for what, number in counts.most_common():
        print(f"| {what} | {number} |")
    print("\n| refused, by the first of these keys | number |\n|---|---|")
    for key, number in blamed.most_common():
        print(f"| {key} | {number} |")


if __name__ == "__main__":
    main()
