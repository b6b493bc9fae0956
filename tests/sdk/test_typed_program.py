"""What is public is fully typed: a user's program passes a strict checker of types, and its mistakes do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("typed_program.py")
ROOT = Path(__file__).parents[2]


def findings(folder: Path, program: str) -> list[dict[str, Any]]:
    """What a strict check of types finds in a program of a user, who has Scavenger installed."""
    (folder / "program.py").write_text(program)
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "include": ["program.py"], "extraPaths": [str(ROOT)]})
    )
    command = [sys.executable, "-m", "basedpyright", "--project", str(folder), "--outputjson"]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] >= 1, done
    found: list[dict[str, Any]] = answer["generalDiagnostics"]
    return found


def test_a_program_with_everything_public_has_no_unknown_type(tmp_path: Path) -> None:
    assert findings(tmp_path, PROGRAM.read_text()) == []


def test_mistakes_are_found(tmp_path: Path) -> None:
    program = "import scavenger\nimport scavenger.sdk\n"
    for mistake in ("scavenger.Clinet()", "scavenger.sdk.KerasJop", 'scavenger.Client(budgt="$1")'):
        program += f"print({mistake})\n"

    lines = {one["range"]["start"]["line"] for one in findings(tmp_path, program)}

    assert lines == {2, 3, 4}
