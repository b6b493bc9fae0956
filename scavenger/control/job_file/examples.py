"""The examples that come with the package, and copies of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from scavenger.errors import ConfigurationError

JOB_FILE = "job.yaml"


class Example(StrEnum):
    """The folder of an example."""

    STARTER = "starter"
    DIGITS = "digits"
    CHARLM = "charlm"
    OWN_LOOP = "own_loop"
    TORCH_DIGITS = "torch_digits"
    COMMAND_TORCH = "command_torch"
    SCRIPT = "script"
    TORCH_SCRIPT = "torch_script"


def examples_path() -> Path:
    """The folder of the examples, inside the installed package or at the root of the repository.

    Raises:
        ConfigurationError: The installation does not have them.
    """
    package = Path(__file__).parents[2]
    for path in (package / "examples", package.parent / "examples"):
        if (path / Example.STARTER.value / JOB_FILE).is_file():
            return path
    raise ConfigurationError(f"this installation lacks {package / 'examples'}; install Scavenger again")


def example_texts(source: Path) -> dict[str, str]:
    """The files of an example by name; its commands name the files of its folder as seen from there."""
    paths = sorted(path for path in source.iterdir() if path.suffix in (".py", ".yaml"))
    return {path.name: path.read_text("utf-8").replace(f"examples/{source.name}/", "") for path in paths}


def copy_example(example: Example, folder: Path) -> None:
    """Copy an example as it is.

    Raises:
        ConfigurationError: If one of its files exists there, or cannot be written.
    """
    write_new(folder, example_texts(examples_path() / example.value))


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Refuse to write files of which one is there.

    Raises:
        ConfigurationError: If one is.
    """
    for name in names:
        if os.path.lexists(folder / name):
            raise ConfigurationError(f"{folder / name} exists; nothing was written: give another folder")


def write_new(folder: Path, texts: Mapping[str, str]) -> None:
    """Write all files, or none.

    Raises:
        ConfigurationError: If one exists, or cannot be written.
    """
    refuse_existing(folder, texts)
    written: list[Path] = []
    try:
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as stream:
                written.append(path)
                stream.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigurationError(f"{error.filename or folder}: {error.strerror or error}") from error
