"""Takes what a job has written to another output folder, where it is resumed."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from scavenger.control.jobs.prepared import check_writable
from scavenger.control.jobs.resumption import Resumption
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import size
from scavenger.private_files import make_private_folder
from scavenger.store.record_file import RECORD_FILE

_LOGS = "logs"


def relocated(resumed: Resumption, before: Path, after: Path) -> Resumption:
    """Copy a job's folder, with its checkpoints if they are in it, to the place where the job goes on.

    It can be repeated: until the job's record names the new place, the old one holds what counts. Nothing is removed
    there.

    Args:
        resumed: What the job goes on from.
        before: The job's folder in its output so far.
        after: The one in its new output.

    Raises:
        ConfigurationError: If there is no room, or it cannot be read or written.
    """
    check_writable(after.parent, "output")
    made = not after.exists()
    try:
        needed, free = _bytes_in(before), _free_bytes(after)
        if needed > free:
            raise ConfigurationError(
                f"output: what job {resumed.job_id[:8]} has written takes {size(needed)}, and {after.parent} has room "
                f"for {size(free)}; name another folder",
                key="output",
            )
        make_private_folder(after)
        shutil.copytree(before, after, symlinks=True, ignore=_Left(before, after), dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        if made:
            shutil.rmtree(after, ignore_errors=True)
        raise ConfigurationError(
            f"output: {before} cannot be copied to {after}: {_reason(error)}; name another folder",
            key="output",
        ) from error
    return replace(resumed, url=_moved(resumed.url, before, after), moved_from=before)


def forget_record(before: Path) -> None:
    """Remove the copy of a job's record in a folder that it has left, so that `store recover` finds one truth."""
    with contextlib.suppress(
        OSError
    ):  # a disk that cannot be written: the copy is older, and names the job's old place
        (before / RECORD_FILE).unlink()


class _Left:
    """Names what is not copied: what is no file, and logs and links that the new folder has already.

    The runner of a submitted job writes its log there before the job begins.
    """

    def __init__(self, before: Path, after: Path) -> None:
        self._before, self._after = before, after

    def __call__(self, folder: str, names: list[str]) -> list[str]:
        here = Path(folder)
        there = self._after / here.relative_to(self._before)
        kept = here.relative_to(self._before) == Path(_LOGS)

        def is_left(name: str) -> bool:
            path = here / name
            if path.is_symlink() or kept:
                return os.path.lexists(there / name)
            return not (path.is_file() or path.is_dir())

        return [name for name in names if is_left(name)]


def _bytes_in(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names
    )


def _free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _moved(url: str, before: Path, after: Path) -> str:
    """Where checkpoints are now: the same place, unless they were in the job's folder."""
    if "://" in url or not Path(url).is_relative_to(before):
        return url
    return str(after / Path(url).relative_to(before))


def _reason(error: OSError | shutil.Error) -> str:
    """The first reason, in one line; `shutil.Error` has a list of what could not be copied."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][2])
    return error.strerror or str(error)
