"""The command's folder of checkpoints, as it is carried between machines: its files one by one, in the job's storage.

Each file is stored once, as an object of its own, and a list of files is a state of the folder. So a checkpoint that
shares files with the one before it costs only what is new, and a state is either known as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from scavenger.train.checkpoints.files import Files

FILES_MAX = 5_000
"""Largest number of files in the folder; storage, messages and the record of a checkpoint are made for no more."""
_CHUNK_BYTES = 1 << 20
OBJECT = "data"
"""Name of the one file in an object's folder."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file of the folder.

    Attributes:
        stored: Name of its object; empty for a link.
        sha256: Digest of its content, hexadecimal.
        bytes: Its size.
        modified_ns: When it was last changed, by its machine's clock.
        link: For a link within the folder, what it leads to, from where it is.
    """

    stored: str = ""
    sha256: str = ""
    bytes: int = 0
    modified_ns: int = 0
    link: str = ""


Listing = Mapping[str, StoredFile]
"""A state of the folder: its files by their paths in it."""


class TornError(Exception):
    """The folder was changed while its state was taken, so the state may be no checkpoint; the message is for users."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was found; two that are equal have the same content."""

    bytes: int
    modified_ns: int
    inode: int
    link: str = ""

    @classmethod
    def of(cls, path: Path) -> _Seen:
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class StoredFolder:
    """A folder on this machine, and the storage that states of it are written to and read from. Not thread-safe.

    Args:
        folder: The folder; made when it is needed.
        files: The storage.
        moved: Called after each chunk that was written or read; what it raises ends the operation.
    """

    def __init__(self, folder: Path, files: Files, moved: Callable[[], None] = lambda: None) -> None:
        self._folder, self._files, self._moved = folder, files, moved
        self._known: dict[str, tuple[_Seen, StoredFile]] = {}

    def fetch(self, listing: Listing) -> None:
        """Make the folder exactly what a list says.

        Raises:
            OSError: If it cannot be read or written, or is not what was stored.
            ValueError: If the list leads out of the folder.
        """
        checked(listing)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, seen in self._scan().items():
            if not self._holds(path, seen, listing.get(path)):
                (self._folder / path).unlink()
        for path, file in listing.items():
            at = self._folder / path
            if os.path.lexists(at):
                continue
            at.parent.mkdir(parents=True, exist_ok=True)
            if file.link:
                at.symlink_to(file.link)
            else:
                self._read(at, file)
                self._known[path] = _Seen.of(at), file

    def remove(self) -> None:
        """Remove the folder from this machine; what is stored stays."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _holds(self, path: str, seen: _Seen, file: StoredFile | None) -> bool:
        if file is None:
            return False
        return seen.link == file.link if file.link or seen.link else self._known.get(path) == (seen, file)

    def push(self, *, until_ns: int | None = None) -> dict[str, StoredFile]:
        """Store the folder as it is now; returns its list.

        Args:
            until_ns: When the program told that it had saved, by the clock of files; what was changed later belongs
                to another checkpoint. None: nothing changes it any more.

        Raises:
            TornError: If a file was changed later, or meanwhile.
            OSError: If it cannot be read, or not be stored.
        """
        snapshot = self._folder.with_name(f"{self._folder.name}.snapshot")
        shutil.rmtree(snapshot, ignore_errors=True)
        try:
            return self._push(snapshot, until_ns)
        finally:
            shutil.rmtree(snapshot, ignore_errors=True)

    def _push(self, snapshot: Path, until_ns: int | None) -> dict[str, StoredFile]:
        listing: dict[str, StoredFile] = {}
        found = self._scan()
        if len(found) > FILES_MAX:
            raise OSError(errno.EFBIG, f"{len(found)} files are too many to be carried, at most {FILES_MAX}")
        changed = {
            path: seen for path, seen in found.items() if not seen.link and not self._is_known(path, seen)
        }
        for path, seen in changed.items():
            if until_ns is not None and seen.modified_ns > until_ns:
                raise TornError(f"{path} was changed after the checkpoint was told of")
            self._freeze(path, seen, snapshot)
        for path, seen in found.items():
            if seen.link:
                listing[path] = StoredFile(link=seen.link)
            elif path in changed:
                listing[path] = self._write(path, seen, snapshot)
            else:
                listing[path] = self._known[path][1]
        self._known = {path: (found[path], file) for path, file in listing.items() if not file.link}
        return listing

    def _is_known(self, path: str, seen: _Seen) -> bool:
        return path in self._known and self._known[path][0] == seen

    def _freeze(self, path: str, seen: _Seen, snapshot: Path) -> None:
        """Hold on to a file by another name, so that it can be replaced and removed while it is stored."""
        held = snapshot / path
        held.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            try:
                os.link(self._folder / path, held)
            except PermissionError:  # a file system without hard links
                shutil.copy2(self._folder / path, held)
                seen = _Seen.of(self._folder / path)
            if self._same(held, seen):
                return
        raise TornError(f"{path} was changed or removed while the checkpoint was stored")

    @staticmethod
    def _same(held: Path, seen: _Seen) -> bool:
        status = held.stat()
        return (status.st_size, status.st_mtime_ns) == (seen.bytes, seen.modified_ns)

    def _write(self, path: str, seen: _Seen, snapshot: Path) -> StoredFile:
        digest, name = hashlib.sha256(), uuid.uuid4().hex
        held = snapshot / path

        def chunks() -> Iterator[memoryview]:
            with held.open("rb") as file:
                while data := file.read(_CHUNK_BYTES):
                    digest.update(data)
                    yield memoryview(data)
                    self._moved()

        self._files.write(name, OBJECT, chunks())
        if not self._same(held, seen):
            self._files.remove(name, OBJECT)
            raise TornError(f"{path} was changed while the checkpoint was stored")
        return StoredFile(name, digest.hexdigest(), seen.bytes, seen.modified_ns)

    def _read(self, at: Path, file: StoredFile) -> None:
        digest, part = hashlib.sha256(), at.with_name(f"{at.name}.fetched")
        buffer = bytearray(_CHUNK_BYTES)
        with self._files.reading(file.stored, OBJECT) as (source, _), part.open("wb") as target:
            while count := source.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
                target.write(memoryview(buffer)[:count])
                self._moved()
        if digest.hexdigest() != file.sha256:
            part.unlink()
            raise OSError(errno.EIO, f"{at.name} is not what was stored")
        os.utime(part, ns=(file.modified_ns, file.modified_ns))
        part.replace(at)

    def _scan(self) -> dict[str, _Seen]:
        """The files of the folder; one that vanishes meanwhile is not among them."""
        found: dict[str, _Seen] = {}
        root = self._folder.resolve()
        for folder, _, names in os.walk(root):
            links = [name for name in os.listdir(folder) if (Path(folder) / name).is_symlink()]
            for name in sorted({*names, *links}):
                path = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):
                    target = path.resolve()
                    if path.is_symlink() and target.is_relative_to(root) and target != root:
                        link = os.path.relpath(target, folder)
                        found[path.relative_to(root).as_posix()] = _Seen(0, 0, 0, link)
                    elif path.is_file():
                        found[path.relative_to(root).as_posix()] = _Seen.of(path)
        return found


def checked(listing: Listing) -> Listing:
    """A list that leads nowhere but into its folder.

    Raises:
        ValueError: If it does; a machine that was broken into may send it.
    """
    if len(listing) > FILES_MAX:
        raise ValueError(f"{len(listing)} files are too many")
    for path, file in listing.items():
        target = os.path.normpath(os.path.join(os.path.dirname(path), file.link)) if file.link else path
        plain = path == os.path.normpath(path) and file.link in ("", os.path.normpath(file.link or "."))
        for one in (path, target):
            if (
                not plain
                or one in ("", ".")
                or os.path.isabs(one)
                or one.split("/")[0] == ".."
                or "\0" in one
            ):
                raise ValueError(f"{path!r} leads out of the folder")
        if not file.link and not (file.stored.isalnum() and len(file.stored) <= 64):
            raise ValueError(f"{path!r} is stored under no name")
    # a link to a folder, and a file below it, could lead out together
    links = {path for path, file in listing.items() if file.link}
    for path in listing:
        if any(str(parent) in links for parent in Path(path).parents):
            raise ValueError(f"{path!r} is below a link")
    return listing


def size_of(listing: Listing) -> int:
    """Bytes of all files."""
    return sum(file.bytes for file in listing.values())
