"""Load functions from files of the user."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from verl_hpc.errors import RewardError, VerlHpcError
from verl_hpc.rewards.guard import describe, guarded
from verl_hpc.rewards.verl_imports import answer_imports
from verl_hpc.runtime.limit import TimeLimitExceeded

T = TypeVar("T")


def load_function(
    reference: str,
    timeout_s: float = math.inf,
    setting: str = "reward.function",
    error: type[VerlHpcError] = RewardError,
) -> Callable[..., Any]:
    """Import `path/to/file.py:function`.

    Args:
        reference: file and function.
        timeout_s: longest that the import may take.
        setting: the setting that gives the reference, for messages.
        error: type of error to raise.

    Raises:
        RewardError: or `error`: no such file or function, a file that raises on import or imports
            unknown parts of verl, or a name that is not callable.
    """
    file, _, name = reference.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise error(f"{setting} = {reference}: no file {path}; give path/to/file.py:function")
    module = _import(path.resolve(), timeout_s, setting, error)
    with loading(f"{setting} = {reference}: its {name!r} cannot be read", timeout_s, error):
        function = getattr(module, name, None)
    if function is None:
        names = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise error(
            f"{setting} = {reference}: {path} defines no {name!r}; "
            f"it defines {', '.join(names) or 'no function'}"
        )
    if not callable(function):
        raise error(f"{setting} = {reference}: {name} is {type(function).__name__}, not a function")
    return function


def load_class(
    reference: str, base: type[T], timeout_s: float, setting: str, error: type[VerlHpcError]
) -> type[T]:
    """Import `path/to/file.py:Class`, a subclass of `base`; takes the arguments of `load_function`.

    Raises:
        error: for the reasons of `load_function`, or the name is no such class.
    """
    loaded = load_function(reference, timeout_s, setting, error)
    if isinstance(loaded, type) and issubclass(loaded, base):
        return loaded
    kind = f"{base.__module__}.{base.__name__}"
    raise error(f"{setting} = {reference}: expected a class, a kind of {kind}")


def _import(path: Path, timeout_s: float, setting: str, error: type[VerlHpcError]) -> ModuleType:
    """Import a file under a unique name, once per process."""
    name = f"verl_hpc_reward_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise error(f"{setting}: {path} is not a Python file; its name ends with .py")
    answer_imports(path, setting, error)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by name.
    sys.modules[name] = module
    try:
        with loading(f"{path} cannot be imported", timeout_s, error):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def loading(
    failure: str, timeout_s: float, error: type[VerlHpcError] = RewardError
) -> Iterator[None]:
    """Run code of the user before there is anything to score.

    Args:
        failure: beginning of the message if the code fails.
        timeout_s: longest that it may take.
        error: type of error to raise.

    Raises:
        RewardError: or `error`: the code raises, exits, or takes longer.
    """
    try:
        with guarded(timeout_s):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as found:
        late = f"it takes longer than import_timeout_s = {timeout_s:g}"
        why = late if isinstance(found, TimeLimitExceeded) else describe(found)
        raise error(f"{failure}: {why}") from found
