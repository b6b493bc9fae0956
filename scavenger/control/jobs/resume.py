"""Resumes a job that ended before it reached its goal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scavenger.control.jobs.job_run import Confirm, JobRun
from scavenger.control.jobs.platform import prepare_job
from scavenger.control.jobs.resumption import find_resumption
from scavenger.control.provisioning.kept_vms import KeptVms
from scavenger.control.provisioning.leader_meter import recorded_leader
from scavenger.control.provisioning.traffic_counter import recorded_traffic
from scavenger.control.training.aggregation_share import recorded_share
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Observer
from scavenger.store import Store
from scavenger.train.engines.warm import WarmServers

__all__ = ["resume_job"]


def resume_job(
    job_id: str,
    *,
    store: Store,
    observer: Observer,
    confirm: Confirm | None,
    audit: bool = False,
    warm: WarmServers | None = None,
    kept: KeptVms | None = None,
) -> JobRun:
    """Prepare a job to continue from its newest checkpoint.

    The job keeps the specification that it was started with; later edits of its file apply to new jobs only.

    Args:
        confirm: Asked before the chosen configuration is paid for, if the search had not chosen yet.
        audit: See `JobRun`; an audit is complete only if every attempt had it.
        warm, kept: See `prepare_job`.

    Raises:
        ConfigurationError: If it cannot be resumed, or has no checkpoint that can be read.
        TransientError: If the job is running.
    """
    record = store.job(job_id)
    store.check_resumable(record)
    job, job_file = JobSpec.model_validate(record.spec), Path(record.job_file)
    journal = job_file.parent / job.output / record.id / "measurements.jsonl"
    prepared, resumed = prepare_job(job, job_file, warm=warm, kept=kept), find_resumption(record, journal)
    # what the last attempt recorded may be more than the bill, as its VMs may have ended before it knew
    if (spent_usd := prepared.platform.spent_usd(store.intents(record.id))) is not None:
        spent_usd += recorded_traffic(store, record.id).usd
        leader = recorded_leader(store, record.id)
        spent_usd += 0.0 if leader is None else leader.usd
        spent_usd += recorded_share(store, record.id).usd
        resumed = replace(resumed, before=replace(resumed.before, cost_usd=spent_usd))
    return JobRun(
        prepared,
        store=store,
        observer=observer,
        run=True,
        confirm=confirm,
        resumed=resumed,
        audit=audit,
    )
