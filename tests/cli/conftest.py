"""A store of its own for each test, and the command line in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import cli_fake
import pytest
from cli_fake import JOB, Run
from scavenger_cli.main import main


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("SCAVENGER_STORE", url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SCAVENGER_DEBUG", raising=False)
    return url


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    (tmp_path / "train.py").write_text("")
    return path


@pytest.fixture
def scavenger(store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the command line with the driver's stand-in in this process; (exit code, stdout, stderr)."""

    def call(*arguments: object, mode: str = "finish") -> tuple[int, str, str]:
        for name in ("ahead", "job_run", "resume"):  # restored after the test
            monkeypatch.setitem(sys.modules, f"scavenger.control.jobs.{name}", sys)
        cli_fake.install(mode)
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return call
