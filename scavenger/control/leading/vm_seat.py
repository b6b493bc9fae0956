"""The VM of a leader: rented as any VM is, with an intent on record before it is requested, and reached by SSH."""

from __future__ import annotations

import io
import math
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import IO, Any, Literal, cast

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
from scavenger.control.leading.caller import caller_networks
from scavenger.control.leading.configuration import DOCUMENT, LeaderConfiguration, sent_files
from scavenger.control.leading.keys import login_key, new_key
from scavenger.control.leading.seat import Seat, job_archive
from scavenger.control.leading.ssh import FailedThereError, Tunnel, forwarded, run_there
from scavenger.control.leading.start import LeaderStart
from scavenger.control.places.needs import Kind
from scavenger.control.provisioning import providers
from scavenger.control.provisioning.booting import with_script
from scavenger.control.provisioning.clean_up import CleanUp, Leftover
from scavenger.control.provisioning.fleet import new_boot_key
from scavenger.control.provisioning.leader_meter import leader_text
from scavenger.control.provisioning.ports import provisioning_of
from scavenger.control.provisioning.vm_group import VmGroup
from scavenger.domain.intent import FleetSpec, Intent, PlacementOption, VmSlot
from scavenger.domain.vm import LaunchTemplate, VmPackage, VmSeen
from scavenger.errors import CloudError, GoneError, QuotaError, TransientError
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.store import Store
from scavenger.train.engines.vm.job_archive import Archive

API_PORT = 8765
"""Of the leader's API, on the loopback of its VM."""
_LOOK_S, _TRY_S = 1.0, 15.0
_UPLOAD_S, _SET_UP_S, _FETCH_S = 1800.0, 840.0, 3600.0
"""Longest times; the VM ends itself 900 s after its launch unless the leader has begun."""
_FINAL = ("no_quota", "no_placement", "unaffordable", "loop", "credentials", "refused")
"""What no waiting changes."""


@dataclass(frozen=True, slots=True)
class LeaderVmSpec:
    """What is rented.

    Attributes:
        options: Placement options in the order to try.
        template: Of the launch, without user data.
        script: What cloud-init runs; it has a secret and is not stored.
        wait_max_s: Longest wait until a VM is there and lets the command in, seconds.
    """

    options: tuple[PlacementOption, ...]
    template: LaunchTemplate
    script: str
    wait_max_s: float


