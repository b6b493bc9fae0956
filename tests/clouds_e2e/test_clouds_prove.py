"""`examples/clouds`: what somebody runs on an account of their own, tried where it costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cloud_jobs import MakeJob, assert_nothing_left
from real_jobs import ROOT
from rented import Rented

from scavenger.control.job_file.load import load_job

pytestmark = [pytest.mark.slow, pytest.mark.root]

CLOUDS = ROOT / "examples" / "clouds"


def test_the_example_jobs_may_be_run_under_a_dollar() -> None:
    for name in ("aws", "gcp"):
        job = load_job(ROOT / "examples" / "digits" / f"{name}.yaml")

        assert job.infra.provider == name
        assert (job.spot, job.constraints.budget) == ("auto", 0.5)


@pytest.mark.long
def test_the_proof_loses_a_worker_lists_the_cloud_itself_and_tells_what_was_paid(
    cloud: Rented, make_job: MakeJob
) -> None:
    example = load_job(ROOT / "examples" / "digits" / f"{cloud.name}.yaml")
    job = make_job(
        spot=example.spot,
        constraints={"budget": example.constraints.budget},
        search={"workers": 2, "batch_size": [32, 64]},
        goal={"metric": "val_accuracy", "target": 0.95, "max_epochs": 60, "epochs_hint": 10},
        profile={"steps": 8},
    )

    proof = subprocess.run(
        [sys.executable, str(CLOUDS / "prove.py"), cloud.name, "--lose-worker", "--job", str(job.file)],
        env={**job.whole_environment(), "SCAVENGER_STORE": job.store},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert proof.returncode == 0, proof.stdout + proof.stderr
    assert "prove: ended " in proof.stdout
    assert "prove: paid by the ledger: $0.00" in proof.stdout
    assert f"prove: 0 things left in {cloud.region}, by the cloud's own listing" in proof.stdout
    assert_nothing_left(job)


def test_the_proof_sees_what_is_left(cloud: Rented, make_job: MakeJob) -> None:
    """By its own listing, also where Scavenger would call it somebody else's."""
    job = make_job()
    left = subprocess.run(
        [
            sys.executable,
            "-c",
            "import json, sys; sys.path.insert(0, sys.argv[1]); import prove; from scavenger.store import Store\n"
            "from scavenger.control.provisioning.providers import open_provider\n"
            "from scavenger.domain.vm import LaunchTemplate, VmRequest, VmTags\n"
            "with Store.open() as store: owner = store.installation()\n"
            "name, region, vm, zone = sys.argv[2:]; token = '7d1c1f3e-9a0e-4f55-8d7b-52a1f2c3d4e5'\n"
            "tags = VmTags(owner, token, 'job', 0, 0)\n"
            "request = VmRequest(tags, vm, zone, False, LaunchTemplate(600.0))\n"
            "open_provider(name, region).launch(request); print(json.dumps(prove.CLOUDS[name](owner, region).left()))",
            str(CLOUDS),
            cloud.name,
            cloud.region,
            cloud.small,
            f"{cloud.region}{'' if cloud.name == 'aws' else '-'}a",
        ],
        env={**job.whole_environment(), "SCAVENGER_STORE": job.store},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert left.returncode == 0, left.stderr
    kinds = [each.split()[0] for each in json.loads(left.stdout)]
    assert kinds == (["VM", "disk", "security"] if cloud.name == "aws" else ["VM", "disk"])
