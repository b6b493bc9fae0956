"""What went wrong in a training process, in one line for the user; without importing any framework."""

from __future__ import annotations

import errno
import os
import re
import traceback
from pathlib import Path

from scavenger.errors import NonFiniteError, NotSupportedError, ScavengerError, TrainingCodeError

__all__ = ["DataError", "describe_disk_failure", "describe_failure", "error_of"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NODES = re.compile(r"\{\{[^{}]*\}\} ?|\s*\[Op:\w+\](?: name:.*)?$")
"""What TensorFlow says of its own graph around the words of an error."""
_WRAPPINGS = ("Exception encountered when calling", "Error encountered:")
_HDF5_ERRNO = re.compile(r"\berrno = (\d+)")
_DISK_ERRORS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class DataError(ValueError):
    """The data has a form that cannot be trained on; the message names it."""


def describe_failure(error: BaseException, job_dir: str) -> tuple[str, str]:
    """Kind and one line for an exception: the user's own line where the traceback has one."""
    if isinstance(error, (NotSupportedError, DataError)):
        return "unsupported", str(error)
    if isinstance(error, ScavengerError):
        return "code", str(error)
    message = _ANSI.sub("", str(error))
    essence = _essence(message)
    text = f"{type(error).__name__}: {essence}" if essence else type(error).__name__
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # where TensorFlow traced the code, the user's frames stand in the message alone
    places += [(match[1], int(match[2])) for match in _FRAME.finditer(message)]
    for file, line in reversed(places):
        if Path(file).is_relative_to(job_dir) and "site-packages" not in file:
            return "code", f"{Path(file).relative_to(job_dir)}:{line}: {text}"
    return "code", text


def describe_disk_failure(error: BaseException | None) -> str:
    """What a disk has against a file, as "No space left on device"; empty where the error is not a disk's.

    HDF5 tells of the system's error in its text alone, and Keras raises others while it handles one.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (told := _HDF5_ERRNO.search(str(error))):
            number = int(told[1])
        if number in _DISK_ERRORS:
            return os.strerror(number)
        error = error.__cause__ or error.__context__
    return ""


def error_of(kind: str, message: str, *, process: str, log: Path) -> ScavengerError:
    """What a process that ends has said of its failure, as the error that ends the job."""
    match kind:
        case "code":
            return TrainingCodeError(f"the training code failed: {message} (log: {log})")
        case "mismatch" | "data":
            return TrainingCodeError(message)
        case "unsupported":
            return NotSupportedError(message)
        case "nonfinite":
            return NonFiniteError(message)
        case "restore":
            return ScavengerError(message)
        case _:
            return ScavengerError(f"{process} failed: {message} (log: {log})")


def _essence(message: str) -> str:
    """The line of an error's text that says what is wrong: Keras and TensorFlow put others before it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if lines[:1] == ["in user code:"]:
        last = max((index for index, line in enumerate(lines) if _FRAME.match(line)), default=-1)
        lines = lines[last + 2 :] or lines[-1:]
    line = next((line for line in lines if not any(words in line for words in _WRAPPINGS)), "")
    return _NODES.sub("", line)
