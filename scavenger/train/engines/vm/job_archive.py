"""Archive of a job's folder that is sent to VMs; equal folders give byte-identical archives."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from scavenger.errors import ConfigurationError
from scavenger.train.training_folder import entries

BYTES_MAX = 512 << 20
"""Largest total size of the files: every VM fetches them before it trains, so large data belongs elsewhere."""
_NAMED_MAX = 3
_OPEN = Path("/proc/self/fd")


class Archive:
    """Archive of a job's folder.

    Left out are what `training_folder.entries` leaves out, links that lead out of the folder, which `left_out` lists,
    and files that this process has open. The archive stores neither times nor owners.

    Args:
        folder: The folder to pack.
        leave_out: Paths of further folders and files to leave out.
        bytes_max: Largest total size of the files.

    Attributes:
        sha256: Digest of the archive, hexadecimal.
        bytes: Size of the archive.
        left_out: Links that lead out of the folder, relative to the folder.

    Raises:
        ConfigurationError: If the files are too large (the largest are named), or one cannot be read.
    """

    def __init__(self, folder: Path, *, leave_out: Collection[Path] = (), bytes_max: int = BYTES_MAX) -> None:
        self._folder = folder.resolve()
        self._out = {path.resolve() for path in leave_out} - {self._folder} | _open_files()
        left_out: list[str] = []
        paths = list(self._paths(left_out))
        self.left_out = tuple(left_out)
        self._check_size(paths, bytes_max)
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="scavenger-")  # noqa: SIM115 - closed with this
        try:
            with tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for path in paths:
                    self._add(tar, path)
        except (OSError, tarfile.TarError) as error:
            self._file.close()
            raise ConfigurationError(f"the folder of the training code cannot be packed: {error}") from error
        self.bytes = self._file.tell()
        self._file.seek(0)
        self.sha256 = hashlib.file_digest(self._file, "sha256").hexdigest()

    def read(self, offset: int, size: int) -> bytes:
        """Read a part of the archive; empty after its end."""
        self._file.seek(offset)
        return self._file.read(size)

    def close(self) -> None:
        """Delete the archive."""
        self._file.close()

    def _paths(self, left_out: list[str]) -> Iterator[Path]:
        for path in entries(self._folder, self._out):
            if path.is_symlink() and not self._inside(path):
                left_out.append(str(path.relative_to(self._folder)))
            elif path.is_symlink() or path.is_dir() or path.is_file():
                yield path

    def _inside(self, link: Path) -> bool:
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):  # a dangling or circular link
            return False
        return target.is_relative_to(self._folder) and target != self._folder

    def _check_size(self, paths: list[Path], bytes_max: int) -> None:
        sizes = {path: path.lstat().st_size for path in paths if path.is_file() and not path.is_symlink()}
        total = sum(sizes.values())
        if total <= bytes_max:
            return
        largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:_NAMED_MAX]
        named = ", ".join(f"{path.relative_to(self._folder)} ({sizes[path] >> 20} MiB)" for path in largest)
        raise ConfigurationError(
            f"{self._folder}: {total >> 20} MiB are too much to send to every VM, at most {bytes_max >> 20} MiB; "
            f"the largest files: {named}; have the training code read them from where VMs reach them"
        )

    def _add(self, tar: tarfile.TarFile, path: Path) -> None:
        info = tarfile.TarInfo(path.relative_to(self._folder).as_posix())
        status = path.lstat()
        info.mode = 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o644
        if path.is_symlink():
            info.type = tarfile.SYMTYPE
            info.linkname = os.path.relpath(path.resolve(), path.parent)
            tar.addfile(info)
        elif path.is_dir():
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        else:
            with path.open("rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, file)


def _open_files() -> set[Path]:
    """Files that this process has open, such as its store and an Optuna study: state, and no training code.

    They must not even be read: to close a file frees all locks of the process on it, SQLite's included, and another
    process could then write to the same database at the same time (POSIX, fcntl).
    """
    found = set()
    with contextlib.suppress(OSError):  # there is no /proc
        for link in _OPEN.iterdir():
            with contextlib.suppress(OSError):
                path = link.readlink()
                found |= {path} if path.is_absolute() else set()
    # SQLite opens these beside a database, and not all the time
    return found | {path.with_name(path.name + end) for path in found for end in ("-wal", "-shm", "-journal")}


def unpack(archive: Path, sha256: str, folder: Path) -> None:
    """Unpack an archive made by `Archive` into an existing folder; writes nothing outside of it.

    Raises:
        ValueError: If the digest does not match; nothing is unpacked then.
        OSError, tarfile.TarError: If it cannot be unpacked.
    """
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError("the job's folder did not arrive as it was sent")
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
            else:  # Python 3.11.0 to 3.11.3, such as Debian 12's, has no filters
                tar.extractall(folder, members=[_checked(one) for one in tar.getmembers()])  # noqa: S202


def _checked(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member that `Archive` may have written and that stays inside the folder.

    Raises:
        tarfile.TarError: If it is another one.
    """
    link = member.linkname if member.issym() else ""
    inside = os.path.normpath(os.path.join("/folder", os.path.dirname(member.name), link))
    named_inside = not (os.path.isabs(member.name) or ".." in member.name.split("/"))
    links_inside = not os.path.isabs(link) and (inside == "/folder" or inside.startswith("/folder/"))
    if not (named_inside and links_inside and (member.isreg() or member.isdir() or member.issym())):
        raise tarfile.TarError(f"{member.name!r} is not part of a job's folder")
    return member
