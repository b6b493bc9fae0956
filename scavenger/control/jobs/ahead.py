"""Begins what the start of a Keras job on this machine waits for longest, before what else comes first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scavenger.control.jobs.variables import settled_variables
from scavenger.control.places.kinds import kind_of
from scavenger.control.places.needs import Kind, Where, where_workers_are
from scavenger.domain.environment import plain
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError
from scavenger.train.engines.warm import WarmServers


def begin_ahead(
    job: JobSpec, job_file: Path, warm: WarmServers, environ: Mapping[str, str] = os.environ
) -> None:
    """Have TensorFlow be imported from now on, if the job's workers will be forked from a process that has.

    It takes seconds of a processor, as all does that is imported, checked and opened before the job's processes start.

    Args:
        warm: As of `prepare_job`; whoever closes it ends what has begun.
    """
    forks = where_workers_are(job) is Where.HERE and job.aggregation == "own"
    if forks and kind_of(job, job_file.resolve().parent) is Kind.KERAS:
        with suppress(ConfigurationError, OSError):  # which is told when the job is prepared, or starts
            warm.begin(plain(settled_variables(job, environ).env), job.secrets)
