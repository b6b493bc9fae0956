"""Storage of checkpoints: a folder of folders of files that are written atomically.

On a local file system, a file is written under a temporary name, synchronised and renamed. On other storage, at any
URL that fsspec supports, renaming is expensive, but an object appears only when it is complete; where even that does
not hold (sftp), checksums detect incomplete files. Every failure is an `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from scavenger.errors import (
    ConfigurationError,
    CredentialsError,
    NotSupportedError,
    ScavengerError,
    TransientError,
)
from scavenger.private_files import FILE_MODE, FOLDER_MODE
from scavenger.train.checkpoints.format import DamagedError, Readable, check_size, verify_tensors
from scavenger.train.checkpoints.remote_folder import SCHEME, LeaderFiles
from scavenger.train.object_stores import filesystem_at

_READ_ONLY = "checkpoints cannot be written there; name a folder or a bucket"
_UNFIT = {
    "memory": "this storage ends with its process; name a folder or a bucket",
    "leader": "this protocol is for Scavenger's own processes; name a folder or a bucket",
    "http": _READ_ONLY,
    "https": _READ_ONLY,
    "data": _READ_ONLY,
}


class Files(Protocol):
    """Files named `folder/name` under one root; neither name contains a separator."""

    root: str

    def folders(self) -> list[str]:
        """Return the names of the entries under the root, in no order; empty if there is no root yet."""

    def write(self, folder: str, name: str, chunks: Iterable[memoryview]) -> None:
        """Create or replace a file; folders are created as needed. On failure, the old file is intact."""

    def reading(
        self, folder: str, name: str, begin: int = 0
    ) -> contextlib.AbstractContextManager[tuple[Readable, int]]:
        """Open a file; the context value is the file, positioned at byte `begin`, and its size, bytes."""

    def verify(self, folder: str, name: str, *, size: int, sha256: str) -> None:
        """Verify a part by reading all of it at its storage; see `verify_tensors`.

        Raises:
            DamagedError: If it is not exactly what was written.
        """

    def remove(self, folder: str, first: str) -> None:
        """Remove a folder, its file `first` first; no error if the folder does not exist."""


class LocalFiles:
    """Files on a local file system; completed writes survive a power failure."""

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).absolute())

    def folders(self) -> list[str]:
        try:
            return os.listdir(self.root)
        except FileNotFoundError:
            return []

    def write(self, folder: str, name: str, chunks: Iterable[memoryview]) -> None:
        parent = os.path.join(self.root, folder)
        target = os.path.join(parent, name)
        temporary = f"{target}.tmp"
        try:
            _make_folder(parent)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
            try:
                for chunk in chunks:
                    _write_all(descriptor, chunk)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
            _sync_folder(parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            with contextlib.suppress(OSError):  # succeeds only if the folder is empty
                os.rmdir(parent)
            raise

    @contextlib.contextmanager
    def reading(self, folder: str, name: str, begin: int = 0) -> Iterator[tuple[Readable, int]]:
        path = os.path.join(self.root, folder, name)
        with open(path, "rb", buffering=0, opener=_open_plain) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            file.seek(begin)
            yield file, status.st_size

    def verify(self, folder: str, name: str, *, size: int, sha256: str) -> None:
        _read_through(self, folder, name, size, sha256)

    def remove(self, folder: str, first: str) -> None:
        path = os.path.join(self.root, folder)
        if os.path.islink(path):  # do not follow the link
            os.unlink(path)
            return
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return
        for name in sorted(names, key=lambda name: name != first):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)


def _open_plain(path: str, flags: int) -> int:
    """Open a file without following links, and without waiting if it is a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        pass  # possibly just created by another process, and not synchronised yet
    except FileNotFoundError:
        _make_folder(os.path.dirname(path))
        _make_folder(path)
        return
    _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # error of file systems that cannot synchronise folders, such as FUSE
            raise
    finally:
        os.close(descriptor)


class RemoteFiles:
    """Files at a URL that fsspec supports. Cached listings are not used, because other processes write there too.

    Args:
        filesystem: An fsspec file system.
        root: Path within the file system.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem, self._root = filesystem, root.rstrip("/")
        self.root = str(filesystem.unstrip_protocol(root))  # without user and password, unlike the URL

    def folders(self) -> list[str]:
        with _as_os_errors():
            self._filesystem.invalidate_cache()
            try:
                paths = self._filesystem.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
            return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]

    def write(self, folder: str, name: str, chunks: Iterable[memoryview]) -> None:
        path = self._path(folder, name)
        with _as_os_errors():
            try:
                file = self._filesystem.open(path, "wb")
            except FileNotFoundError:  # unlike object stores, this one needs existing folders
                self._filesystem.makedirs(self._path(folder), exist_ok=True)
                file = self._filesystem.open(path, "wb")
            try:
                with file:
                    for chunk in chunks:
                        file.write(chunk)
            except BaseException:
                with contextlib.suppress(Exception):  # closing has stored an incomplete file
                    self._filesystem.rm_file(path)
                raise

    @contextlib.contextmanager
    def reading(self, folder: str, name: str, begin: int = 0) -> Iterator[tuple[Readable, int]]:
        path = self._path(folder, name)
        with _as_os_errors():
            self._filesystem.invalidate_cache()
            with self._filesystem.open(path, "rb") as file:
                if begin:
                    file.seek(begin)
                yield file, int(self._filesystem.size(path))

    def verify(self, folder: str, name: str, *, size: int, sha256: str) -> None:
        _read_through(self, folder, name, size, sha256)

    def remove(self, folder: str, first: str) -> None:
        with _as_os_errors():
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.rm_file(self._path(folder, first))
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.rm(self._path(folder), recursive=True)

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names))


def _read_through(files: Files, folder: str, name: str, size: int, sha256: str) -> None:
    with files.reading(folder, name) as (file, found):
        check_size(found, size)
        verify_tensors(file, size=found, sha256=sha256)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Convert exceptions of client libraries to `OSError`."""
    try:
        yield
    except (OSError, ScavengerError, DamagedError):
        raise
    except NotImplementedError as error:
        raise NotSupportedError(f"this kind of URL cannot hold checkpoints: {error}") from None
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def local_path(url: str) -> str | None:
    """Return the absolute path of a URL on the local file system; None for other locations.

    Raises:
        ConfigurationError: If it is empty, or a URL that names no absolute path.
    """
    protocol, separator, path = url.partition("://")
    if not url:
        raise ConfigurationError("the path for checkpoints is empty")
    if not separator:
        return str(Path(url).absolute())
    if protocol not in ("file", "local"):
        return None
    if not path.startswith("/"):
        raise ConfigurationError(f"{url}: write an absolute path, as file:///data/checkpoints")
    return str(Path(path))


