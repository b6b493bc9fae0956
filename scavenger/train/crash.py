"""Whose code a process ran when a signal such as SIGSEGV killed it, by what `faulthandler` wrote into its log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scavenger.errors import ScavengerError, TrainingCodeError, WorkersLostError

Whose = Literal["theirs", "ours", "nobody's"]

_TAIL_BYTES = 1 << 18
"""What is read of the end of a log: the stacks of some hundred threads."""
_FATAL = "Fatal Python error: "
_CURRENT = re.compile(r"^Current thread .*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+)$')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r"/lib/python\d[\d.]*/|^<frozen ")
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Crash:
    """What a thread ran when it was killed.

    Attributes:
        whose: Whose the newest call is that is none of a library: of the training code, or Scavenger's own.
        place: That call, as `train.py:12, in build`; empty if no Python code ran.
        library: The package that it had called, in whose native code the signal came; empty if none.
    """

    whose: Whose
    place: str = ""
    library: str = ""


def crash_in(log: Path) -> Crash:
    """Read what the last crash in a process's log was of; nobody's if none is told there."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return Crash("nobody's")
    _, fatal, told = text.rpartition(_FATAL)
    found = _CURRENT.search(told) if fatal else None
    if found is None:
        return Crash("nobody's")
    library = ""
    for line in told[found.end() :].lstrip("\n").splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            break
        path = Path(frame["file"])
        ours = path.is_relative_to(_PACKAGE) or "/site-packages/scavenger/" in frame["file"]
        installed = _INSTALLED.search(frame["file"])
        if ours or not (installed or _STANDARD.search(frame["file"])):
            shown = "/".join(path.parts[path.parts.index("scavenger") :]) if ours else path.name
            return Crash(
                "ours" if ours else "theirs", f"{shown}:{frame['line']}, in {frame['name']}", library
            )
        library = library or (installed[1] if installed else "Python")
    return Crash("nobody's", library=library)


def crash_error(message: str, log: Path) -> ScavengerError:
    """The error that ends a job because workers were killed by signals of their own, such as SIGSEGV.

    Args:
        message: Which worker was killed by which signal, without an end.
    """
    crash = crash_in(log)
    inside = f", in native code of {crash.library}" if crash.library else ", in native code"
    match crash.whose:
        case "theirs":
            called = "called from" if crash.library else "at"
            within = inside if crash.library else ""
            return TrainingCodeError(
                f"the training code failed: {message}{within}, {called} {crash.place}; see {log}"
            )
        case "ours":
            return ScavengerError(
                f"{message}{inside}, called by Scavenger itself at {crash.place}; report it, with {log}"
            )
        case _:
            return WorkersLostError(
                f"{message}{inside}, and whose code called it is not known; see {log} for what it wrote last"
            )
