"""Rents the VM that leads a job, makes it a leader, and submits the job there."""

from __future__ import annotations

import io
import os
import shlex
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import msgspec

from scavenger.client import Client, ServerAddress, SubmitOptions
from scavenger.cloud.base import AdmittingProvider
from scavenger.cloud.boot.boot import image_script
from scavenger.cloud.boot.leader import (
    FOLDER,
    NOT_INSTALLED,
    LeaderAccess,
    leader_boot_script,
    leader_set_up_script,
)
from scavenger.cloud.boot.package import extras_of, own_package, own_wheel
from scavenger.control.jobs.variables import secrets_of
from scavenger.control.leading.caller import caller_networks
from scavenger.control.leading.configuration import (
    PRICES,
    LeaderConfiguration,
    environment_there,
    identity_files,
    job_there,
)
from scavenger.control.leading.keys import login_key, new_host_key
from scavenger.control.leading.pod_leader import LeaderOfPods, leader_secret, pod_name
from scavenger.control.leading.pod_tunnel import PodTunnel, through_api_server
from scavenger.control.leading.record import LeaderRecord, Leaders, job_id_of, not_ended
from scavenger.control.leading.renting import LeaderVm, LeaderVmSpec
from scavenger.control.leading.spent import book_leader
from scavenger.control.leading.ssh import FailedThereError, SshTarget, Tunnel, forwarded, run_there
from scavenger.control.leading.start import Start
from scavenger.control.provisioning.leader_meter import leader_text
from scavenger.control.provisioning.prices import PRICES_VARIABLE
from scavenger.control.provisioning.providers import open_provider
from scavenger.control.settings import cloud_settings
from scavenger.domain.capabilities import capabilities_of
from scavenger.domain.intent import Intent
from scavenger.domain.vm import VmPackage, VmSeen
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ScavengerError, TransientError
from scavenger.store import Store
from scavenger.train.engines.vm.job_archive import Archive

if TYPE_CHECKING:
    from scavenger.cloud.kubernetes.provider import KubernetesProvider

API_PORT = 8765
"""Of the leader's API, on the loopback of its VM."""
_TRY_S = 15.0
_UPLOAD_S, _SET_UP_S, _READY_S = 1800.0, 840.0, 120.0
"""Longest times; the VM ends itself 900 s after its launch unless the leader has begun."""
_LOOK_S = 0.5


