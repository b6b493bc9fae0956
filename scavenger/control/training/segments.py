"""Segments of a journal: when its file is full it becomes a segment, which is compressed and read before the file."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from scavenger.private_files import private_opener

_COMPRESSED = ".gz"
_PARTIAL = ".partial"


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal, oldest first, without their ends, and without reading all of it into memory.

    Args:
        path: The journal's file, `FILE`. Its segments, `FILE.1.gz`, `FILE.2.gz` and so on, are in the same folder.

    Raises:
        OSError: If a segment cannot be read, or there is neither a segment nor the file.
        EOFError: If a compressed segment was cut off.
    """
    segments = _segments(path)
    for number in sorted(segments):
        with _opened(segments[number]) as file:
            yield from (line.rstrip(b"\n") for line in file)
    # it may be missing if the job was killed in the moment between two files
    if path.exists() or not segments:
        with path.open("rb") as file:
            yield from (line.rstrip(b"\n") for line in file)


def _opened(segment: Path) -> IO[bytes]:
    """A segment; the compressed one if it was just put in the place of that which was found."""
    if segment.suffix != _COMPRESSED:
        with contextlib.suppress(FileNotFoundError):
            return segment.open("rb")
        segment = segment.with_name(segment.name + _COMPRESSED)
    return cast(IO[bytes], gzip.open(segment, "rb"))


def next_segment(path: Path) -> Path:
    """Return the path of the next segment of a journal."""
    return path.with_name(f"{path.name}.{max(_segments(path), default=0) + 1}")


def compress_segments(path: Path) -> None:
    """Compress the segments of a journal that are not compressed yet; without disk space, they stay as they are."""
    for segment in _segments(path).values():
        if segment.suffix == _COMPRESSED:
            continue
        partial = segment.with_name(segment.name + _PARTIAL)
        with contextlib.suppress(OSError):
            try:
                with segment.open("rb") as plain, open(partial, "wb", opener=private_opener) as raw:
                    with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                        shutil.copyfileobj(plain, packed, 1 << 20)
                    raw.flush()
                    os.fsync(raw.fileno())
                partial.replace(segment.with_name(segment.name + _COMPRESSED))
                segment.unlink()
            finally:
                partial.unlink(missing_ok=True)


def _segments(path: Path) -> dict[int, Path]:
    """Return the segments of a journal by number: the one that is not compressed, if there are both."""
    found: dict[int, Path] = {}
    for file in sorted(path.parent.glob(f"{path.name}.*"), reverse=True):
        number = file.name.removeprefix(f"{path.name}.").removesuffix(_COMPRESSED)
        if number.isdecimal():
            found[int(number)] = file
    return found
