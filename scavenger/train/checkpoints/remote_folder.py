"""Checkpoints in a folder of the leader's, as a process on a VM reaches it: by its agent, whose operation leads there.

One connection to the agent's Unix socket is one operation. What is asked for on it is answered in order, one answer
for each question; a few may be unanswered at a time, and that bounds what is on its connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from scavenger.errors import ConfigurationError, MessageError
from scavenger.train.checkpoints.format import DamagedError, Readable
from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages.values import Tagged

__all__ = [
    "AHEAD",
    "CHUNK_BYTES",
    "FRAME_BYTES_MAX",
    "HEAD",
    "SCHEME",
    "VARIABLE",
    "Answer",
    "Data",
    "Done",
    "Failed",
    "Folders",
    "LeaderFiles",
    "More",
    "Names",
    "Ok",
    "Opened",
    "Question",
    "Read",
    "Remove",
    "Verify",
    "Write",
    "short_socket_path",
]

SCHEME = "leader://"
VARIABLE = "SCAVENGER_LEADER_FILES"
"""`NUMBER@PATH`: the number by which the leader knows the process, and its agent's socket."""
CHUNK_BYTES = 256 << 10
AHEAD = 8
"""Questions of a VM that wait for an answer: two MiB, which leave a link of 10 Mbit/s within the two seconds that a
renewal of the VM's time limit, which comes behind them, may take."""
FRAME_BYTES_MAX = CHUNK_BYTES + 4096
HEAD = struct.Struct("<I")
"""Before each message on a Unix socket: its length."""

