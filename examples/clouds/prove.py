"""Checks on your own account, for under a dollar, that a cloud job trains, costs what it reports, and leaves nothing.

    python examples/clouds/prove.py aws|gcp [--lose-worker] [--job FILE] [--region REGION ...]

Runs `scavenger doctor` for the job's region, then `scavenger optimize` on `examples/digits/aws.yaml` or `gcp.yaml`,
whose budget is $0.50, with what its comments say set. Then the cloud's own client, and no code of Scavenger's, lists
what bears this installation's tag in the job's region and every other that is named: VMs, disks, security groups and
keys. Ends with 0 if the job succeeded and nothing is left.

`--lose-worker` deletes one worker's VM by the cloud's API while the job runs, which looks to the job like a failure: a
true interruption cannot be ordered (on AWS the Fault Injection Service sends one, on Google Cloud
`gcloud compute instances simulate-maintenance-event` does).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scavenger.control.job_file.load import load_job
from scavenger.store import Store

JOBS = Path(__file__).resolve().parents[1] / "digits"
POLL_S = 1.0
SETTLED_S = 60.0
"""Listings may show for so long what has ended."""


class Aws:
    """Lists the resources of an AWS account with boto3."""

    def __init__(self, owner: str, region: str) -> None:
        import boto3

        self.region, self._owner = region, owner
        self._ec2 = boto3.client("ec2", region_name=region)

    def left(self) -> list[str]:
        """A line for each thing with the owner's tag that is not gone."""
        mine = [{"Name": "tag:scavenger-owner", "Values": [self._owner]}]
        disks = self._ec2.get_paginator("describe_volumes").paginate(Filters=mine)
        groups = self._ec2.describe_security_groups(Filters=mine)["SecurityGroups"]
        keys = self._ec2.describe_key_pairs(Filters=mine)["KeyPairs"]
        return [
            *(f"VM {vm['InstanceId']}: {vm['State']['Name']}" for vm in self._vms() if not _is_over(vm)),
            *(f"disk {disk['VolumeId']}" for page in disks for disk in page["Volumes"]),
            *(f"security group {group['GroupId']}" for group in groups),
            *(f"key {key['KeyName']}" for key in keys),
        ]

    def lose(self, instance_id: str, zone: str) -> None:
        """End a VM."""
        self._ec2.terminate_instances(InstanceIds=[instance_id])

    def _vms(self) -> Iterator[dict[str, Any]]:
        mine = [{"Name": "tag:scavenger-owner", "Values": [self._owner]}]
        for page in self._ec2.get_paginator("describe_instances").paginate(Filters=mine):
            for reservation in page["Reservations"]:
                yield from reservation["Instances"]


class Gcp:
    """Lists the resources of a Google Cloud project with google-cloud-compute."""

    def __init__(self, owner: str, region: str) -> None:
        from google.cloud import compute_v1

        self.region, self._owner = region, owner
        self._project = os.environ["GOOGLE_CLOUD_PROJECT"]
        options: dict[str, Any] = {}
        if endpoint := os.environ.get("SCAVENGER_GCP_ENDPOINT"):  # a stand-in, to try this file itself
            from google.auth.credentials import AnonymousCredentials

            options = {"client_options": {"api_endpoint": endpoint}, "credentials": AnonymousCredentials()}  # type: ignore[no-untyped-call]
        self._instances = compute_v1.InstancesClient(transport="rest", **options)
        self._disks = compute_v1.DisksClient(transport="rest", **options)

    def left(self) -> list[str]:
        """See `Aws.left`."""
        request = {"project": self._project, "filter": f'labels.scavenger-owner = "{self._owner}"'}
        vms = [
            f"VM {vm.name} in {zone}: {vm.status}"
            for zone, scope in self._instances.aggregated_list(request=request)
            for vm in scope.instances
            if self.region in zone
        ]
        disks = [
            f"disk {disk.name} in {zone}"
            for zone, scope in self._disks.aggregated_list(request=request)
            for disk in scope.disks
            if self.region in zone
        ]
        return vms + disks

    def lose(self, instance_id: str, zone: str) -> None:
        """See `Aws.lose`."""
        self._instances.delete(request={"project": self._project, "zone": zone, "instance": instance_id})


