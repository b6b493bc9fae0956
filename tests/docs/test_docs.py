"""What the documentation shows is there: each command parses, tutorials run, and the site builds without a warning."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import PAGES, ROOT, TUTORIALS, commands_of, console_commands, python_blocks
from scavenger_cli.main import app

PROGRAM = typer.main.get_command(app)
EXTRAS = re.compile(r"scavenger-ml\[([\w,-]+)\]")


def parse(words: list[str]) -> None:
    """Parse the words of a command without running it, down to the command that they name.

    Raises:
        Exception: There is no such command or option, or an option lacks its value.
    """
    command: Any = PROGRAM
    context: Any = None
    while True:
        context = typer.Context(command, info_name=command.name, parent=context)
        _, rest, _ = command.make_parser(context).parse_args(list(words))
        commands = getattr(command, "commands", None)
        if commands is None or not rest:
            return
        assert rest[0] in (*commands, "VALUE"), f"there is no command {' '.join(rest)}"
        if rest[0] == "VALUE":
            return
        command, words = commands[rest[0]], rest[1:]


def test_every_command_on_any_page_is_there_with_its_options() -> None:
    wrong, count = [], 0
    for page in PAGES:
        for words in commands_of(page):
            count += 1
            try:
                parse(words)
            except Exception as error:  # noqa: BLE001 - whatever the parser finds wrong is told with its page
                wrong.append(f"{page.relative_to(ROOT)}: scavenger {' '.join(words)}: {error}")
    assert wrong == []
    assert count > 150


@pytest.mark.parametrize(
    "words", [["optimise"], ["optimize", "--fast"], ["jobs", "start"], ["api", "token", "--rol", "x"]]
)
def test_a_command_or_option_that_is_not_there_is_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"no command|[Nn]o such option"):
        parse(words)


def test_every_extra_that_is_to_be_installed_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in PAGES:
        for found in EXTRAS.findall(page.read_text()):
            assert set(found.split(",")) <= set(extras), page


def public_names(module: str) -> set[str]:
    """What a module of the project offers, read without importing it, and with it what it needs."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for statement in ast.parse(source.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value)) | {one.stem for one in path.glob("*.py")}
    return {one.stem for one in path.glob("*.py")}


def test_every_program_on_any_page_can_be_read_and_imports_what_is_there() -> None:
    wrong, count = [], 0
    for page in PAGES:
        for block in python_blocks(page):
            for one in ast.walk(ast.parse(block, filename=str(page))):
                if isinstance(one, ast.ImportFrom) and (one.module or "").partition(".")[0] == "scavenger":
                    count += 1
                    missing = {name.name for name in one.names} - public_names(str(one.module))
                    wrong += [
                        f"{page.relative_to(ROOT)}: from {one.module} import {name}" for name in missing
                    ]
    assert wrong == []
    assert count >= 10


def test_tutorials_show_commands() -> None:
    assert {page.stem for page in TUTORIALS} == {"quickstart", "first-job", "cloud-job", "service"}
    assert all(len(console_commands(page)) >= 3 for page in TUTORIALS)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_runs(page: Path, tmp_path: Path) -> None:
    """Its commands run in one shell, as a reader types them; what is to be installed is installed already."""
    commands = [one for one in console_commands(page) if not one.startswith("pip install")]
    script = "\n".join(["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *commands])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SCAVENGER_", "XDG_"))}
    env |= {"HOME": str(tmp_path), "SCAVENGER_PRICE_REFRESH": "never"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=800
    )
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert (built.returncode, built.stderr) == (0, "")
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text()
        )
        assert loaded == [], page
    for name in ("commands", "rest", "python"):
        assert len((tmp_path / "reference" / f"{name}.html").read_text()) > 50_000
