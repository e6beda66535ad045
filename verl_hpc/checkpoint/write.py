"""Write steps: every rank writes its own file, rank 0 the manifest, and a rename publishes the
step.

A thread writes from a copy in host memory while training continues. The thread never communicates:
ranks agree on its outcome at points where they meet anyway.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.ahead import write_ahead
from verl_hpc.checkpoint.host_copy import HostCopy
from verl_hpc.checkpoint.index import Index
from verl_hpc.checkpoint.manifest import Manifest, WrittenFile, write_manifest
from verl_hpc.checkpoint.step_files import (
    ID_BYTES,
    Component,
    StepContents,
    datasets,
    make_real,
    parts_of,
    write_small_files,
)
from verl_hpc.checkpoint.tensor_file import Stored, TensorFile, packed
from verl_hpc.errors import CheckpointError, VerlHpcError
from verl_hpc.runtime.control import Control

_ROOM = "Free space there, or set `directory` to a file system with room"
_ADVICE = {errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EFBIG: _ROOM}
_OTHER_ADVICE = "See that this directory can be written from every node"


def _in_background(work: Callable[[], None]) -> Future[float]:
    """Start work in a thread of its own; the result is its duration in seconds.

    The thread is a daemon: a failing process ends at once.
    """
    outcome: Future[float] = Future()

    def run() -> None:
        begin = time.monotonic()
        try:
            work()
        except BaseException as error:  # whoever asks for the result gets it
            outcome.set_exception(error)
        else:
            outcome.set_result(time.monotonic() - begin)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return outcome


@dataclass
class _Save:
    """A save under way, on one rank."""

    number: int
    final: Path
    id: str
    engines: Sequence[int]
    """Ranks that write their engine's responses generated ahead."""
    seconds: float = 0.0
    is_copied: threading.Event = field(default_factory=threading.Event)
    """Set when this rank's tensors are copied, and so may change."""
    files: dict[str, WrittenFile] = field(default_factory=dict)
    """Files written so far, on rank 0."""
    is_written: bool = False
    """Whether all ranks have written their files, so that only the manifest is missing."""

    @property
    def partial(self) -> Path:
        return self.final.parent / f".{self.final.name}.{self.id}.partial"


