"""Where a job runs, and that nothing is touched before it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.platform import PreparedJob, prepare_job
from scavenger.control.provisioning.cloud_resources import ADDRESS_VARIABLE
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Observer
from scavenger.errors import ConfigurationError, NotSupportedError
from scavenger.store import Store

CLOUD = {"infra": "aws/us-east-1", "resources": {"vm": "c5.large"}}


def prepared(folder: Path, **sections: Any) -> PreparedJob:
    (folder / "train.py").touch()
    job = JobSpec.model_validate(
        {
            "version": 1,
            "name": "tiny",
            "train": "train:job",
            "goal": {"max_epochs": 2},
            "search": {"workers": "1..2", "batch_size": [64]},
            **sections,
        }
    )
    return prepare_job(job, folder / "job.yaml")


def test_on_this_machine_nothing_is_rented(tmp_path: Path) -> None:
    platform = prepared(tmp_path).platform

    assert (platform.rents, platform.aggregators, platform.notes) == (False, None, ())
    assert {offer.provider for offer in platform.space.offers} == {"local"}


def test_on_a_cloud_vms_are_rented_and_one_for_the_aggregators(tmp_path: Path) -> None:
    platform = prepared(tmp_path, **CLOUD).platform

    assert platform.rents
    assert [offer.vm for offer in platform.space.offers] == ["c5.large"]
    assert platform.aggregators is not None
    assert not platform.aggregators.spot


def test_what_cannot_run_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="spot"):
        prepared(tmp_path, spot="always")
    with pytest.raises(ConfigurationError, match=r"absent\.py"):
        prepared(tmp_path, train="absent:job")


@pytest.mark.parametrize(
    "url", ["memory://here", "leader:///here", "http://host/here", "HTTPS://me:pw@host/here"]
)
def test_a_location_that_cannot_hold_checkpoints_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"checkpoint\.path: .*name a folder or a bucket") as caught:
        prepared(tmp_path, checkpoint={"path": url})
    assert "pw" not in str(caught.value)


def test_folders_and_buckets_may_hold_checkpoints(tmp_path: Path) -> None:
    for path in ("./checkpoints", "s3://bucket/job", "file:///data/job"):
        prepared(tmp_path, checkpoint={"path": path})


def test_a_job_on_a_cloud_that_vms_cannot_reach_is_refused_when_it_is_run_and_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        run = JobRun(prepared(tmp_path, **CLOUD), store=store, observer=Observer(), run=True, confirm=None)
        assert (run.processes, run.vms) == (0, 0)
        run.kill_now()  # of nothing

        with pytest.raises(ConfigurationError, match=ADDRESS_VARIABLE):
            run.run()
        assert store.jobs() == ()
