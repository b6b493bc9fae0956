"""A whole job on VMs whose image has what Scavenger requires and not Scavenger: each installs the leader's wheel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cloud_jobs import MakeJob, assert_nothing_left
from machines import unavailable
from rented import Rented, rented
from test_package_fetch import PROGRAMS

from scavenger.cloud.boot.package import own_wheel

pytestmark = [pytest.mark.slow, pytest.mark.root]


@pytest.fixture
def cloud() -> Iterator[Rented]:
    """With the leader's code on none of its VMs."""
    if reason := unavailable():
        pytest.skip(reason)
    with rented("aws", agent="", programs=PROGRAMS) as cloud:
        yield cloud


@pytest.mark.long
def test_a_job_trains_with_the_leaders_own_wheel(cloud: Rented, make_job: MakeJob) -> None:
    job = make_job(
        tiny=True,
        goal={"metric": "val_loss", "max_epochs": 3},
        search={"workers": 1, "batch_size": [32]},
        objective="time",
        profile={"steps": 8},
    )

    outcome = job.ended(job.start())

    assert outcome.code == 0, outcome.stderr
    said = [cloud.machine(vm.id).console() for vm in cloud.vms()]
    assert len(said) == 2
    assert all(f"scavenger: installing {own_wheel().name}" in words for words in said)
    assert_nothing_left(job)