_Name = Annotated[str, msgspec.Meta(max_length=128)]
_Root = Annotated[str, msgspec.Meta(max_length=2048)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


# ---- what begins an operation: in the folder `root`, by the process of the number `launch` -----------------


class Folders(Tagged, frozen=True):
    """`Files.folders`: answered by `Names`."""

    launch: _Count
    root: _Root


class Remove(Tagged, frozen=True):
    """`Files.remove`: answered by `Ok`."""

    launch: _Count
    root: _Root
    folder: _Name
    first: _Name


class Verify(Tagged, frozen=True):
    """`Files.verify`: answered by `Ok`."""

    launch: _Count
    root: _Root
    folder: _Name
    name: _Name
    size: _Count
    sha256: _Name


class Write(Tagged, frozen=True):
    """`Files.write`: then any number of `Data`, each answered when it is written, and `Done`."""

    launch: _Count
    root: _Root
    folder: _Name
    name: _Name


class Read(Tagged, frozen=True):
    """`Files.reading`: answered by `Opened`; then any number of `More`."""

    launch: _Count
    root: _Root
    folder: _Name
    name: _Name


# ---- what goes on ------------------------------------------------------------------------------------------


class Data(Tagged, frozen=True):
    """A part of a file, of at most `CHUNK_BYTES`; none behind its end."""

    data: bytes


class Done(Tagged, frozen=True):
    """The file is whole: answered when it outlasts a loss of power."""


class More(Tagged, frozen=True):
    """Asks for the next part: answered by `Data`."""


# ---- answers -----------------------------------------------------------------------------------------------


class Ok(Tagged, frozen=True):
    """It is done."""


class Names(Tagged, frozen=True):
    """Of folders."""

    names: tuple[str, ...]


class Opened(Tagged, frozen=True):
    """A file is open, which has so many bytes."""

    size: _Count


class Failed(Tagged, frozen=True):
    """It failed, and the operation with it.

    Attributes:
        code: An `errno`; 0 where there is none.
        damaged: What was read is not what was written.
    """

    code: int
    text: str
    damaged: bool = False


Question = Folders | Remove | Verify | Write | Read | Data | Done | More
Answer = Ok | Names | Opened | Data | Failed
_A = TypeVar("_A", Ok, Names, Opened, Data)

questions: Codec[Question] = Codec(Question)
answers: Codec[Answer] = Codec(Answer)


class LeaderFiles:
    """The files in a folder of the leader's. Each method waits as long as the operation to the leader is down.

    Args:
        url: `leader://PATH`, with the path as the leader has shared it.

    Raises:
        ConfigurationError: If this process was not started by the agent of a VM.
    """

    def __init__(self, url: str) -> None:
        self.root = url
        number, _, agent = os.environ.get(VARIABLE, "").partition("@")
        if not (number.isdecimal() and agent):
            raise ConfigurationError(
                f"{url}: only processes on VMs have a leader whose files they may ask for"
            )
        self._launch, self._agent = int(number), Path(agent)
        self._path = url.removeprefix(SCHEME)

    def folders(self) -> list[str]:
        with self._connect() as operation:
            return list(operation.ask(Folders(self._launch, self._path), Names).names)

    def write(self, folder: str, name: str, chunks: Iterable[memoryview]) -> None:
        with self._connect() as operation:
            operation.send(Write(self._launch, self._path, folder, name))
            for chunk in chunks:
                for start in range(0, len(chunk), CHUNK_BYTES):
                    while operation.unanswered >= AHEAD:
                        operation.receive(Ok)
                    operation.send(Data(bytes(chunk[start : start + CHUNK_BYTES])))
            operation.send(Done())
            while operation.unanswered:
                operation.receive(Ok)

    @contextlib.contextmanager
    def reading(self, folder: str, name: str) -> Iterator[tuple[Readable, int]]:
        with self._connect() as operation:
            size = operation.ask(Read(self._launch, self._path, folder, name), Opened).size
            yield _RemoteFile(operation, size), size

    def verify(self, folder: str, name: str, *, size: int, sha256: str) -> None:
        with self._connect() as operation:
            operation.ask(Verify(self._launch, self._path, folder, name, size, sha256), Ok)

    def remove(self, folder: str, first: str) -> None:
        with self._connect() as operation:
            operation.ask(Remove(self._launch, self._path, folder, first), Ok)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[_Operation]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            with short_socket_path(self._agent) as path:
                connection.connect(path)
            yield _Operation(connection)


class _Operation:
    """One operation's."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.unanswered = 0

    def send(self, question: Question) -> None:
        body = questions.encode(question)
        try:
            self._connection.sendall(HEAD.pack(len(body)) + body)
        except (BrokenPipeError, ConnectionResetError):
            raise _connection_lost() from None
        self.unanswered += 1

    def receive(self, kind: type[_A]) -> _A:
        (length,) = HEAD.unpack(self._read(HEAD.size))
        try:
            answer = answers.decode(self._read(length))
        except MessageError as error:
            raise OSError(errno.EPROTO, f"what the leader answered is no message: {error}") from None
        self.unanswered -= 1
        if isinstance(answer, Failed):
            if answer.damaged:
                raise DamagedError(answer.text)
            raise OSError(answer.code, answer.text) if answer.code else OSError(answer.text)
        if not isinstance(answer, kind):
            raise OSError(errno.EPROTO, f"the leader answered {type(answer).__name__}")
        return answer

    def ask(self, question: Question, kind: type[_A]) -> _A:
        self.send(question)
        return self.receive(kind)

    def _read(self, count: int) -> bytes:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                got = self._connection.recv_into(view[at:])
            except ConnectionResetError:
                got = 0
            if not got:
                raise _connection_lost()
            at += got
        return bytes(data)


class _RemoteFile:
    """A file of the leader's, read from its beginning; as much is asked for ahead as it has."""

    def __init__(self, operation: _Operation, size: int) -> None:
        self._connect, self._unasked = operation, size
        self._data = memoryview(b"")

    def readinto(self, buffer: Any, /) -> int:
        if not self._data:
            while self._unasked > 0 and self._connect.unanswered < AHEAD:
                self._connect.send(More())
                self._unasked -= CHUNK_BYTES
            if not self._connect.unanswered:
                self._connect.send(More())  # it may have grown
            self._data = memoryview(self._connect.receive(Data).data)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._data))
        target[:count] = self._data[:count]
        self._data = self._data[count:]
        return count


def _connection_lost() -> OSError:
    return ConnectionResetError(
        errno.ECONNRESET, "the agent of this VM has ended the connection to its leader"
    )


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """A name for a Unix socket that is short enough for one, wherever it lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
