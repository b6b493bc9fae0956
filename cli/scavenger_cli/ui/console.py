"""Output of all commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from scavenger.api.values import SCHEMA_VERSION, Answer, document, plain
from scavenger.errors import ScavengerError
from scavenger.frames import Frame
from scavenger.masking import mask
from scavenger.presentation.formatting import clean, traceback_lines
from scavenger_cli.ui.outlet import has_room

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

__all__ = [
    "PLAIN_WIDTH",
    "SCHEMA_VERSION",
    "ask",
    "console",
    "emit",
    "emit_json",
    "error",
    "is_interactive",
    "is_terminal",
    "note",
    "plain",
    "prepare_streams",
    "silence",
    "unbroken",
    "write",
]

UNREAD_S = 5.0
"""Longest wait until stderr is read."""
PLAIN_WIDTH = 80
"""Columns of output to a file or pipe, where no terminal tells its width."""

_PLAIN = {"×": "x", "–": "-", "—": "-", "…": ".", "≥": ">", "≤": "<", "±": "~", "·": ".", "γ": "g", "φ": "p"}
_HANDLER = "scavenger-plain"


def _plain(fault: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replaces a character that the stream cannot encode by one plain one, to keep columns."""
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    lost = fault.object[fault.start : fault.end]
    replaced = (_PLAIN.get(c) or unicodedata.normalize("NFKD", c)[:1] for c in lost)
    return "".join(c if c.isascii() else "?" for c in replaced), fault.end


def prepare_streams() -> None:
    """Let stdout and stderr replace what their encoding cannot express instead of failing."""
    codecs.register_error(_HANDLER, _plain)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=_HANDLER)


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null, so that no file of the program gets their descriptors."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(nowhere)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can redraw a line."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except ValueError:  # closed
        return False


def is_interactive() -> bool:
    """Whether a question can be asked and answered; questions go to stderr."""
    try:
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    except ValueError:
        return False


def console(stream: TextIO) -> Console:
    """A rich console that interprets no text as markup, and colours only terminals (without NO_COLOR)."""
    from rich.console import Console

    terminal = is_terminal(stream)
    return Console(
        file=stream,
        force_terminal=terminal,
        width=None if terminal else PLAIN_WIDTH,
        color_system="auto" if terminal else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def emit(*parts: RenderableType, stream: TextIO | None = None) -> None:
    """Print renderables to `stream` (default: stdout), without trailing spaces if it is not a terminal."""
    target = sys.stdout if stream is None else stream
    out = console(target)
    with _while_read(target):
        if out.is_terminal:
            _print(out, parts)
            return
        with out.capture() as captured:
            _print(out, parts)
        write(target, "\n".join(line.rstrip() for line in captured.get().split("\n")))


def _print(out: Console, parts: Iterable[RenderableType]) -> None:
    """Print each part with its own wrapping, which rich ignores for texts: paths must stay on one line."""
    from rich.text import Text

    for part in parts:
        text = Text(part) if isinstance(part, str) else part
        if isinstance(text, Text) and not text.no_wrap:
            out.print(unbroken(text, out.width), no_wrap=True, overflow="ignore", crop=False)
            continue
        out.print(
            text, no_wrap=getattr(text, "no_wrap", None), overflow=getattr(text, "overflow", None), crop=False
        )


def unbroken(text: Text, width: int) -> Text:
    """The text in lines of `width` columns, longer only where a single word is, so that paths can be copied."""
    from rich.cells import cell_len
    from rich.text import Text

    lines = []
    for line in text.split("\n", allow_blank=True):
        breaks, column = [], len(line.plain) - len(line.plain.lstrip())
        for index, word in enumerate(re.finditer(r"\S+\s*", line.plain)):
            if index and column + cell_len(word[0].rstrip()) > width:
                breaks.append(word.start())
                column = 0
            column += cell_len(word[0])
        for part in line.divide(breaks):
            part.rstrip()
            lines.append(part)
    return Text("\n").join(lines)


def emit_json(values: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout, in ASCII, so that no encoding or terminal can change it."""
    write(sys.stdout, json.dumps(values, ensure_ascii=True, allow_nan=False, indent=1) + "\n")


def emit_answer(answer: Answer, *without: str) -> None:
    """Print an answer as JSON, without a place in a list, which commands do not take, and what else is named."""
    emit_json({name: one for name, one in document(answer).items() if name not in ("next", *without)})


def note(message: object) -> None:
    """Print one line on stderr."""
    write(sys.stderr, clean(mask(str(message))) + "\n")


def error(message: object, *, frames: Sequence[Frame] = ()) -> None:
    """Print `scavenger: error: ...` on stderr, in one line, below the frames of the user's code where it failed."""
    if lines := traceback_lines(frames):
        write(sys.stderr, "".join(f"{line}\n" for line in lines))
    note(f"scavenger: error: {message}")


def write(stream: TextIO, text: str) -> bool:
    """Write and flush. Once the reader is gone, the rest is dropped, and the command's result does not change.

    Text for stderr is left out if stderr is not read, so that the command still ends.

    Returns:
        False if the reader is gone or does not read.

    Raises:
        ScavengerError: The text cannot be written for another reason, such as a full disk.
    """
    if stream is sys.stderr and not has_room(stream, UNREAD_S):
        return False
    with _while_read(stream):
        stream.write(text)
        stream.flush()
        return True
    return False


@contextmanager
def _while_read(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        silence(stream)
        if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):  # a closed pipe, terminal or file
            raise ScavengerError(f"the output cannot be written: {error.strerror}") from error


def silence(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that the interpreter's last flush does not fail either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def ask(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; any answer but yes means no."""
    sys.stderr.write(f"{clean(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
