"""Server through which processes on VMs read and write checkpoints in shared folders of the leader, and only there.

Every operation has its own thread, so a slow or hanging disk delays only the process that waits for it. What VMs write
leaves a part of the disk free, and is a limited number of files, whatever they ask for.
"""

from __future__ import annotations

import errno
import os
import queue
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scavenger.train.checkpoints import remote_folder as f
from scavenger.train.checkpoints.files import LocalFiles
from scavenger.train.checkpoints.format import DamagedError, Readable

_OPERATIONS_MAX = 32
"""Largest number of concurrent operations of a VM; a checkpoint needs one per aggregator."""
_ANSWER_BYTES_MAX = 1 << 20
_FREE_BYTES, _FREE_SHARE = 1 << 30, 0.05
"""Space that VMs leave on the disk: so many bytes, or this share of a small disk."""
_ENTRIES_MAX = 10_000
"""Largest number of folders in a shared folder, and of files in each: far more than checkpoints have."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_CLOSE_S = 5.0
"""How long cancelled operations may take to clean up."""


class _BrokenOffError(Exception):
    """The process that asked has gone, or counts as lost."""


@dataclass(slots=True)
class _Operation:
    asked: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None


class FileServer:
    """Serves operations, each identified by the VM's intent and a number. No method but `close` waits.

    Args:
        answer: Called with intent, number and answer, by the operations' threads.
        is_allowed: Returns whether a process, given by intent and launch number, may use files.
        usage: Returns the total, used and free bytes of the disk that a folder is on.
        entries_max: Largest number of folders in a shared folder, and of files in each.
    """

    def __init__(
        self,
        answer: Callable[[str, int, bytes], None],
        is_allowed: Callable[[str, int], bool],
        *,
        usage: Callable[[str], tuple[int, int, int]] = shutil.disk_usage,
        entries_max: int = _ENTRIES_MAX,
    ) -> None:
        self._answer, self._is_allowed = answer, is_allowed
        self._usage, self._entries_max = usage, entries_max
        self._roots: frozenset[str] = frozenset()
        self._operations: dict[tuple[str, int], _Operation] = {}

    def share(self, root: str) -> None:
        """Share a folder with VMs, under exactly this absolute path."""
        self._roots |= {root}

    def ask(self, intent: str, number: int, question: bytes) -> None:
        """Handle a request, which belongs to a running operation or begins a new one."""
        key = (intent, number)
        operation = self._operations.get(key)
        if operation is None:
            if sum(name == intent for name, _ in self._operations) >= _OPERATIONS_MAX:
                self._answer(intent, number, _failure(OSError(errno.EBUSY, "too many at a time")))
                return
            operation = self._operations[key] = _Operation()
            operation.thread = threading.Thread(
                target=self._run, args=(key, operation), name="scavenger-files", daemon=True
            )
            operation.thread.start()
        # a client with more unanswered requests than allowed breaks the protocol
        waiting = operation.asked.qsize()
        if waiting <= f.AHEAD:
            operation.asked.put(question)
        elif waiting == f.AHEAD + 1:
            operation.asked.put(None)

    def end(self, intent: str, number: int) -> None:
        """End an operation; it is cancelled if it is still running."""
        operation = self._operations.pop((intent, number), None)
        if operation is not None:
            operation.asked.put(None)

    def lose(self, intent: str) -> None:
        """Cancel all operations of a VM that is gone or counts as lost."""
        for key in [key for key in self._operations if key[0] == intent]:
            self.end(*key)

    def close(self) -> None:
        """Cancel all operations, and wait until incomplete files are removed. Idempotent."""
        threads = [operation.thread for operation in self._operations.values()]
        for key in list(self._operations):
            self.end(*key)
        for thread in threads:
            if thread is not None:
                thread.join(_CLOSE_S)

    # ---- an operation, in its thread -----------------------------------------------------------------------

    def _run(self, key: tuple[str, int], operation: _Operation) -> None:
        def send(answer: f.Answer) -> None:
            self._answer(*key, f.answers.encode(answer))

        def receive() -> f.Question:
            question = operation.asked.get()
            if question is None:
                raise _BrokenOffError
            return f.questions.decode(question)

        try:
            self._serve(key[0], receive, send)
        except _BrokenOffError:
            return
        except Exception as error:  # noqa: BLE001 - the waiting process must get an answer
            self._answer(*key, _failure(error))

    def _serve(
        self, intent: str, receive: Callable[[], f.Question], send: Callable[[f.Answer], None]
    ) -> None:
        """Run one operation.

        Raises:
            OSError, DamagedError: As `LocalFiles`.
            ValueError, MessageError: If a request is invalid or unexpected.
            _BrokenOffError: If the operation was cancelled.
        """
        first = receive()
        if isinstance(first, f.Data | f.EndOfData | f.More):
            raise OSError(errno.ECONNABORTED, "the leader has broken this off")
        if not self._is_allowed(intent, first.launch):
            raise PermissionError(errno.EACCES, "the leader counts this process as lost")
        if first.root not in self._roots:
            raise PermissionError(errno.EACCES, "the leader does not share this folder")
        files = LocalFiles(first.root)
        match first:
            case f.Folders():
                names = tuple(name for name in files.folders() if _NAME.fullmatch(name))
                if sum(map(len, names)) + 8 * len(names) > _ANSWER_BYTES_MAX:
                    raise OSError(errno.EFBIG, "there is too much in it")
                send(f.Names(names))
            case f.RemoveFile():
                files.remove(_name(first.folder), _name(first.first))
                send(f.Ok())
            case f.Verify():
                files.verify(_name(first.folder), _name(first.name), size=first.size, sha256=first.sha256)
                send(f.Ok())
            case f.WriteFile():
                folder, name = _name(first.folder), _name(first.name)
                self._check_entries(files.root, folder)
                files.write(folder, name, self._with_room(files.root, _chunks(receive, send)))
                send(f.Ok())
            case f.Read():
                with files.reading(_name(first.folder), _name(first.name), first.begin) as (file, size):
                    send(f.Opened(size))
                    _send_file(file, receive, send)

    def _check_entries(self, root: str, folder: str) -> None:
        """Check that one more file may be written.

        Raises:
            OSError: If there are too many already.
        """
        path = os.path.join(root, folder)
        full = root if not os.path.isdir(path) else path
        if os.path.isdir(full) and len(os.listdir(full)) >= self._entries_max:
            raise OSError(errno.EDQUOT, "there are too many files in the leader's folder")

    def _with_room(self, root: str, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        """Yield the chunks as long as the disk has room for them.

        Raises:
            OSError: If a chunk does not leave enough of the disk free.
        """
        for chunk in chunks:
            total, _, free = self._usage(root)
            if free - len(chunk) < min(_FREE_BYTES, _FREE_SHARE * total):
                raise OSError(errno.ENOSPC, "the leader's disk is nearly full")
            yield chunk


def _chunks(receive: Callable[[], f.Question], send: Callable[[f.Answer], None]) -> Iterator[memoryview]:
    """Yield the chunks to write until the end; each chunk is acknowledged once it has been written."""
    while True:
        send(f.Ok())
        match receive():
            case f.Data(data=data):
                yield memoryview(data)
            case f.EndOfData():
                return
            case _:
                raise ValueError("unexpected message while a file is written")


def _send_file(file: Readable, receive: Callable[[], f.Question], send: Callable[[f.Answer], None]) -> None:
    """Send a file, chunk by chunk, as long as chunks are requested."""
    buffer = bytearray(f.CHUNK_BYTES)
    while True:
        if not isinstance(receive(), f.More):
            raise ValueError("unexpected message while a file is read")
        count = file.readinto(buffer) or 0
        send(f.Data(bytes(memoryview(buffer)[:count])))


def _name(name: str) -> str:
    """Check that a name of a folder or file cannot lead outside the shared folder.

    Raises:
        PermissionError: If it could.
    """
    if not _NAME.fullmatch(name):
        raise PermissionError(errno.EACCES, f"{name!r} is no name of a checkpoint's")
    return name


def _failure(error: Exception) -> bytes:
    code = error.errno or 0 if isinstance(error, OSError) else 0
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f.answers.encode(
        f.OperationFailed(code, text[:500] or type(error).__name__, isinstance(error, DamagedError))
    )
