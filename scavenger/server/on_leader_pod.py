"""The program of a leader's pod: serves one job and the API, in TLS, to who reaches it through the API server.

What it is told is mounted into the pod. What it writes is in the folder of its record on the pod's volume: if that is
kept, the next pod of the record goes on with what is there.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import logging
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from scavenger import logs
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.platform import prepare_job
from scavenger.control.jobs.recovered import record_of_checkpoints
from scavenger.control.leading.configuration import POD_FILES, POD_VARIABLE, PodLeaderConfiguration
from scavenger.control.service.place import sole_in
from scavenger.control.service.server import Server, serve
from scavenger.control.service.submitting import new_submission, resubmission
from scavenger.domain.submission import GivenEnvironment
from scavenger.private_files import make_private_folder
from scavenger.server.leader_process import exit_status_of
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from scavenger.store.owner import this_process

log = logging.getLogger("scavenger.server.on_leader_pod")  # this module may be `__main__`


def lead(configuration: PodLeaderConfiguration, given: Path, folder: Path) -> None:
    """Serve until there has been nothing to do for the configured time.

    Args:
        configuration: From the command.
        given: Folder with what the command has sent.
        folder: For the job, the store and the outputs.

    Raises:
        ScavengerError: The store or the port cannot be used, or the job is invalid.
    """
    job = _job_folder(given, folder) / "job.yaml"
    make_private_folder(folder / "store")
    with sole_in(folder) as held, Store.open(f"sqlite:///{folder / 'store' / 'scavenger.db'}") as store:
        store.adopt_installation(configuration.owner)
        _take_token(store, (given / POD_FILES.token).read_text())
        if not store.submissions(1):
            secrets = json.loads((given / POD_FILES.environment).read_text())
            _submit(store, configuration, job, secrets)
        settings = ServerSettings(
            host="0.0.0.0",  # noqa: S104 - of a pod, which policies of the network guard
            port=configuration.port,
            allowed_hosts=configuration.hosts,
            certificate=given / POD_FILES.certificate,
            key=given / POD_FILES.key,
        )
        with serving(store, settings) as address:
            serve(Server(store, idle_s=configuration.idle_s, address=address, held=held))


def _job_folder(given: Path, folder: Path) -> Path:
    """The job's folder: what was sent, unless an earlier pod has begun with it."""
    job, fresh = folder / "job", folder / "job.new"
    if (job / "job.yaml").is_file():
        return job
    shutil.rmtree(fresh, ignore_errors=True)
    make_private_folder(fresh)
    packed = gzip.decompress(base64.b64decode((given / POD_FILES.job).read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(fresh, filter="data")
    shutil.copyfile(given / POD_FILES.document, fresh / "job.yaml")
    os.replace(fresh, job)
    return job


def _take_token(store: Store, text: str) -> None:
    if store.caller(text) is None:
        user = this_process().user
        store.set_user(user, "admin")
        store.new_token(user, "of the command that has started this pod", text=text)


def _submit(
    store: Store, configuration: PodLeaderConfiguration, path: Path, secrets: Mapping[str, str]
) -> None:
    prepared = prepare_job(load_job(path), path, environ={**os.environ, **secrets})
    environment = GivenEnvironment(secrets, whole=False) if secrets else None
    if configuration.recover:
        store.recover_job(record_of_checkpoints(configuration.recover, path))
        job, audit = store.job(configuration.job_id), configuration.audit
        store.submit(resubmission(job, None, rents=True, audit=audit, environment=environment))
        return
    store.submit(
        new_submission(
            prepared,
            audit=configuration.audit,
            priority=configuration.priority,
            idempotency_key=configuration.id,
            environment=environment,
        )
    )


def main() -> int:
    """Read what the command has sent, then lead; returns the exit status."""
    given = Path(os.environ.get(POD_VARIABLE, "."))

    def begin() -> None:
        text = (given / POD_FILES.configuration).read_bytes()
        configuration = msgspec.json.decode(text, type=PodLeaderConfiguration)
        logs.set_up("leader", logs.read_settings())
        lead(configuration, given, Path.home() / "leaders" / configuration.id)

    return exit_status_of(begin, given)


if __name__ == "__main__":
    sys.exit(main())
