"""Unpacks what a leader sends: nothing is written outside of the job's folder, nor through a link, whoever sends it.

The host key of a leader's VM stands in its user data, which others of the cloud account may read, so the archive may
come from somebody else. A folder is entered by its descriptor, and never by a link: what lies at a path, also from an
earlier archive, can therefore not lead elsewhere. Links are made last. One that names something inside of the job's
folder, as seen from the true folder that it lies in, stays inside through any chain of others.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scavenger.private_files import FILE_MODE, FOLDER_MODE, make_private_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack_outputs(tar: tarfile.TarFile, job_id: str, output: Path) -> None:
    """Unpack a job's folder, over what an earlier archive has left there.

    Args:
        tar: The archive; what is not below `job_id`, or neither a file, a folder nor a link inside, is left out.
        job_id: Name of the folder, one component.
        output: Where the folder is made.

    Raises:
        OSError: It cannot be written.
        tarfile.TarError: The archive is damaged.
    """
    make_private_folder(output)
    links: list[tuple[tuple[str, ...], str]] = []
    root = os.open(output, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for member in tar:
            path = _below(job_id, member.name)
            if path is None:
                continue
            if member.isdir():
                with _entered(root, path):
                    pass
            elif member.issym() and len(path) > 1:
                if _leads_inside(job_id, path, member.linkname):
                    links.append((path, member.linkname))
            elif member.isfile() and len(path) > 1 and (content := tar.extractfile(member)) is not None:
                with _entered(root, path[:-1]) as folder:
                    _clear(folder, path[-1])
                    opened = os.open(path[-1], _FILE, FILE_MODE, dir_fd=folder)
                    with open(opened, "wb") as written:
                        shutil.copyfileobj(content, written)
        for path, target in links:  # as the model of a command is
            with _entered(root, path[:-1], over_links=False) as folder:
                if folder >= 0 and not _is_folder(folder, path[-1]):
                    _clear(folder, path[-1])
                    os.symlink(target, path[-1], dir_fd=folder)
    finally:
        os.close(root)


def _below(job_id: str, name: str) -> tuple[str, ...] | None:
    """The components of a member's path; None if it is not in the job's folder."""
    path = tuple(part for part in name.split("/") if part not in ("", "."))
    inside = bool(path) and path[0] == job_id and ".." not in path and not name.startswith("/")
    return path if inside else None


def _leads_inside(job_id: str, path: tuple[str, ...], target: str) -> bool:
    """Whether a link names something in the job's folder, and goes upwards only in its beginning.

    `a/../b` may lead elsewhere than `b`, as `a` may be a link itself.
    """
    found = os.path.normpath(os.path.join(*path[:-1], target))
    return found.startswith(f"{job_id}/") and target == os.path.normpath(target)


@contextmanager
def _entered(root: int, path: tuple[str, ...], *, over_links: bool = True) -> Iterator[int]:
    """The descriptor of a folder, which is made if it is missing.

    Args:
        root: Descriptor of the folder that the path begins in.
        path: Its components.
        over_links: Whether what is no folder, such as a link, is replaced by one; otherwise -1 is given for it.
    """
    at = os.dup(root)
    try:
        for name in path:
            below = _opened(at, name, over_links=over_links)
            os.close(at)
            at = below
            if at < 0:
                break
        yield at
    finally:
        if at >= 0:
            os.close(at)


def _opened(at: int, name: str, *, over_links: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        pass
    except OSError as error:  # ELOOP or ENOTDIR for a link, by the system
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        if not over_links:
            return -1
        os.unlink(name, dir_fd=at)
    os.mkdir(name, FOLDER_MODE, dir_fd=at)
    return os.open(name, _FOLDER, dir_fd=at)


def _clear(at: int, name: str) -> None:
    """Remove what a file or link is to replace.

    Raises:
        IsADirectoryError: It is a folder, also from an earlier archive.
    """
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    except PermissionError:  # what macOS and POSIX say of a folder
        if _is_folder(at, name):
            raise IsADirectoryError(errno.EISDIR, "a folder is in the way of a file", name) from None
        raise


def _is_folder(at: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