def check_location(url: str) -> None:
    """Refuse a location that cannot hold a job's checkpoints; opens nothing.

    Raises:
        ConfigurationError: If the URL names storage that cannot be written, that ends with a process, or that only
            Scavenger itself uses; or its protocol is unknown.
        NotSupportedError: If a package must be installed for the protocol.
    """
    key, shown = "checkpoint.path", _without_user(url)
    protocol, separator, _ = url.partition("://")
    if separator and (why := _UNFIT.get(protocol.lower())):
        raise ConfigurationError(f"{key}: {shown}: {why}", key=key)
    from fsspec.registry import get_filesystem_class, known_implementations

    scheme, colon, rest = url.partition(":")
    if colon and not separator and scheme in known_implementations:
        raise ConfigurationError(
            f"{key}: {shown} would be a folder of this machine: write {scheme}://{rest.lstrip('/')}", key=key
        )
    if local_path(url) is not None or "::" in url:  # `open_files` refuses chained URLs
        return
    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        raise NotSupportedError(f"{key}: {shown}: a package is missing: {error}", key=key) from None
    except ValueError as error:
        hint = "write s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a folder"
        raise ConfigurationError(f"{key}: {shown}: {error}; {hint}", key=key) from None


def check_storage(url: str, *, within_s: float = 30.0) -> None:
    """Write a small object to storage at a URL, list, read and remove it: as a job does with its checkpoints.

    Args:
        within_s: Longest time that it may take, seconds; clients of storage try again for minutes.

    Raises:
        ConfigurationError: If there is no such bucket.
        CredentialsError: If one of these is not permitted.
        TransientError: If the storage does not answer as it should, or not in time.
        NotSupportedError: If a package must be installed for the protocol.
    """
    key, shown, found = "checkpoint.path", _without_user(url), list[OSError | ScavengerError]()

    def check() -> None:
        try:
            with _as_os_errors():
                _try_storage(open_files(url))
        except (OSError, ScavengerError) as error:
            found.append(error)

    checking = threading.Thread(target=check, name="check-storage", daemon=True)
    checking.start()
    checking.join(within_s)
    if checking.is_alive():
        raise TransientError(
            f"{key}: {shown}: the storage does not answer within {within_s:.0f} s: is this machine connected?"
        )
    match found:
        case []:
            return
        case [FileNotFoundError()]:
            raise ConfigurationError(
                f"{key}: {shown}: there is no such bucket: create it, or name another one", key=key
            )
        case [OSError() as error]:
            why = " ".join(str(error.strerror or error).split())
            if isinstance(error, PermissionError) or _is_refusal(why):
                raise CredentialsError(
                    f"{key}: {shown}: objects cannot be written, listed, read and removed there: {why}; log in to the "
                    "cloud on this machine, or give its account access to the bucket"
                )
            raise TransientError(f"{key}: {shown}: the storage does not answer as it should: {why}")
        case [error]:
            raise error


def _try_storage(files: Files) -> None:
    folder, what = f"probe-{uuid4()}", b"probe"
    files.write(folder, "probe", [memoryview(what)])
    if folder not in files.folders():
        raise OSError("what was written is not listed")
    with files.reading(folder, "probe") as (file, size):
        buffer = bytearray(len(what))
        file.readinto(buffer)
        if (bytes(buffer), size) != (what, len(what)):
            raise OSError("what was written is not read back")
    files.remove(folder, "probe")


def _is_refusal(why: str) -> bool:
    """Whether an error says that credentials are missing or do not suffice; clients have no common type for it."""
    return (
        re.search(r"credential|forbidden|unauthori[sz]ed|denied|anonymous|permission|\b40[13]\b", why, re.I)
        is not None
    )


def _without_user(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def open_files(url: str) -> Files:
    """Open the storage at a local path, a `file://` URL or any other URL that fsspec supports; creates nothing.

    On a VM, `leader://PATH` is a folder that the leader has shared.

    Raises:
        ConfigurationError: If the URL's protocol is unknown, or it names no absolute path.
        NotSupportedError: If a package must be installed for the protocol, or the URL is a chained one.
    """
    shown = _without_user(url)
    path = local_path(url)
    if path is not None:
        return LocalFiles(path)
    if url.startswith(SCHEME):
        return LeaderFiles(url)
    if "::" in url:
        raise NotSupportedError(f"{shown}: chained URLs cannot hold checkpoints; name one place")
    try:
        filesystem, root = filesystem_at(url)
    except ImportError as error:
        raise NotSupportedError(f"{shown}: a package is missing: {error}") from None
    except ValueError as error:
        raise ConfigurationError(f"{shown}: {error}") from None
    return RemoteFiles(filesystem, root)
