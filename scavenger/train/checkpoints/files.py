"""Where checkpoints lie: a folder of folders of files, each file there completely or not at all.

On a local file system a file is written beside its place, synchronised and renamed. Elsewhere, at any URL that
fsspec knows, nothing can be renamed cheaply, but an object appears only when it is complete; where even that
does not hold (sftp), checksums find the torn ones. Every failure is an `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from scavenger.errors import ConfigurationError, NotSupportedError, ScavengerError
from scavenger.train.checkpoints.format import DamagedError, Readable, check_size, verify_tensors
from scavenger.train.checkpoints.remote_folder import SCHEME, LeaderFiles

__all__ = ["Files", "LocalFiles", "RemoteFiles", "local_path", "open_files"]


class Files(Protocol):
    """Files named `folder/name` under one root; neither holds a separator."""

    root: str

    def folders(self) -> list[str]:
        """Names of what lies under the root, in no order; none where there is no root yet."""

    def write(self, folder: str, name: str, chunks: Iterable[memoryview]) -> None:
        """Make or replace a file; folders are made as needed. On failure, what was there before is intact."""

    def reading(self, folder: str, name: str) -> contextlib.AbstractContextManager[tuple[Readable, int]]:
        """An open file and its size, bytes."""

    def verify(self, folder: str, name: str, *, size: int, sha256: str) -> None:
        """Read a part through where it lies; see `verify_tensors`.

        Raises:
            DamagedError: If it is not exactly what was written.
        """

    def remove(self, folder: str, first: str) -> None:
        """Remove a folder, of its files `first` first; one that is gone already is no error."""


class LocalFiles:
    """On a local file system; what was written outlasts a loss of power."""

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
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
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
            with contextlib.suppress(OSError):  # only if this was to be its first file
                os.rmdir(parent)
            raise

    @contextlib.contextmanager
    def reading(self, folder: str, name: str) -> Iterator[tuple[Readable, int]]:
        path = os.path.join(self.root, folder, name)
        with open(path, "rb", buffering=0, opener=_open_plain) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            yield file, status.st_size

    def verify(self, folder: str, name: str, *, size: int, sha256: str) -> None:
        _read_through(self, folder, name, size, sha256)

    def remove(self, folder: str, first: str) -> None:
        path = os.path.join(self.root, folder)
        if os.path.islink(path):  # what it leads to is not ours
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
    """Neither a link to elsewhere nor a pipe, at which opening would wait."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        pass  # perhaps made by another process this moment, and not synchronised yet
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
        if error.errno != errno.EINVAL:  # what file systems say that cannot synchronise folders, as FUSE's
            raise
    finally:
        os.close(descriptor)


class RemoteFiles:
    """At a URL that fsspec knows. Others write there too, so no listing that it remembers is trusted.

    Args:
        filesystem: An fsspec file system.
        root: Path within it.
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
            except FileNotFoundError:  # unlike object stores, this one wants its folders made
                self._filesystem.makedirs(self._path(folder), exist_ok=True)
                file = self._filesystem.open(path, "wb")
            try:
                with file:
                    for chunk in chunks:
                        file.write(chunk)
            except BaseException:
                with contextlib.suppress(Exception):  # closing has stored the first half
                    self._filesystem.rm_file(path)
                raise

    @contextlib.contextmanager
    def reading(self, folder: str, name: str) -> Iterator[tuple[Readable, int]]:
        path = self._path(folder, name)
        with _as_os_errors():
            self._filesystem.invalidate_cache()
            with self._filesystem.open(path, "rb") as file:
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
    """Client libraries raise exceptions of their own beside `OSError`."""
    try:
        yield
    except (OSError, ScavengerError, DamagedError):
        raise
    except NotImplementedError as error:
        raise NotSupportedError(f"this kind of URL cannot hold checkpoints: {error}") from None
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def local_path(url: str) -> str | None:
    """The absolute path that a URL means on a local file system; None where it means another place.

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


def open_files(url: str) -> Files:
    """The files at a local path, a `file://` URL or any other URL of fsspec's; touches nothing there.

    On a VM, `leader://PATH` is a folder of the leader's, who must have shared it.

    Raises:
        ConfigurationError: If the URL's protocol is unknown, or it names no absolute path.
        NotSupportedError: If a package must be installed for the protocol, or the URL is a chained one.
    """
    shown = re.sub(r"//[^/@]*@", "//", url)
    path = local_path(url)
    if path is not None:
        return LocalFiles(path)
    if url.startswith(SCHEME):
        return LeaderFiles(url)
    if "::" in url:
        raise NotSupportedError(f"{shown}: chained URLs cannot hold checkpoints; name one place")
    import fsspec  # not needed for local paths, and it takes as long to import as NumPy

    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise NotSupportedError(f"{shown}: a package is missing: {error}") from None
    except ValueError as error:
        raise ConfigurationError(f"{shown}: {error}") from None
    return RemoteFiles(filesystem, root)
