"""The leader's folders that processes on its VMs may write checkpoints to and read them from; those and nothing else.

Every operation has a thread of its own: a disk that is slow, or stands still, holds up nobody but who waits for it.
"""

from __future__ import annotations

import errno
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scavenger.train.checkpoints import remote_folder as f
from scavenger.train.checkpoints.files import LocalFiles
from scavenger.train.checkpoints.format import DamagedError, Readable

__all__ = ["FileServer"]

_OPERATIONS_MAX = 32
"""Of a VM, at a time: a checkpoint is one of each aggregator."""
_ANSWER_BYTES_MAX = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_CLOSE_S = 5.0
"""How long operations that are broken off may take to leave nothing behind."""


class _BrokenOffError(Exception):
    """Whoever asked has gone, or counts as lost."""


@dataclass(slots=True)
class _Operation:
    asked: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None


class FileServer:
    """Serves operations, each known by the VM's intent and a number. No method but `close` waits.

    Args:
        answer: Called with intent, number and answer, by the operations' threads.
        is_allowed: Whether an intent's VM runs a process of this number that may have files, see `AgentServer.launch`.
    """

    def __init__(
        self, answer: Callable[[str, int, bytes], None], is_allowed: Callable[[str, int], bool]
    ) -> None:
        self._answer, self._is_allowed = answer, is_allowed
        self._roots: frozenset[str] = frozenset()
        self._operations: dict[tuple[str, int], _Operation] = {}

    def share(self, root: str) -> None:
        """Let VMs have a folder, by exactly this absolute path."""
        self._roots |= {root}

    def ask(self, intent: str, number: int, question: bytes) -> None:
        """A question, or a part of one, of an operation that is under way or begins with it."""
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
        # whoever asks ahead of the answers by more than it may is no client of ours
        waiting = operation.asked.qsize()
        if waiting <= f.AHEAD:
            operation.asked.put(question)
        elif waiting == f.AHEAD + 1:
            operation.asked.put(None)

    def end(self, intent: str, number: int) -> None:
        """An operation is over: broken off, if it was under way."""
        operation = self._operations.pop((intent, number), None)
        if operation is not None:
            operation.asked.put(None)

    def lose(self, intent: str) -> None:
        """A VM is gone, or counts as lost: what it was writing is not written."""
        for key in [key for key in self._operations if key[0] == intent]:
            self.end(*key)

    def close(self) -> None:
        """Break everything off, and wait until nothing half-written is left. Idempotent."""
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
        except Exception as error:  # noqa: BLE001 - whoever waits must be answered
            self._answer(*key, _failure(error))

    def _serve(
        self, intent: str, receive: Callable[[], f.Question], send: Callable[[f.Answer], None]
    ) -> None:
        """One operation.

        Raises:
            OSError, DamagedError: As `LocalFiles`.
            ValueError, MessageError: At a question that is none, or does not belong there.
            _BrokenOffError: If it was.
        """
        first = receive()
        if isinstance(first, f.Data | f.Done | f.More):
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
            case f.Remove():
                files.remove(_name(first.folder), _name(first.first))
                send(f.Ok())
            case f.Verify():
                files.verify(_name(first.folder), _name(first.name), size=first.size, sha256=first.sha256)
                send(f.Ok())
            case f.Write():
                folder, name = _name(first.folder), _name(first.name)
                files.write(folder, name, _chunks(receive, send))
                send(f.Ok())
            case f.Read():
                with files.reading(_name(first.folder), _name(first.name)) as (file, size):
                    send(f.Opened(size))
                    _send_file(file, receive, send)


def _chunks(receive: Callable[[], f.Question], send: Callable[[f.Answer], None]) -> Iterator[memoryview]:
    """What is to be written, up to its end; each part is answered when the next is asked for: it is written then."""
    while True:
        send(f.Ok())
        match receive():
            case f.Data(data=data):
                yield memoryview(data)
            case f.Done():
                return
            case _:
                raise ValueError("a file does not go on like that")


def _send_file(file: Readable, receive: Callable[[], f.Question], send: Callable[[f.Answer], None]) -> None:
    """A file, part by part, until nobody asks any more."""
    buffer = bytearray(f.CHUNK_BYTES)
    while True:
        if not isinstance(receive(), f.More):
            raise ValueError("a file is not read like that")
        count = file.readinto(buffer) or 0
        send(f.Data(bytes(memoryview(buffer)[:count])))


def _name(name: str) -> str:
    """A name of a folder or file that leads nowhere else.

    Raises:
        PermissionError: If it might.
    """
    if not _NAME.fullmatch(name):
        raise PermissionError(errno.EACCES, f"{name!r} is no name of a checkpoint's")
    return name


def _failure(error: Exception) -> bytes:
    code = error.errno or 0 if isinstance(error, OSError) else 0
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f.answers.encode(
        f.Failed(code, text[:500] or type(error).__name__, isinstance(error, DamagedError))
    )
