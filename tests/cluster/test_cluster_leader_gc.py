"""`scavenger gc` and leaders' pods: those that nobody needs are ended with what they started, none that leads a job."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_world import NODES, Interceptor, KubernetesWorld, worlds
from scavenger_cli.commands import gc
from scavenger_cli.options import Output

from scavenger.cloud.kubernetes.leader import LeaderPod, leader_pod
from scavenger.cloud.kubernetes.pods import leader_labels
from scavenger.control.leading.pod_seat import pod_name
from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.domain.elastic_job import JOB_LABEL, LEADER, ROLE_LABEL
from scavenger.errors import ConfigurationError
from scavenger.store import Store
from scavenger.testing.provider_conformance import make_request
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubelet import Kubelet, nodes_of

pytestmark = pytest.mark.slow

WHERE = "kubernetes/tests"


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[KubernetesWorld]:
    between = Interceptor(plane)
    kubelet: Kubelet
    with nodes_of(plane, *NODES) as kubelet:
        yield from worlds(plane, kubelet, between)
    between.close()


@dataclass
class Scene:
    """A machine with records of leaders, and their cluster."""

    cluster: KubernetesWorld
    url: str

    def leader(self, name: str, **fields: Any) -> LeaderRecord:
        """A leader of this machine, with a pod and a worker's."""
        output, key = f"/jobs/{name}", str(uuid.uuid4())
        record = LeaderRecord(key, name, f"{output}/job.yaml", "kubernetes", "tests", "", output, **fields)
        record = LeaderRecord(
            **{one: getattr(record, one) for one in record.__slots__} | {"namespace": self.cluster.namespace}
        )
        with Store.open(self.url) as store:
            leaders = Leaders.beside(store)
            leaders.put(record)
            with leaders.open_store(record) as own:
                self.pods(pod_name(record), own.installation())
        return record

    def pods(self, name: str, owner: str) -> None:
        """The pods of a leader and of one worker."""
        provider = self.cluster.provider
        uid = provider.keep_secret(name, {"token": "t"}, owner=owner)
        owned = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": uid}
        labels = {ROLE_LABEL: LEADER, **leader_labels(owner, "1cpu-2gib", 3600.0)}
        pod = LeaderPod(name, ("sleep",), labels=labels, owner=owned)
        provider.keep_pod(leader_pod(pod, provider.settings))
        provider.launch(make_request(self.cluster, owner, owner=owner))

    def there(self) -> tuple[list[str], list[str], int]:
        """Leaders' pods, their secrets, and the number of workers' pods."""
        core, namespace = self.cluster.core, self.cluster.namespace
        pods = [
            pod
            for pod in core.list_namespaced_pod(namespace).items
            if pod.status.phase in ("Pending", "Running")
        ]
        leaders = [pod.metadata.name for pod in pods if pod.metadata.labels.get(ROLE_LABEL) == LEADER]
        secrets = [
            one.metadata.name
            for one in core.list_namespaced_secret(namespace).items
            if one.metadata.name.startswith("scavenger-leader-")
        ]
        return sorted(leaders), sorted(secrets), len(pods) - len(leaders)

    def collect(self, capsys: pytest.CaptureFixture[str], *, dry: bool = False, other: str = "") -> Any:
        capsys.readouterr()
        names = (other,) if other else ()
        code = gc.gc(
            [WHERE], yes=True, dry_run=dry, other=list(names), store_url=self.url, output=Output.JSON
        )
        assert code == 0
        return json.loads(capsys.readouterr().out)


@pytest.fixture
def scene(
    plane: ControlPlane, cluster: KubernetesWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    settings = tmp_path / "config.toml"
    settings.write_text(f'[kubernetes]\nnamespace = "{cluster.namespace}"\nimage = "scavenger:tests"\n')
    monkeypatch.setenv("SCAVENGER_CONFIG", str(settings))
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig()))
    monkeypatch.setattr("scavenger.control.provisioning.clean_up.POLL_S", 0.1)
    return Scene(cluster, f"sqlite:///{tmp_path}/store/scavenger.db")


def test_leaders_that_nobody_needs_are_ended_and_none_that_leads_a_job(
    scene: Scene, cluster: KubernetesWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    leads = pod_name(scene.leader("leads", job_id="j-1"))
    unused = pod_name(scene.leader("unused"))
    failed = pod_name(scene.leader("failed", job_id="j-2", ending=True))
    lost = pod_name(scene.leader("lost", job_id="j-3"))
    cluster.core.delete_namespaced_pod(lost, cluster.namespace, grace_period_seconds=0)
    other = f"scavenger-leader-{uuid.uuid4()}"
    scene.pods(other, "another-machine")
    elastic = LeaderPod("of-an-elastic-job", ("sleep",), labels={ROLE_LABEL: LEADER, JOB_LABEL: "digits"})
    cluster.provider.keep_pod(leader_pod(elastic, cluster.provider.settings))
    before = scene.there()
    assert before[2] == 5

    found = scene.collect(capsys, dry=True)
    assert scene.there() == before
    why = {row["vm"]["instance_id"]: row["reason"] for row in found["leftovers"]}
    assert {name: why.get(name) for name in (leads, unused, failed, lost, other)} == {
        leads: None,
        unused: "it leads no job",
        failed: "its end had failed",
        lost: None,
        other: None,
    }
    assert sorted(why.values()) == sorted(
        [*["it leads no job"] * 2, *["its end had failed"] * 2, "its leader is gone"]
    )
    (row,) = found["other_leaders"]
    assert (row["instance_id"], row["owner"], row["state"], row["to_end"]) == (
        other,
        "another-machine",
        "live",
        False,
    )

    scene.collect(capsys)
    assert scene.there() == (sorted([leads, other, elastic.name]), sorted([leads, other]), 2)
    with pytest.raises(ConfigurationError, match="no other machine's leader"):
        scene.collect(capsys, other=leads)

    scene.collect(capsys, other=other)
    assert scene.there() == (sorted([leads, elastic.name]), [leads], 1)
    assert scene.collect(capsys)["leftovers"] == []
    assert scene.there() == (sorted([leads, elastic.name]), [leads], 1)
