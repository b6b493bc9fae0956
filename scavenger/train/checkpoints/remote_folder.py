"""Checkpoints in a folder of the leader, as a process on a VM accesses them: through its agent.

Each connection to the agent's Unix socket carries one operation. Questions are answered in order, with one answer per
question. A limited number of questions may be unanswered, which bounds the data in flight.
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

SCHEME = "leader://"
VARIABLE = "SCAVENGER_LEADER_FILES"
"""Environment variable with `NUMBER@PATH`: the process's launch number and its agent's socket."""
CHUNK_BYTES = 256 << 10
AHEAD = 8
"""Largest number of unanswered questions of a VM: two MiB, which a link of 10 Mbit/s transmits within the two seconds
that the renewal of the VM's time limit, which is queued after them, may take."""
FRAME_BYTES_MAX = CHUNK_BYTES + 4096
HEAD = struct.Struct("<I")
"""Length prefix of each message on the Unix socket."""

_Name = Annotated[str, msgspec.Meta(max_length=128)]
_Root = Annotated[str, msgspec.Meta(max_length=2048)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


# ---- what begins an operation: in the folder `root`, by the process of the number `launch` -----------------


class Folders(Tagged, frozen=True):
    """Request for `Files.folders`; answered by `Names`."""

    launch: _Count
    root: _Root


class RemoveFile(Tagged, frozen=True):
    """Request for `Files.remove`; answered by `Ok`."""

    launch: _Count
    root: _Root
    folder: _Name
    first: _Name


class Verify(Tagged, frozen=True):
    """Request for `Files.verify`; answered by `Ok`."""

    launch: _Count
    root: _Root
    folder: _Name
    name: _Name
    size: _Count
    sha256: _Name


class WriteFile(Tagged, frozen=True):
    """Request for `Files.write`; followed by `Data` messages, each answered when written, and `EndOfData`."""

    launch: _Count
    root: _Root
    folder: _Name
    name: _Name


class Read(Tagged, frozen=True):
    """Request for `Files.reading`; answered by `Opened`, and followed by `More` messages."""

    launch: _Count
    root: _Root
    folder: _Name
    name: _Name
    begin: _Count = 0


# ---- what goes on ------------------------------------------------------------------------------------------


class Data(Tagged, frozen=True):
    """A chunk of a file, at most `CHUNK_BYTES`; empty after the end of the file."""

    data: bytes


class EndOfData(Tagged, frozen=True):
    """End of a written file; answered when the file is stored durably."""


class More(Tagged, frozen=True):
    """Request for the next chunk; answered by `Data`."""


# ---- answers -----------------------------------------------------------------------------------------------


class Ok(Tagged, frozen=True):
    """Success."""


class Names(Tagged, frozen=True):
    """Names of folders."""

    names: tuple[str, ...]


class Opened(Tagged, frozen=True):
    """The file is open; `size` is its size in bytes."""

    size: _Count


class OperationFailed(Tagged, frozen=True):
    """The operation has failed.

    Attributes:
        code: An `errno`; 0 if there is none.
        text: Description of the failure.
        damaged: Whether the data read is not what was written.
    """

    code: int
    text: str
    damaged: bool = False


Question = Folders | RemoveFile | Verify | WriteFile | Read | Data | EndOfData | More
Answer = Ok | Names | Opened | Data | OperationFailed
_A = TypeVar("_A", Ok, Names, Opened, Data)

questions: Codec[Question] = Codec(Question)
answers: Codec[Answer] = Codec(Answer)


class LeaderFiles:
    """Files in a folder of the leader. Each method waits while the connection to the leader is down.

    Args:
        url: `leader://PATH`, with exactly the path that the leader has shared.

    Raises:
        ConfigurationError: If this process was not started by the agent of a VM.
    """

    def __init__(self, url: str) -> None:
        self.root = url
        number, _, agent = os.environ.get(VARIABLE, "").partition("@")
        if not (number.isdecimal() and agent):
            raise ConfigurationError(f"{url}: only processes on VMs can use the files of a leader")
        self._launch, self._agent = int(number), Path(agent)
        self._path = url.removeprefix(SCHEME)

    def folders(self) -> list[str]:
        with self._connect() as operation:
            return list(operation.ask(Folders(self._launch, self._path), Names).names)

    def write(self, folder: str, name: str, chunks: Iterable[memoryview]) -> None:
        with self._connect() as operation:
            operation.send(WriteFile(self._launch, self._path, folder, name))
            for chunk in chunks:
                for start in range(0, len(chunk), CHUNK_BYTES):
                    while operation.unanswered >= AHEAD:
                        operation.receive(Ok)
                    operation.send(Data(bytes(chunk[start : start + CHUNK_BYTES])))
            operation.send(EndOfData())
            while operation.unanswered:
                operation.receive(Ok)

    @contextlib.contextmanager
    def reading(self, folder: str, name: str, begin: int = 0) -> Iterator[tuple[Readable, int]]:
        with self._connect() as operation:
            size = operation.ask(Read(self._launch, self._path, folder, name, begin), Opened).size
            yield _RemoteFile(operation, max(0, size - begin)), size

    def verify(self, folder: str, name: str, *, size: int, sha256: str) -> None:
        with self._connect() as operation:
            operation.ask(Verify(self._launch, self._path, folder, name, size, sha256), Ok)

    def remove(self, folder: str, first: str) -> None:
        with self._connect() as operation:
            operation.ask(RemoveFile(self._launch, self._path, folder, first), Ok)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[_Operation]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            with short_socket_path(self._agent) as path:
                connection.connect(path)
            yield _Operation(connection)


class _Operation:
    """Client of one operation: sends questions and receives answers, in order."""

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
            raise OSError(errno.EPROTO, f"the leader's answer is not a valid message: {error}") from None
        self.unanswered -= 1
        if isinstance(answer, OperationFailed):
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
    """A file of the leader, read in order; chunks are requested ahead, up to its end."""

    def __init__(self, operation: _Operation, size: int) -> None:
        self._operation, self._unrequested_bytes = operation, size
        self._data = memoryview(b"")

    def readinto(self, buffer: Any, /) -> int:
        if not self._data:
            while self._unrequested_bytes > 0 and self._operation.unanswered < AHEAD:
                self._operation.send(More())
                self._unrequested_bytes -= CHUNK_BYTES
            if not self._operation.unanswered:
                self._operation.send(More())  # the file may have grown
            self._data = memoryview(self._operation.receive(Data).data)
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
    """Yield a short path to a Unix socket, because the system limits the length of such paths."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
