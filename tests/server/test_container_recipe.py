"""The recipe for containers: a server starts in a new one, with the variables that the recipe sets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scavenger.control.settings import load_settings, parse_settings, settings_path
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
