"""The recipe for containers: a server starts in a new one, with the variables that the recipe sets."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scavenger.control.settings import load_settings, parse_settings, settings_path
from scavenger.domain.submission import NewSubmission
from scavenger.store import Store

RECIPE = Path(__file__).parents[2] / "examples/service/Containerfile"
STATE = "/var/lib/scavenger"


def test_a_new_container_has_what_its_variables_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCAVENGER_CONFIG", raising=False)
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", RECIPE.read_text(), flags=re.MULTILINE)
    given = dict(pair.split("=", 1) for pair in block.replace("\\\n", " ").split())
    assert f"VOLUME {STATE}\n" in RECIPE.read_text()
    for name, value in given.items():
        if name != "PATH":
            monkeypatch.setenv(name, value.replace(STATE, str(tmp_path)))

    assert settings_path().is_relative_to(tmp_path)
    assert load_settings() == parse_settings("", path="config.toml")
    with Store.open() as store:
        assert store.path is not None
        assert store.path.is_relative_to(tmp_path)
        monkeypatch.setattr("socket.gethostname", lambda: "0a1b2c3d4e5f")
        one = store.submit(NewSubmission("tiny", {}, "/jobs/job.yaml", "ann", "0a1b2c3d4e5f", 1000))
    # the next container of the volume has another host name, and the jobs of the one before
    monkeypatch.setattr("socket.gethostname", lambda: "f5e4d3c2b1a0")
    with Store.open() as store:
        assert [found.id for found in store.backlog("f5e4d3c2b1a0", 1000, None).queued] == [one.id]


def test_the_recipe_copies_what_there_is_and_installs_extras_that_there_are() -> None:
    root, text = RECIPE.parents[2], RECIPE.read_text()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    copied = [
        word
        for line in re.findall(r"^COPY (?!--)(.*)$", text, flags=re.MULTILINE)
        for word in line.split()[:-1]
    ]
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", text)

    assert copied
    assert all((root / name).exists() for name in copied)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert {"server", "kubernetes"} <= set(extras.split(","))
    (program,) = re.findall(r'^ENTRYPOINT \["([^"]+)"', text, flags=re.MULTILINE)
    assert {program, "scavenger-vm"} <= set(project["scripts"])
    assert re.search(r"^USER [1-9]", text, flags=re.MULTILINE)
