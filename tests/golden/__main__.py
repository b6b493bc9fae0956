"""Writes the golden files again: `python -m tests.golden`."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.golden.documents import documents
from tests.golden.texts import FILES, texts

if __name__ == "__main__":
    os.environ.update(SCAVENGER_PRICE_REFRESH="never")  # as in tests
    with tempfile.TemporaryDirectory() as folder:
        made = texts()
        for name, place, text in documents(Path(folder)):
            if made.setdefault(name, text) != text:
                raise SystemExit(f"{name} differs by {place}; a command prints the same from both")
    for kind in {Path(name).parts[0] for name in made}:
        shutil.rmtree(FILES / kind, ignore_errors=True)
    for name, text in made.items():
        path = FILES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
