"""The notebook and the notes for those who come from elsewhere: their code runs, and their job files are valid."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

from scavenger.control.job_file.load import parse_job

NOTEBOOK = json.loads((ROOT / "docs" / "tutorials" / "notebook.ipynb").read_text())
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
LINES = [line for cell in CELLS for line in cell.splitlines() if line]


def test_the_notebook_is_short_and_without_outputs() -> None:
    assert len(LINES) <= 10
    for cell in NOTEBOOK["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_its_page_shows_the_same_lines() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "notebook.md").read_text(), re.DOTALL)
    assert [line for line in block.splitlines() if line] == LINES


def test_job_files_for_those_who_come_from_elsewhere_are_valid() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        assert parse_job(block, path="coming-from.md").name


def test_forms_of_their_tables_are_valid() -> None:
    """Each `key: ...` of the right column is a part of a job file."""
    page = (ROOT / "docs" / "coming-from.md").read_text()
    keys = r"(?:infra|resources|spot|search|objective|goal|checkpoint|elastic|engine|leader): "
    found = [
        one
        for line in page.splitlines()
        if line.startswith("| ")
        for one in re.findall(rf"`({keys}[^`]+)`", line.rsplit(" | ", 1)[-1])
        if "..." not in one
    ]
    needed = {"version": "1", "name": "x", "train": "train:job", "goal": "{max_epochs: 9}"}
    assert len(found) >= 10
    for one in found:
        key, _, value = one.partition(": ")
        text = "\n".join(f"{name}: {given}" for name, given in {**needed, key: value}.items())
        assert parse_job(text, path=one).name == "x"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells run one after the other in one program; a line after ! is a command."""
    program = "import subprocess\n"
    for cell in CELLS:
        for line in cell.splitlines():
            program += (
                f"subprocess.run({line[1:]!r}, shell=True, check=True)\n" if line[:1] == "!" else f"{line}\n"
            )
    program += "assert run.state == 'succeeded' and run.cost_usd > 0.0\nprint(plan, run)\n"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-3000:]}"