class VmSeat(Seat):
    """The VM of one leader.

    Args:
        config: Time limits and intervals of renting; None for the defaults.
    """

    kind = "VM"
    beginning = "renting the leader's VM"
    leading_states = ("pending", "running")
    folder = FOLDER

    def __init__(self, *arguments: Any, config: ProvisioningConfig | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._config = config

    @cached_property
    def provider(self) -> AdmittingProvider:
        """The cloud, in its region."""
        record = self.record
        found = self._provider or providers.open_provider(record.provider, record.region, self.environment)
        return cast(AdmittingProvider, found)

    # ---- its beginning -------------------------------------------------------------------------------------

    def prepare(self, start: LeaderStart) -> Callable[[str], None]:
        prepared = start.prepared
        options, template = start.resources.leader_placement
        settings = replace(template.settings, logins_from=caller_networks(self.environment))
        host, login = new_key(), login_key(self.leaders.folder)
        access = LeaderAccess(login, host.secret, API_PORT, self.provider.deletes_at)
        script = leader_boot_script(access, proxy=settings.proxy)
        spec = LeaderVmSpec(options, replace(template, settings=settings), script, prepared.job.limits.vms)
        checkpoint = prepared.job.checkpoint
        # also what the job's workers would install: its code reads data and checkpoints there, too
        path, of_keras = checkpoint.path if checkpoint else "", prepared.kind is Kind.KERAS
        extras = extras_of(prepared.folder, path, of_keras=of_keras)
        package = own_package({*extras, "server", prepared.job.infra.provider})
        archive = job_archive(start)

        def begin(token: str) -> None:
            with closing(archive):
                self.change(host_key=host.public)
                intent, seen = self.rent(spec, self._lets_in)
                self.change(address=_address(seen))
                self.inform(f"the leader's VM is reached at {self.record.address}, and is set up")
                self._send(archive, self._files(start, package, intent, seen, token))
                self._set_up()

        return begin

    def rent(self, spec: LeaderVmSpec, lets_in: Callable[[VmSeen], bool]) -> tuple[Intent, VmSeen]:
        """Rent the VM and wait until it lets the command in; a VM that does not is replaced.

        Args:
            spec: What is rented.
            lets_in: Tries to log in to a running VM, within seconds.

        Raises:
            TransientError, CloudError: None can be had, or none lets the command in.
        """
        with self.open_store() as store:
            group = VmGroup(
                store,
                self.provider,
                self.record.id,
                agents=None,  # the leader itself renews its VM
                show=self.inform,
                failing=self.beginning,
                config=self._config or provisioning_of(self.provider),
                booted=lambda request: with_script(request, spec.script),
            )
            group.want(
                FleetSpec(
                    job_id=self.record.id,
                    provider=self.provider.name,
                    region=self.provider.region,
                    slots=(VmSlot(LEADER_SLOT),),
                    options=spec.options,
                    template=spec.template,
                    vms_max=2,
                    budget_usd=math.inf,
                    boot_key=new_boot_key().hex(),
                )
            )
            group.start()
            try:
                return self._awaited(store, group, spec, lets_in)
            finally:
                group.stop()

    def _awaited(
        self, store: Store, group: VmGroup, spec: LeaderVmSpec, lets_in: Callable[[VmSeen], bool]
    ) -> tuple[Intent, VmSeen]:
        until_s, told, reason = self.clock() + spec.wait_max_s, "", "none was there in time"
        here = (self.provider.name, self.provider.region)
        while self.clock() < until_s:
            store.heartbeat(group.job_id)
            for kind, message in store.shortages(group.job_id, *here).items():
                if kind in _FINAL:
                    words = f"the leader's VM cannot be rented: {message}"
                    if kind == "no_quota":
                        raise QuotaError(words, quota=message, region=self.provider.region)
                    raise TransientError(words)
                reason = message
            for intent in group.read():
                if intent.state != "UP":
                    continue
                if told != intent.instance_id:
                    told = intent.instance_id
                    self.inform(f"the leader's VM is {told} ({intent.option}); it boots")
                vm = self._seen(intent)
                if vm is not None and vm.state == "running" and lets_in(vm):
                    store.acknowledge_vm(intent.id)
                    return intent, vm
            self.sleep(_LOOK_S)
        raise TransientError(f"no leader's VM after {spec.wait_max_s / 60:g} min: {reason}")

    def _seen(self, intent: Intent) -> VmSeen | None:
        """The VM; None if it is gone, or the cloud does not answer now."""
        try:
            return self.provider.describe(intent.instance_id, intent.request.zone)
        except CloudError as error:
            if not isinstance(error, GoneError):
                self.inform(f"the cloud does not show the leader's VM: {error}")
            return None

    def _lets_in(self, seen: VmSeen) -> bool:
        if not (address := _address(seen)):
            return False
        try:
            target = self.leaders.target(replace(self.record, address=address))
            run_there(target, "true", timeout_s=_TRY_S)
        except TransientError:
            return False
        return True

    def _files(
        self, start: LeaderStart, package: VmPackage, intent: Intent, seen: VmSeen, token: str
    ) -> dict[str, bytes]:
        """What is ours, by the path in `FOLDER`."""
        wheel, resources = own_wheel(), start.resources
        assert resources.leader is not None
        launched = seen.launched_at or intent.times.created_at or datetime.now(UTC)
        price = resources.leader.usd_per_hour
        files = sent_files(
            start,
            LeaderConfiguration(intent.request.tags.owner, API_PORT),
            self.environment,
            address=seen.address,
            leader=leader_text(seen.vm, price, launched.timestamp(), seen.zone),
            folder=FOLDER,
            token=token,
        )
        document = files.pop(DOCUMENT)
        return {
            **files,
            f"job/{DOCUMENT}": document,
            "set_up.sh": leader_set_up_script(package, proxy=resources.settings.proxy).encode(),
            f"package/{wheel.name}": wheel.data,
            "package/constraints.txt": wheel.constraints.encode(),
            "package/install.sh": image_script(package).encode(),
        }

    def _send(self, archive: Archive, files: Mapping[str, bytes]) -> None:
        """Send the job's folder, then what is ours, which its files must not replace."""
        target = self.leaders.target(self.record)
        run_there(target, f"umask 077; mkdir -p {FOLDER}/job {FOLDER}/package")
        self.inform(f"the job's folder is sent to it: {archive.bytes / 2**20:.1f} MiB of at most 512")
        with tempfile.TemporaryFile(prefix="scavenger-") as file:
            while chunk := archive.read(file.tell(), 1 << 20):
                file.write(chunk)
            file.seek(0)
            run_there(target, f"tar -x -C {FOLDER}/job -f -", source=file, timeout_s=_UPLOAD_S)
        with tempfile.TemporaryFile(prefix="scavenger-") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                for name, data in files.items():
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = len(data), 0o600
                    tar.addfile(info, io.BytesIO(data))
            file.seek(0)
            run_there(target, f"umask 077; tar -x -C {FOLDER} -f -", source=file, timeout_s=_UPLOAD_S)

    def _set_up(self) -> None:
        """Install Scavenger there, unless its image has it, and start the leader."""
        try:
            run_there(self.leaders.target(self.record), f"sh {FOLDER}/set_up.sh", timeout_s=_SET_UP_S)
        except FailedThereError as error:
            if error.status != NOT_INSTALLED:
                raise
            raise TransientError(
                f"Scavenger cannot be installed on the leader's VM: {error.said}; it must reach a package index, or "
                "boot from an image that has Scavenger (docs/clouds.md, Images)"
            ) from error

    # ---- while it leads ------------------------------------------------------------------------------------

    def tunnel(self, *, here: int = 0) -> AbstractContextManager[Tunnel]:
        return forwarded(self.leaders.target(self.record), API_PORT, here=here)

    def living(self) -> Intent | None:
        """The record of the VM; None if there is none any more."""
        with self.open_store() as store:
            found = [one for one in store.intents(living=True) if one.slot == LEADER_SLOT and one.instance_id]
        return found[-1] if found else None

    def look(self) -> Literal["there", "gone"]:
        if (intent := self.living()) is None:
            return "gone"
        try:
            seen = self.provider.describe(intent.instance_id, intent.request.zone)
        except GoneError:
            return "gone"
        return "gone" if seen.state in ("stopping", "gone") else "there"

    def let_in(self) -> None:
        super().let_in()
        if (intent := self.living()) is not None:
            networks = caller_networks(self.environment)
            settings = replace(intent.request.template.settings, logins_from=networks)
            template = replace(intent.request.template, settings=settings)
            self.provider.let_in(replace(intent.request, template=template))

    def fetch(self, job_id: str, file: IO[bytes]) -> None:
        # as a stream, since its disk may have no room for an archive
        command = f"tar -c -C {FOLDER}/job/.scavenger -f - {job_id}"
        run_there(self.leaders.target(self.record), command, sink=file, timeout_s=_FETCH_S)

    # ---- its end -------------------------------------------------------------------------------------------

    def is_leader(self, vm: VmSeen) -> bool:
        return vm.tags.slot == LEADER_SLOT

    def listed(self, owner: str) -> tuple[VmSeen, ...]:
        return self.provider.list_owned(owner)

    def clear(self, leftovers: Sequence[Leftover], *, limit_s: float | None = None) -> tuple[str, ...]:
        with self.open_store() as store:
            clean_up = CleanUp(store, self.provider, clock=self.clock, sleep=self.sleep)
            return clean_up.end(leftovers, limit_s=limit_s)

    def end(self) -> tuple[str, ...]:
        return self.clear(self.all_of_it("its leader is ended"))


def _address(seen: VmSeen) -> str:
    return seen.public_address or seen.address
