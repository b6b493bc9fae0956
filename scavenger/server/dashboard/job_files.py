"""Job files that a browser names or sends."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.prepared import PreparedJob, prepare_job
from scavenger.errors import ConfigurationError
from scavenger.private_files import private_opener


def preview_of(path: Path, text: str) -> PreparedJob:
    """The job that a text would be as the file at `path`; nothing stays on disk.

    Raises:
        ConfigurationError: The text is not a job file, or its folder does not have what it names.
    """
    _refuse_other_content(path, text)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".preview-", suffix=".yaml", dir=path.parent)
    except OSError as error:
        raise ConfigurationError(f"{path.parent}: {error.strerror}") from error
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return prepare_job(load_job(Path(name)), Path(name))
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace(name, str(path))) from error
    finally:
        os.unlink(name)


def save_job_file(path: Path, text: str) -> None:
    """Save the text as a new file; one that has just this text already is left as it is.

    Raises:
        ConfigurationError: There is a file with another content, or it cannot be written.
    """
    _refuse_other_content(path, text)
    with contextlib.suppress(FileExistsError):
        try:
            with open(path, "x", encoding="utf-8", opener=private_opener) as file:
                file.write(text)
        except FileExistsError:
            raise
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from error


def _refuse_other_content(path: Path, text: str) -> None:
    try:
        if path.exists() and path.read_bytes() != text.encode():
            raise ConfigurationError(f"{path} exists with another content; name another file")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
