"""What the documentation shows is there: code parses, pages keep their form, tutorials run, the site builds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pool_transcripts
import pytest
import transcript_picture
import transcripts
import typer
import yaml
from pages import PAGES, ROOT, TUTORIALS, commands_of, console_commands, python_blocks
from scavenger_cli.main import app

from docs.site import checks, references
from scavenger.control.job_file.load import job_schema

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
        if commands is None:
            assert rest in ([], ["VALUE"]), f"there is no argument {' '.join(rest)}"
            return
        if not rest:
            return
        assert rest[0] in (*commands, "VALUE"), f"there is no command {' '.join(rest)}"
        if rest[0] == "VALUE":
            return
        command, words = commands[rest[0]], rest[1:]


def test_the_picture_of_the_transcript_is_drawn_as_curves_are_now() -> None:
    """`python -m tests.docs.transcript_picture` draws it anew."""
    assert transcript_picture.PICTURE.read_text("utf-8") == transcript_picture.drawn()


def test_what_a_pool_shows_on_a_page_is_what_it_shows_today() -> None:
    """`python -m tests.docs.pool_transcripts` writes it anew."""
    page = pool_transcripts.PAGE.read_text("utf-8")

    assert transcripts.written(page, pool_transcripts.TRANSCRIPTS) == page
    for make in pool_transcripts.TRANSCRIPTS.values():
        assert max(map(len, make().splitlines())) <= 80


def test_what_a_job_shows_on_a_page_is_what_it_shows_today() -> None:
    """`python -m tests.docs.transcripts` writes it anew."""
    page = transcripts.PAGE.read_text("utf-8")

    assert transcripts.written(page) == page
    for name, rows in (("display", 24), ("summary", 20)):
        made = transcripts.TRANSCRIPTS[name]().splitlines()
        assert len(made) <= rows
        assert max(map(len, made)) <= 80 or name == "summary"  # the path of a model is on one line


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
    "words",
    [
        ["optimise"],
        ["optimize", "--fast"],
        ["jobs", "start"],
        ["api", "token", "--rol", "x"],
        ["scale", "JOB", "4"],
    ],
)
def test_a_command_or_option_that_is_not_there_is_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"no command|no argument|[Nn]o such option"):
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_on_a_page_parses_and_the_page_keeps_its_form(page: Path) -> None:
    assert checks.faults(page, str(page.relative_to(ROOT))) == []


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("```python\nif True\n```", "expected ':'"),
        ("```yaml\nsearch: {worker: 1}\n```", "did you mean 'workers'"),
        ("```yaml\nname: [\n```", "flow"),
        ("```json\n{'a': 1}\n```", "double quotes"),
        ("```toml\na = \n```", "Invalid value"),
        ("```sh\nif true; done\n```", "syntax error"),
        ("```console\n$ echo 'a\n```", "unexpected EOF"),
        ("```\nscavenger status\n```", "name the language"),
    ],
)
def test_code_that_does_not_parse_is_found(block: str, words: str) -> None:
    (fault,) = checks.faults_of_code(f"# A page\n\n{block}\n")
    assert fault.startswith("3: ")
    assert words in fault


def test_tables_and_paragraphs_that_are_too_long_are_found() -> None:
    row = f"| {'a' * 160} |"
    assert [*checks.faults_of_form(f"# A\n\n{row}\n")] == [
        "3: a line of a table has 164 characters, more than 160"
    ]
    text = "word " * 200
    assert [*checks.faults_of_form(f"# A\n\n{text}\n")] == ["3: a paragraph has 9 lines, more than 8"]
    assert [*checks.faults_of_form(f"# A\n\n```text\n{row}\n{text}\n```\n")] == []
    assert not checks.begins_with_example("# A\n\nOnly words.\n")


def test_the_first_page_is_one() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    assert all(
        words in text for words in ("make demo", "make test", "pip install", "What has not been proven")
    )
    assert all(len(block.text.splitlines()) <= 12 for block in checks.blocks(text))
    assert (
        max(map(len, next(one for one in checks.blocks(text) if one.language == "text").text.splitlines()))
        <= 80
    )


def test_every_page_has_its_kind_in_the_index_and_in_the_site() -> None:
    """Tutorials, how-to, reference, explanation: the same pages under the same names."""
    index = (ROOT / "docs" / "README.md").read_text()
    named = {
        kind: set(re.findall(r"\]\((?!\.\.)([\w/-]+\.md)\)", section))
        for kind, section in re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL)
    }
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text())
    site = {
        kind: {page for entry in pages for page in entry.values()}
        for section in yaml.safe_load(text)["nav"]
        for kind, pages in section.items()
        if isinstance(pages, list)
    }
    for kind in ("Tutorials", "How to", "Reference", "Explanation"):
        made = {page for page in site[kind] if page.startswith(("reference/", "project/", "adr/"))}
        assert named[kind] == site[kind] - made, kind
    pages = {str(one.relative_to(ROOT / "docs")) for one in PAGES if one.is_relative_to(ROOT / "docs")}
    assert {one for one in pages if not one.startswith(("adr/", "reference/"))} == {
        "README.md", *(page for kind in named.values() for page in kind)
    }  # fmt: skip


def test_a_how_to_begins_with_its_command() -> None:
    """Or with the lines of a job file or a program that ask for it."""
    section = (ROOT / "docs" / "README.md").read_text().partition("## How to\n")[2].partition("\n## ")[0]
    for name in re.findall(r"\]\((?!\.\.)([\w/-]+\.md)\)", section):
        first = next(checks.blocks((ROOT / "docs" / name).read_text()))
        assert first.language in ("sh", "console", "yaml", "python", "diff"), name


def test_the_reference_of_the_job_file_has_every_key() -> None:
    text = references.job_file()
    for definition in (job_schema(), *job_schema()["$defs"].values()):
        for key, one in definition["properties"].items():
            assert f"**`{key}`**: {one.get('description', '')}" in text


def test_decisions_that_were_replaced_say_so_first_and_name_later_ones() -> None:
    folder, replaced = ROOT / "docs" / "adr", 0
    for page in folder.glob("0*.md"):
        first = page.read_text().split("\n\n", 2)[1]
        if first.startswith("Replaced"):
            targets = re.findall(r"\]\((\d{4}[\w-]+\.md)\)", first)
            assert targets, page
            assert all(target > page.name and (folder / target).is_file() for target in targets), page
            replaced += 1
    assert references.decisions(folder).count("(in part replaced by ") == replaced > 10


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
def test_the_job_of_the_first_page_trains(tmp_path: Path) -> None:
    blocks = {one.language: one.text for one in checks.blocks((ROOT / "README.md").read_text())}
    (tmp_path / "train.py").write_text(blocks["python"])
    (tmp_path / "job.yaml").write_text(blocks["yaml"])
    command = [sys.executable, "-m", "scavenger_cli", "optimize", "job.yaml", "--yes"]
    ran = subprocess.run(
        [*command, "--store", f"sqlite:///{tmp_path}/jobs.db"],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    assert "target 0.95 reached" in " ".join(ran.stdout.split())


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    # without --quiet, which takes the warnings away before --strict counts them
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert (built.returncode, "WARNING" in built.stderr) == (0, False), built.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text()
        )
        assert loaded == [], page
    for name in ("commands", "job-file", "rest", "python"):
        assert len((tmp_path / "reference" / f"{name}.html").read_text()) > 40_000