def start_leader(
    start: Start,
    leaders: Leaders,
    books: Store,
    *,
    inform: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> LeaderRecord:
    """Rent the VM, make it the leader, and submit the job to it; if that fails, everything is ended again.

    Args:
        start: The job.
        leaders: Records of leaders on this machine.
        books: This machine's store, whose ledger gets what the VM has cost.
        inform: Shows progress to the user.
        environment: Environment variables of the command.

    Returns:
        The record of the leader, which needs this machine no more.

    Raises:
        ScavengerError: The job cannot be led there; nothing is left, or a line says what is.
    """
    if start.prepared.job.infra.capabilities.pods:
        return _start_pod(start, leaders, inform, environment)
    prepared, resources = start.prepared, start.resources
    key = login_key(leaders.folder)
    options, template = resources.leader_placement
    settings = replace(template.settings, logins_from=caller_networks(environment))
    host = new_host_key(leaders.folder)
    provider = cast(AdmittingProvider, resources.provider)
    public_key = key.with_suffix(".pub").read_text().strip()
    access = LeaderAccess(public_key, host.secret, API_PORT, provider.deletes_at)
    script = leader_boot_script(access, proxy=settings.proxy)
    spec = LeaderVmSpec(options, replace(template, settings=settings), script, prepared.job.limits.vms)
    record = _record(start, host_key=host.public)
    archive = Archive(prepared.folder, leave_out=(prepared.folder / prepared.job.output,))
    leaders.put(record)
    with leaders.open_store(record) as store:
        vm = LeaderVm(store, provider, inform=inform)
        store.create_job(record.name, spec=prepared.job.written(), job_file=record.job_file, job_id=record.id)
        try:
            return _Starting(start, leaders, store, archive, environment, inform).run(vm, spec, record)
        except BaseException:
            inform("the leader's VM is ended, as its job could not be started")
            for line in _undone(vm, leaders, record, books):
                inform(f"left behind: {line}; `scavenger gc` ends it")
            raise
        finally:
            archive.close()


def _record(start: Start, *, host_key: str = "", namespace: str = "", claim: str = "") -> LeaderRecord:
    prepared, provider = start.prepared, start.resources.provider
    checkpoint, plan = prepared.job.checkpoint, prepared.platform.leader
    return LeaderRecord(
        id=str(uuid.uuid4()),
        name=prepared.job.name,
        job_file=os.path.realpath(prepared.job_file),
        provider=provider.name,
        region=provider.region,
        output=str((prepared.folder / prepared.job.output).resolve()),
        checkpoints="" if checkpoint is None else checkpoint.path,
        checkpoint_every_s=600.0 if checkpoint is None else checkpoint.every,
        host_key=host_key,
        namespace=namespace,
        claim=claim,
        disk_usd_per_hour=0.0 if plan is None else plan.disk_usd_per_hour,
        before_usd=start.led_usd,
    )


def _start_pod(
    start: Start, leaders: Leaders, inform: Callable[[str], None], environment: Mapping[str, str]
) -> LeaderRecord:
    """See `start_leader`: as a pod."""
    settings = start.resources.settings
    assert isinstance(settings, KubernetesSettings)
    record = _record(start, namespace=settings.namespace, claim=settings.leader_claim)
    provider = cast("KubernetesProvider", start.resources.provider)
    leaders.put(record)
    with leaders.open_store(record) as store:
        owner = store.installation()
        store.create_job(
            record.name, spec=start.prepared.job.written(), job_file=record.job_file, job_id=record.id
        )
    pod = LeaderOfPods(provider, record)
    try:
        files, token = leader_secret(
            start, record, environment, owner=owner, host=provider.api.configuration.host
        )
        leaders.put_token(record, token)
        inform("starting the leader's pod")
        pod.start(start, files, environment, owner=owner)
        job_id = _led_by_pod(leaders, record)
    except BaseException:
        inform("the leader's pod is ended, as its job could not be started")
        try:
            left = pod.end(owner)
        except ScavengerError as error:
            left = (not_ended(record, error),)
        for line in left:
            inform(f"left behind: {line}; `scavenger leader end {record.id[:8]}` ends it")
        if left:
            leaders.change(record, ending=True)
        else:
            leaders.remove(record)
        raise
    inform(f"job {record.name} ({job_id[:8]}) is led there, and goes on without this machine")
    return leaders.change(record, job_id=job_id)


def restart_pod(
    start: Start,
    leaders: Leaders,
    record: LeaderRecord,
    *,
    inform: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> LeaderRecord:
    """Start a leader's pod again whose folder is on a volume; its job goes on.

    Raises:
        ScavengerError: It cannot be started; what there is stays.
    """
    provider = cast("KubernetesProvider", start.resources.provider)
    with leaders.open_store(record) as store:
        owner = store.installation()
    files, token = leader_secret(
        start, record, environment, owner=owner, host=provider.api.configuration.host
    )
    provider.drop_secret(pod_name(record))  # what it owned is lost, or ends with it
    leaders.put_token(record, token)
    inform("starting the leader's pod again")
    LeaderOfPods(provider, record).start(start, files, environment, owner=owner)
    _led_by_pod(leaders, record)
    inform(f"job {record.name} ({record.job_id[:8]}) goes on there")
    return record


def _led_by_pod(leaders: Leaders, record: LeaderRecord) -> str:
    """Wait until a leader's pod serves; returns the id of its job."""
    until_s = time.monotonic() + _SET_UP_S
    with api_of(leaders, record) as client:
        while True:
            try:
                if found := client.submissions(1)["submissions"]:
                    return job_id_of(found[0]["id"])
            except TransientError:  # it does not serve yet
                if time.monotonic() > until_s:
                    raise
            time.sleep(_LOOK_S)


def _undone(vm: LeaderVm, leaders: Leaders, record: LeaderRecord, books: Store) -> tuple[str, ...]:
    """End what was rented, and forget it, or keep on record that it is to be ended; returns what may be left."""
    try:
        record = book_leader(books, leaders, replace(record, ending=True), datetime.now(UTC), there=True)
        left = vm.end(record.id)
        book_leader(books, leaders, record, datetime.now(UTC), there=False)
    except ScavengerError as error:
        left = (not_ended(record, error),)
    if left:
        leaders.change(record, ending=True)
    else:
        leaders.remove(record)
    return left


@contextmanager
def tunnel_to(leaders: Leaders, record: LeaderRecord, *, here: int = 0) -> Iterator[Tunnel | PodTunnel]:
    """A port of this machine that leads to the API of a leader within the block.

    Raises:
        TransientError: The leader cannot be reached.
    """
    if not capabilities_of(record.provider).pods:
        with forwarded(leaders.target(record), API_PORT, here=here) as tunnel:
            yield tunnel
        return
    cluster = cluster_of(record)
    with through_api_server(cluster.api, record.namespace, pod_name(record), here=here) as way:
        yield way


def cluster_of(record: LeaderRecord, environment: Mapping[str, str] = os.environ) -> KubernetesProvider:
    """The cluster of a leader's pod."""
    settings = cloud_settings(record.provider, environment).model_copy(update={"namespace": record.namespace})
    found = open_provider(record.provider, record.region, environment, settings)
    return cast("KubernetesProvider", found)


@contextmanager
def api_of(leaders: Leaders, record: LeaderRecord) -> Iterator[Client]:
    """The API of a leader, through a port that is forwarded within the block.

    Raises:
        TransientError: The VM cannot be reached.
        NotFoundError: It was never set up.
    """
    token = leaders.token(record)
    with (
        tunnel_to(leaders, record) as tunnel,
        Client(ServerAddress(f"http://127.0.0.1:{tunnel.port}", token)) as client,
    ):
        yield client


class _Starting:
    """From the launch to the submission."""

    def __init__(
        self,
        start: Start,
        leaders: Leaders,
        store: Store,
        archive: Archive,
        environment: Mapping[str, str],
        inform: Callable[[str], None],
    ) -> None:
        self._start, self._leaders, self._store, self._archive = start, leaders, store, archive
        self._environment, self._inform = environment, inform
        checkpoint, folder = start.prepared.job.checkpoint, start.prepared.folder
        # also what the job's workers would install: its code reads data and checkpoints there, too
        extras = extras_of(folder, checkpoint.path if checkpoint else "")
        self._package: VmPackage = own_package({*extras, "server", start.prepared.job.infra.provider})

    def run(self, vm: LeaderVm, spec: LeaderVmSpec, record: LeaderRecord) -> LeaderRecord:
        """Rent the VM, set it up, and submit the job."""
        self._inform("renting the leader's VM")
        intent, seen = vm.rent(record.id, spec, lambda one: _lets_in(self._leaders, record, one))
        record = self._leaders.change(record, address=_address(seen))
        target = self._leaders.target(record)
        self._inform(f"the leader's VM is reached at {record.address}, and is set up")
        self._send(target, intent, seen)
        self._set_up(target)
        token = _token(target)
        self._leaders.put_token(record, token)
        with api_of(self._leaders, record) as client:
            job_id = self._submitted(client, record)
        self._inform(f"job {record.name} ({job_id[:8]}) is led there, and goes on without this machine")
        return self._leaders.change(record, job_id=job_id)

    def _set_up(self, target: SshTarget) -> None:
        """Install Scavenger there, unless its image has it, and start the leader."""
        try:
            run_there(target, f"sh {FOLDER}/set_up.sh", timeout_s=_SET_UP_S)
        except FailedThereError as error:
            if error.status != NOT_INSTALLED:
                raise
            raise TransientError(
                f"Scavenger cannot be installed on the leader's VM: {error.said}; it must reach a package index, or "
                "boot from an image that has Scavenger (docs/clouds.md, Images)"
            ) from error

    def _submitted(self, client: Client, record: LeaderRecord) -> str:
        """Submit the job, or let it go on; returns its id."""
        until_s, start, again = time.monotonic() + _READY_S, self._start, str(uuid.uuid4())
        own = secrets_of(start.prepared.job, self._environment)
        options = SubmitOptions(audit=start.audit, priority=start.priority, environment=own)
        while True:
            try:
                if start.job_id:
                    answer = client.resume(start.job_id, audit=start.audit, environment=own, key=again)
                else:
                    answer = client.submit(f"{FOLDER}/job/job.yaml", options, key=record.id)
                return job_id_of(answer["submission"]["id"])
            except TransientError:  # it has its token, and does not serve yet
                if time.monotonic() > until_s:
                    raise
                time.sleep(_LOOK_S)

    def _send(self, target: SshTarget, intent: Intent, seen: VmSeen) -> None:
        """Send the job's folder, then what is ours, which its files must not replace."""
        run_there(target, f"umask 077; mkdir -p {FOLDER}/job {FOLDER}/package")
        self._inform(f"the job's folder is sent to it: {self._archive.bytes / 2**20:.1f} MiB of at most 512")
        with tempfile.TemporaryFile(prefix="scavenger-") as file:
            while chunk := self._archive.read(file.tell(), 1 << 20):
                file.write(chunk)
            file.seek(0)
            run_there(target, f"tar -x -C {FOLDER}/job -f -", source=file, timeout_s=_UPLOAD_S)
        with tempfile.TemporaryFile(prefix="scavenger-") as file:
            _pack(file, self._files(intent, seen))
            file.seek(0)
            run_there(target, f"umask 077; tar -x -C {FOLDER} -f -", source=file, timeout_s=_UPLOAD_S)

    def _files(self, intent: Intent, seen: VmSeen) -> dict[str, bytes]:
        """What is ours, by the path in `FOLDER`."""
        wheel, resources, job = own_wheel(), self._start.resources, self._start.prepared.job
        settings, leader = resources.settings, resources.leader
        assert leader is not None
        launched = seen.launched_at or intent.times.created_at or datetime.now(UTC)
        prices = self._environment.get(PRICES_VARIABLE)
        configuration = LeaderConfiguration(
            owner=self._store.installation(),
            port=API_PORT,
            idle_s=job.limits.leader,
            environment=environment_there(
                self._environment,
                address=seen.address,
                leader=leader_text(seen.vm, leader.usd_per_hour, launched.timestamp(), seen.zone),
                folder=FOLDER,
                prices=bool(prices),
            ),
            recover=self._start.recover,
        )
        files = {
            "leader.json": msgspec.json.encode(configuration),
            "job/job.yaml": msgspec.json.encode(
                job_there(job, settings, folder=FOLDER, aside_usd=self._start.aside_usd)
            ),
            "set_up.sh": leader_set_up_script(self._package, proxy=settings.proxy).encode(),
            f"package/{wheel.name}": wheel.data,
            "package/constraints.txt": wheel.constraints.encode(),
            "package/install.sh": image_script(self._package).encode(),
        }
        if prices:
            files[PRICES] = Path(prices).read_bytes()
        files |= {name: path.read_bytes() for name, path in identity_files(settings).items()}
        return files


def _pack(file: IO[bytes], files: Mapping[str, bytes]) -> None:
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))


def _address(seen: VmSeen) -> str:
    return seen.public_address or seen.address


def _lets_in(leaders: Leaders, record: LeaderRecord, seen: VmSeen) -> bool:
    if not _address(seen):
        return False
    try:
        run_there(leaders.target(replace(record, address=_address(seen))), "true", timeout_s=_TRY_S)
    except TransientError:
        return False
    return True


def _token(target: SshTarget) -> str:
    """The command's token, which the leader writes before it serves."""
    tries = (
        f"for i in $(seq {int(_READY_S)}); do [ -s {FOLDER}/token ] && exec cat {FOLDER}/token; sleep 1; done"
    )
    return run_there(target, f"sh -c {shlex.quote(f'{tries}; exit 1')}", timeout_s=2 * _READY_S).strip()