CLOUDS: dict[str, Callable[[str, str], Aws | Gcp]] = {"aws": Aws, "gcp": Gcp}


def _is_over(vm: dict[str, Any]) -> bool:
    return bool(vm["State"]["Name"] == "terminated")


def _scavenger(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "scavenger_cli", *arguments]


def _lose_one(job_file: Path, cloud: Aws | Gcp, job: subprocess.Popen[bytes]) -> bool:
    """End the VM of a worker once the job has chosen; False where the job ended first."""
    while job.poll() is None:
        with Store.open() as store:
            running = [one for one in store.running_jobs(job_file) if one.phase == "running"]
            intents = store.intents(running[0].id, living=True) if running else ()
        joined = [one for one in intents if one.acks and one.slot and one.instance_id]
        if joined:
            cloud.lose(joined[0].instance_id, joined[0].request.zone)
            print(f"prove: ended {joined[0]}", flush=True)
            return True
        time.sleep(POLL_S)
    return False


def _left(clouds: Sequence[Aws | Gcp]) -> list[str]:
    """Resources that are left, after listings have had time to become current."""
    until = time.monotonic() + SETTLED_S
    while True:
        found = [f"{cloud.region}: {one}" for cloud in clouds for one in cloud.left()]
        if not found or time.monotonic() > until:
            return found
        time.sleep(POLL_S)


def _boots() -> str:
    """The boot times of the newest job's VMs, in seconds."""
    with Store.open() as store:
        intents = store.intents()
    times = [one.times for one in intents if one.job_id == intents[-1].job_id]
    return ", ".join(
        f"{(one.joined_at - one.created_at).total_seconds():.0f} s"
        for one in times
        if one.joined_at is not None and one.created_at is not None
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cloud", choices=CLOUDS)
    parser.add_argument("--lose-worker", action="store_true", help="end one worker's VM while the job runs")
    parser.add_argument("--job", type=Path, help="another job file")
    parser.add_argument("--region", action="append", default=[], help="look there, too; may be repeated")
    asked = parser.parse_args(arguments)
    job_file = asked.job or JOBS / f"{asked.cloud}.yaml"
    with Store.open() as store:
        owner = store.installation()
    regions = dict.fromkeys([load_job(job_file).infra.region, *asked.region])
    clouds = [CLOUDS[asked.cloud](owner, region) for region in regions]

    examined = subprocess.run(_scavenger("doctor", "--infra", str(load_job(job_file).infra))).returncode
    job = subprocess.Popen(_scavenger("optimize", str(job_file), "--yes"))
    lost = True
    try:
        if asked.lose_worker:
            lost = _lose_one(job_file, clouds[0], job)
        code = job.wait()
    except KeyboardInterrupt:
        code = job.wait()  # the terminal delivered the signal, too
    found = _left(clouds)
    paid = json.loads(
        subprocess.run(_scavenger("cost", "-o", "json"), stdout=subprocess.PIPE, check=True).stdout
    )

    print(f"prove: the doctor ended with {examined}, the job with {code}")
    print(f"prove: from the request of a VM until it had joined: {_boots() or 'none has joined'}")
    print(f"prove: paid by the ledger: ${paid['jobs'][0]['actual_usd'] or 0.0:.4f}")
    for line in found:
        print(f"prove: LEFT in {line}")
    print(f"prove: {len(found)} things left in {', '.join(regions)}, by the cloud's own listing")
    if not lost:
        print("prove: no worker's VM was ended, since the job was over before")
    return code or (8 if found else 0)


if __name__ == "__main__":
    sys.exit(main())
