"""The user's own lines in a traceback: what of it tells where training code failed.

Lines of libraries and of Scavenger are folded into one: `... 14 frames of keras`.
"""

from __future__ import annotations

import itertools
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

FRAMES_MAX = 6
"""Most of the user's own frames that are told: a recursion has a thousand alike."""
OUTPUT_MAX = 5
"""Most last lines of a program's output that are told, if they hold no traceback."""
LINE_MAX = 200
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_OURS = str(Path(__file__).parent)
_YOURS = "your code"
_INSTALLED = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_GENERATED = "__autograph_generated_file"
"""What TensorFlow makes of a function; the message of its error names the function's own lines."""
_FRAME = re.compile(
    r'^\s*File "([^"\n]+)", line (\d+)(?:, in (\S+).*)?\n(?!\s*File ")(?:[ \t]+(.*))?', re.MULTILINE
)
_BEGIN = "Traceback (most recent call last):"
_PLACE = re.compile(r"(?<!\S)([^\s:]+\.py)((?::\d+)?: )")


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of the user's code, several frames of others in one, or a line of a program's output.

    Attributes:
        file: Absolute, or relative to the job's folder; empty if this is no line of the user's.
        line: 1-based; 0 if this is no line of the user's.
        function: That the line is in.
        code: The line itself, or the line of output.
        folded: How many frames this stands for; 0 for a line.
        of: Whose they are, such as `keras, tensorflow`.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""
    folded: int = 0
    of: str = ""


def frames_of(error: BaseException, folder: str) -> tuple[Frame, ...]:
    """The user's frames of an error, or of its nearest cause that has some; empty if there are none.

    Args:
        folder: Of the job: files in it are told relative to it.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        stack = [
            (one.filename, one.lineno or 0, one.name, one.line or "")
            for one in traceback.extract_tb(cause.__traceback__)
        ]
        if isinstance(cause, SyntaxError) and cause.filename:
            stack.append((cause.filename, cause.lineno or 0, "", (cause.text or "").strip()))
        places = {one[:2] for one in stack}
        # of what TensorFlow traced or called, only the message has the user's lines
        stack += [one for one in _frames_in(str(cause)) if one[:2] not in places]
        if found := _folded(stack, folder):
            return found
        cause = cause.__cause__ or cause.__context__
    return ()


def frames_in(output: Sequence[str], folder: str) -> tuple[tuple[Frame, ...], str]:
    """The user's frames of the last traceback in the lines that a program wrote, and the error that it names.

    Without a traceback, the last lines, and no error.
    """
    begin = max((i for i, line in enumerate(output) if _BEGIN in line), default=None)
    if begin is not None:
        column = output[begin].index(_BEGIN)  # a launcher writes its prefix before each line
        lines = [line[column:] for line in output[begin + 1 :]]
        end = next(
            (i for i, line in enumerate(lines) if line.strip() and not line.startswith(" ")), len(lines)
        )
        error = lines[end].strip() if end < len(lines) else ""
        if found := _folded(list(_frames_in("\n".join(lines[:end]))), folder):
            return found, error[:LINE_MAX]
    last = [line.rstrip()[:LINE_MAX] for line in output if line.strip()][-OUTPUT_MAX:]
    return tuple(Frame(code=line) for line in last), ""


def located(frames: Iterable[Frame], folder: Path) -> tuple[Frame, ...]:
    """The frames with absolute files, of a job in this folder."""
    return tuple(replace(one, file=str(folder / one.file)) if one.file else one for one in frames)


def told(frames: Sequence[Frame], directory: str | None = None) -> list[str]:
    """Lines for people, below a heading as Python's own, with files as they are named from a directory; none of none.

    Args:
        directory: None for the current one.
    """
    if not frames:
        return []
    code = any(one.file for one in frames)
    lines = ["your code failed here:" if code else "the last lines that your program wrote:"]
    for one in frames:
        if one.file:
            inside = f", in {one.function}" if one.function else ""
            lines.append(f'  File "{named_from(one.file, directory)}", line {one.line}{inside}')
            lines += [f"    {one.code}"] if one.code else []
        elif one.folded:
            lines.append(f"  ... {one.folded} {'frame' if one.folded == 1 else 'frames'} of {one.of}")
        else:
            lines.append(f"  | {one.code}")
    return lines


def named_from(file: str, directory: str | None = None) -> str:
    """An absolute path as it is named from a directory, or from its parent; other paths as they are."""
    if not os.path.isabs(file):
        return file
    try:
        path = os.path.relpath(file, directory or os.getcwd())
    except OSError:  # the current directory is gone
        return file
    return file if path.startswith(os.path.join(os.pardir, os.pardir)) else path


def placed(message: str, folder: Path) -> str:
    """A message that names a place in a folder, as `train.py:31: ` or `train.py: `, as the place is named from here."""

    def from_here(match: re.Match[str]) -> str:
        path = folder / match[1]
        return f"{named_from(str(path)) if path.is_file() else match[1]}{match[2]}"

    return _PLACE.sub(from_here, message, count=1)


def _frames_in(text: str) -> Iterator[tuple[str, int, str, str]]:
    for match in _FRAME.finditer(f"{text}\n"):
        yield match[1], int(match[2]), match[3] or "", (match[4] or "").strip()


def _folded(stack: Sequence[tuple[str, int, str, str]], folder: str) -> tuple[Frame, ...]:
    """The frames from the user's first on, the latest of the user's own; empty if there is none of the user's."""
    owned = [(_owner(one[0]), one) for one in stack]
    mine = [i for i, (owner, _) in enumerate(owned) if not owner]
    if not mine:
        return ()
    first = mine[-FRAMES_MAX:][0]
    earlier = len(mine) - min(len(mine), FRAMES_MAX)
    frames = [Frame(folded=earlier, of=_YOURS)] if earlier else []
    for theirs, group in itertools.groupby(owned[first:], key=lambda one: bool(one[0])):
        if theirs:
            owners = [owner for owner, _ in group]
            frames.append(Frame(folded=len(owners), of=", ".join(dict.fromkeys(owners))))
            continue
        for _, (file, line, function, code) in group:
            path = Path(file)
            name = str(path.relative_to(folder)) if path.is_relative_to(folder) else file
            frames.append(Frame(name, line, function, code.strip()[:LINE_MAX]))
    return tuple(frames)


def _owner(file: str) -> str:
    """The library that a file belongs to; empty for the user's."""
    if installed := _INSTALLED.search(file):
        return installed[1].removesuffix(".py")
    if _GENERATED in file:
        return "tensorflow"
    if Path(file).is_relative_to(_OURS):
        return "scavenger"
    if file.startswith("<") or Path(file).is_relative_to(_STANDARD_LIBRARY):
        return "Python"
    return ""
