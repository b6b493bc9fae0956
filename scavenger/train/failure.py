"""Describes failures of training processes in one line for the user; imports no framework."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from scavenger.errors import (
    NonFiniteError,
    NotSupportedError,
    ScavengerError,
    TrainingCodeError,
    TransientError,
)
from scavenger.frames import Frame, frames_of
from scavenger.masking import mask

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NODES = re.compile(r"\{\{[^{}]*\}\} ?|\s*\[Op:\w+\](?: name:.*)?$")
"""Names of graph nodes and operations that TensorFlow adds to an error's message."""
_WRAPPINGS = ("Exception encountered when calling", "Error encountered:")
_HDF5_ERRNO = re.compile(r"\berrno = (\d+)")
_DISK_ERRORS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)
)
_LIMITS = (
    (resource.RLIMIT_AS, "-v", "the address space of a process is limited to", (errno.ENOMEM,)),
    (resource.RLIMIT_DATA, "-d", "the private memory of a process is limited to", (errno.ENOMEM,)),
    (resource.RLIMIT_FSIZE, "-f", "files are limited to", (errno.EFBIG,)),
    (resource.RLIMIT_NOFILE, "-n", "the open files of a process are limited to", (errno.EMFILE,)),
)
_NO_COMMAND_LINE = (
    "the code ended its process. It is imported, without a command line: what argparse would read there, the function "
    "gets from `params:` in the job file"
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class DataError(ValueError):
    """The data's type or structure is not supported for training; the message names it."""


def describe_limit(
    error: BaseException | None, limit_of: Callable[[int], tuple[int, int]] = resource.getrlimit
) -> str:
    """Name the limit of this process that caused an error, such as that of `ulimit -v`; empty if none did.

    Args:
        error: The error; its causes are considered too.
        limit_of: Returns the soft and the hard limit of a resource.
    """
    for cause in _causes(error):
        number = getattr(cause, "errno", None)  # ZeroMQ's errors have one, too
        for limit, option, words, causes in _LIMITS:
            if not (number in causes or (errno.ENOMEM in causes and isinstance(cause, MemoryError))):
                continue
            soft, _ = limit_of(limit)
            if soft != resource.RLIM_INFINITY:
                amount = f"{soft}" if limit == resource.RLIMIT_NOFILE else f"{soft / 1e9:.3g} GB"
                return f"{words} {amount}, by `ulimit {option}`, which is not enough ({_named(cause)})"
    return ""


def _named(error: BaseException) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def describe_failure(error: BaseException, job_dir: str) -> tuple[str, str]:
    """Describe an exception by its failure kind and one line of text.

    The text begins with the file and line of the user's code, if that is in the job's folder.
    """
    if limit := describe_limit(error):
        return "limit", limit
    if isinstance(error, (NotSupportedError, DataError)):
        return "unsupported", str(error)
    if isinstance(error, ScavengerError):
        return "code", str(error)
    message = _ANSI.sub("", str(error))
    essence = _essence(message)
    text = f"{type(error).__name__}: {essence}" if essence else type(error).__name__
    if isinstance(error, SystemExit):
        text += f"; {_NO_COMMAND_LINE}"
    mine = (
        one for one in reversed(frames_of(error, job_dir)) if one.file and not Path(one.file).is_absolute()
    )
    last = next(mine, None)
    return "code", text if last is None else f"{last.file}:{last.line}: {text}"


def masked_frames(error: BaseException, job_dir: str) -> tuple[Frame, ...]:
    """The frames of the user's code in an error, without secrets, ready to be sent."""
    return tuple(replace(one, code=mask(one.code)) for one in frames_of(error, job_dir))


def describe_disk_failure(error: BaseException | None) -> str:
    """Describe a disk error, such as "No space left on device"; empty if the disk did not cause the error.

    HDF5 reports the system's error number only in its text, and Keras raises other exceptions while it handles one.
    """
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if number is None and (found := _HDF5_ERRNO.search(str(cause))):
            number = int(found[1])
        if number in _DISK_ERRORS:
            return os.strerror(number)
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def error_of(
    kind: str, message: str, *, process: str, log: Path, frames: tuple[Frame, ...] = ()
) -> ScavengerError:
    """Turn the failure that a process reported into the error that ends the job."""
    match kind:
        case "code":
            return TrainingCodeError(f"the training code failed: {message} (log: {log})", frames=frames)
        case "mismatch" | "data":
            return TrainingCodeError(message, frames=frames)
        case "unsupported":
            return NotSupportedError(message)
        case "nonfinite":
            return NonFiniteError(message)
        case "limit":
            return TransientError(f"{process}: {message}")
        case "restore":
            return ScavengerError(message)
        case _:
            return ScavengerError(f"{process} failed: {message} (log: {log})")


def _essence(message: str) -> str:
    """Find the line of an error's text that states the cause: Keras and TensorFlow put other lines before it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if lines[:1] == ["in user code:"]:
        last = max((index for index, line in enumerate(lines) if _FRAME.match(line)), default=-1)
        lines = lines[last + 2 :] or lines[-1:]
    line = next((line for line in lines if not any(words in line for words in _WRAPPINGS)), "")
    return _NODES.sub("", line)
