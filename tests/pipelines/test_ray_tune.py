"""Ray Tune runs trials as jobs: a real Ray on this machine, whose processes begin and stop the jobs of a study."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from killed_examples import run_again_after_a_kill

from scavenger import Client
from scavenger.domain.operation import ScaleTo
from scavenger.store import Store

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_tune"

pytestmark = pytest.mark.slow


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """The environment of a program that starts Ray; what still writes to Ray's folder at the end is ended."""
    folder = tempfile.mkdtemp(prefix="scav-tune-")  # a socket's path may have 107 characters only
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "for-the-tests-of-this-machine-only"}
    yield {
        **os.environ,
        **token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": folder,
        "SCAVENGER_LOCAL_PRICE": "0.1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for process in psutil.process_iter():
        try:
            if any(file.path.startswith(folder) for file in process.open_files()):
                process.kill()
        except psutil.Error:
            continue
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(900)  # a Ray begins, which takes minutes on a busy machine
@pytest.mark.long
def test_the_promising_trial_gets_the_workers_of_the_one_that_is_stopped(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    program = Path(__file__).with_name("tune_program.py")
    ran = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])

    assert said["errors"] == 0
    assert said["best"] == {"learning_rate": 0.05}
    assert said["num_workers"] in (1, 2)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Client(store=url) as client, Store.open(url) as store:
        study = client.study("tuned", budget=1)
        (good,) = [one for one in study.trials if one.params["learning_rate"] == 0.05]
        (bad,) = [one for one in study.trials if one.params["learning_rate"] != 0.05]
        assert good.complete
        assert bad.pruned, "it was stopped in order, not killed"
        assert good.params["width"] == 16
        by_id = {one["job_id"]: one for one in said["results"]}
        assert by_id[good.id]["val_loss"] == pytest.approx(good.value)
        assert by_id[good.id]["cost_usd"] == pytest.approx(good.cost_usd)
        assert bad.cost_usd >= by_id[bad.id]["cost_usd"] > 0.0
        asked = [record.operation for record in store.operations(good.id) if record.state == "done"]
        assert ScaleTo(2) in asked
        assert all(record.operation == ScaleTo(1) for record in store.operations(bad.id))
    counts = [workers for _, workers in said["changes"]]
    assert counts[-1] == 2
    assert sorted(set(counts)) == [1, 2]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_example_goes_on_after_it_was_killed_within_its_budget(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    second = run_again_after_a_kill(
        tmp_path, EXAMPLE, 3, environment, told="completed after", midst_s=0.0, gone_s=5.0
    )

    assert "Study digits: " in second.stdout
    with Client(store=f"sqlite:///{tmp_path}/jobs.db") as client:
        study = client.study("digits", budget=1)
        assert sum(trial.complete for trial in study.trials) == 3
        jobs = client.records("digits")
        assert study.spent_usd == pytest.approx(sum(client.cost_of(job.id) for job in jobs))
        assert 0.0 < study.spent_usd <= 1.0
