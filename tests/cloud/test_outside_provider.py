"""A package outside adds a provider by an entry point, and everything that names providers knows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OUTSIDE = Path(__file__).parent / "outside"
JOB = """\
version: 1
name: tiny
train: train:job
goal: {max_epochs: 2}
infra: INFRA
resources: {vm: a8}
elastic: {min: 1, max: 4}
"""
TRAIN = "from scavenger import KerasJob\njob = KerasJob(model=lambda p: None, data=lambda p: None)\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def outside(tmp_path: Path) -> Run:
    """Runs the command where the package is installed; returns its exit code, output and messages."""
    (tmp_path / "config.toml").write_text('[acme]\naccount = "team"\n')
    (tmp_path / "train.py").write_text(TRAIN)

    def run(*words: object, infra: str = "acme/eu-1", **variables: str) -> tuple[int, str, str]:
        (tmp_path / "job.yaml").write_text(JOB.replace("INFRA", infra))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(OUTSIDE), str(OUTSIDE.parent), *sys.path]),
            "SCAVENGER_CONFIG": str(tmp_path / "config.toml"),
            "SCAVENGER_STORE": f"sqlite:///{tmp_path}/store.db",
            "SCAVENGER_ADDRESS": "127.0.0.1",
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-m", "scavenger_cli", *map(str, words)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_dry_run_plans_with_its_types_and_prices(outside: Run) -> None:
    code, out, err = outside("optimize", "job.yaml", "--dry-run", "-o", "json")

    assert (code, err) == (0, "")
    document = json.loads(out)
    (offer,) = document["offers"]
    assert (offer["vm"], offer["price_usd_per_hour"]) == ("a8", 0.4)


@pytest.mark.parametrize(
    ("infra", "told"),
    [
        ("acme/nowhere", "must say where, as acme/eu-1 or acme/eu-1a"),
        ("acmee/eu-1", "did you mean 'acme'?"),
        ("{at: acme/eu-1, acount: x}", "did you mean 'account'?"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(outside: Run, infra: str, told: str) -> None:
    code, _, err = outside("optimize", "job.yaml", "--dry-run", infra=infra)

    assert code == 2
    assert told in err.replace("\n", " ")


def test_what_its_machines_lack_is_refused(outside: Run, tmp_path: Path) -> None:
    for key, told in (("leader: vm", "lead no jobs"), ("spot: auto", "has no spot VMs")):
        code, _, err = outside("optimize", "job.yaml", "--dry-run", infra=f"acme/eu-1\n{key}")
        assert code == 2
        assert told in err


def test_doctor_and_the_schema_know_it(outside: Run, tmp_path: Path) -> None:
    code, out, _ = outside("doctor", "--infra", "acme/eu-1", "-o", "json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert checks["credentials"]["found"] == "the account at eu-1"
    assert checks["VM type"]["found"] == "a4 in eu-1a"
    assert checks["quotas"]["status"] == "ok"
    assert code == 0

    (tmp_path / "config.toml").write_text("")
    code, out, _ = outside("doctor", "--infra", "acme/eu-1")
    assert code == 1
    assert f"no account is named: set acme.account in {tmp_path}/config.toml" in out

    infra = json.loads(outside("schema", "job")[1])["properties"]["infra"]["anyOf"]
    assert "acme/[a-z]+-[0-9](?:[a-z])?" in infra[0]["pattern"]
    (keys,) = [one["properties"] for one in infra[1:] if "acme" in one["properties"]["at"]["pattern"]]
    assert "account" in keys


def test_a_package_that_cannot_be_imported_is_named_and_keeps_no_other_job_from_running(
    outside: Run, tmp_path: Path
) -> None:
    broken = tmp_path / "path" / "broken-1.0.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Name: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[scavenger.providers]\nother = no_such_module:KIND\n")
    path = os.pathsep.join([str(broken.parent), *sys.path])

    code, _, err = outside("optimize", "job.yaml", "--dry-run", infra="other/x", PYTHONPATH=path)
    assert code == 2
    assert "the provider other of broken cannot be loaded: no_such_module:KIND" in err.replace("\n", " ")
    (tmp_path / "config.toml").write_text("")
    code, _, err = outside("doctor", "--infra", "kubernetes", PYTHONPATH=path)
    assert "no_such_module" not in err