class StepWriter:
    """Writes the steps of a run, one at a time. All ranks call every method together.

    A step gets its name only when it is complete. If one rank cannot write, for instance on a full
    disk, the method called raises a CheckpointError on all ranks: earlier steps and `latest` are
    untouched, and the partial directory is deleted.

    Args:
        control: control plane of the ranks that write.
        root: directory of the run's steps.
        background: write from a copy in host memory, after `begin`.
        check_owner: called on rank 0 before a step gets its name; raises a VerlHpcError if another
            process has taken over the directory.
        published: called on rank 0 with a step's number once it has its name.
        finished: newest existing step.
    """

    def __init__(
        self,
        control: Control,
        root: Path,
        background: bool,
        check_owner: Callable[[], None] = lambda: None,
        published: Callable[[int], None] = lambda _: None,
        finished: int = 0,
    ) -> None:
        self._control, self._root, self._background = control, root, background
        self._check_owner, self._published, self._finished = check_owner, published, finished
        self._stored: list[Stored] = []
        self._file, self._index = TensorFile(()), Index({}, ())
        self._copy: HostCopy | None = None
        self._now: _Save | None = None
        self._work: Future[float] = Future()
        self.seconds = 0.0
        """Duration of the newest finished save, as a run without other work would wait for it."""

    @property
    def newest(self) -> int:
        """Newest step that is written or under way."""
        return self._now.number if self._now is not None else self._finished

    @property
    def copy_bytes(self) -> int:
        """Host memory of the copy, in bytes."""
        return self._copy.num_bytes if self._copy is not None else 0

    def begin(
        self,
        number: int,
        components: Sequence[Component],
        contents: StepContents,
        stays: bool = False,
    ) -> Path:
        """Start saving a step, after finishing the previous save; return the step's final
        directory.

        Args:
            number: number of the step.
            components: tensors, and the regions that this rank writes.
            contents: everything else in the step.
            stays: the tensors do not change until `let_change`, so they can also be copied in the
                background.
        """
        self.finish()
        begin = time.monotonic()
        save = self._lay_out(number, components, contents)
        tensors = parts_of(save.id, components, contents)
        if self._background and not stays:
            self._take(save, tensors)
        save.seconds = time.monotonic() - begin
        self._now = save
        self._work = _in_background(lambda: self._write(save, tensors, contents))
        if not self._background:
            self.finish()
        return save.final

    def let_change(self) -> None:
        """Wait until this rank's tensors are copied, and so may change; ranks do not wait for each
        other."""
        if self._now is not None:
            self._now.is_copied.wait()

    def look(self) -> None:
        """Advance the save under way if all ranks have written their parts, without waiting for the
        disk."""
        if self._now is not None and all(self._control.allgather(self._work.done())):
            self._advance(self._now)

    def finish(self) -> None:
        """Wait for the save under way, if there is one."""
        while self._now is not None:
            self._advance(self._now)

    def _lay_out(
        self, number: int, components: Sequence[Component], contents: StepContents
    ) -> _Save:
        """Agree on a save's id and files; if any rank's regions changed, rank 0 builds a new
        index."""
        stored, entries = datasets(components, contents)
        changed = stored != self._stored
        if changed:
            self._stored, self._file, self._copy = stored, TensorFile(stored), None
        mine = secrets.token_hex(ID_BYTES // 2), changed, bool(contents.ahead)
        ranks = self._control.allgather(mine)
        if any(changed for _, changed, _ in ranks):
            gathered = self._control.gather(entries)
            specs = {f"{c.name}/{n}": s for c in components for n, s in c.shard_map.tensors.items()}
            self._index = Index(specs, gathered)
        engines = [rank for rank, (_, _, is_ahead) in enumerate(ranks) if is_ahead]
        return _Save(number, self._root / schema.step_name(number), ranks[0][0], engines)

    def _take(self, save: _Save, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the tensors to host memory; they may change afterwards."""
        originals = list(tensors)
        if self._copy is None:
            self._copy = HostCopy(self._stored, any(tensor.is_cuda for tensor in originals))
        self._copy.take(originals)
        save.is_copied.set()

    def _write(self, save: _Save, tensors: Iterable[torch.Tensor], contents: StepContents) -> None:
        try:
            if self._background and not save.is_copied.is_set():
                self._take(save, tensors)
            save.partial.mkdir(parents=True, exist_ok=True)
            copy = self._copy
            parts = copy.parts() if copy is not None else packed(self._stored, tensors)
            self._file.write(save.partial / schema.rank_file(self._control.rank), parts)
        finally:
            save.is_copied.set()
        if contents.ahead:
            path = save.partial / schema.ahead_file(self._control.rank)
            write_ahead(path, save.id, contents.ahead)
        if self._control.rank == 0:
            save.files = write_small_files(save.partial, contents, self._index.content)

    def _advance(self, save: _Save) -> None:
        """Wait for the current phase on all ranks, and start the next: write files, then
        publish."""
        try:
            self._control.together(lambda: self._wait(save))
        except VerlHpcError:
            self._now = None
            if self._control.rank == 0:
                shutil.rmtree(save.partial, ignore_errors=True)
            raise
        save.seconds += self._work.result()
        if save.is_written:
            self._now, self._finished, self.seconds = None, save.number, save.seconds
        else:
            save.is_written = True
            leads = self._control.rank == 0
            self._work = _in_background(lambda: self._publish(save) if leads else None)

    def _wait(self, save: _Save) -> None:
        try:
            self._work.result()
        except OSError as error:
            reason = error.strerror or str(error)
            raise CheckpointError(
                f"could not write {save.final.name} to {self._root} (rank {self._control.rank}: "
                f"{reason}); earlier steps are intact. "
                f"{_ADVICE.get(error.errno or 0, _OTHER_ADVICE)}, and resume"
            ) from error

    def _publish(self, save: _Save) -> None:
        num_ranks = self._control.size
        of_ranks = map(schema.rank_file, range(num_ranks))
        for name in (*of_ranks, *map(schema.ahead_file, save.engines)):
            size = (save.partial / name).stat().st_size
            save.files[name] = WrittenFile(bytes=size)
        manifest = Manifest(
            step=save.number,
            time=time.time(),
            num_ranks=num_ranks,
            save_id=save.id,
            files=dict(sorted(save.files.items())),
        )
        write_manifest(save.partial, manifest)
        self._check_owner()
        make_real(save.partial, save.final)
        self._published(save.number)


def save_step(
    control: Control,
    root: Path,
    step: int,
    components: Sequence[Component],
    contents: StepContents,
    check_owner: Callable[[], None] = lambda: None,
) -> Path:
    """Write one step synchronously; see `StepWriter`."""
    return StepWriter(control, root, False, check_owner).begin(step, components, contents)
