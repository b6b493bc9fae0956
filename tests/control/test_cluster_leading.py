"""The leader of an ElasticJob, with a real store, before an API server that keeps one object."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scavenger.control.cluster.leading import Key, Leader, job_of
from scavenger.domain.configuration import Configuration
from scavenger.domain.operation import ScaleIn, ScaleTo, TakeShare
from scavenger.domain.pool import JobStanding, Pool, PoolAllotment, PoolShare
from scavenger.domain.progress import PROGRESS, Progress
from scavenger.domain.submission import NewSubmission, runner_lease
from scavenger.errors import CloudUnavailableError
from scavenger.store import Store
from scavenger.store.owner import this_process


class Server:
    """One ElasticJob with versions, and the pods of its workers."""

    def __init__(self, **spec: Any) -> None:
        meta = {"name": "digits", "namespace": "training", "uid": "u", "resourceVersion": "1"}
        self.job: dict[str, Any] = {
            "metadata": meta,
            "spec": {"job": {}, "code": {"path": "/a"}, **spec},
            "status": {},
        }
        self.workers: list[dict[str, Any]] = []
        self.writes = 0

    def patch_job(
        self, namespace: str, name: str, changes: dict[str, Any], *, status: bool = False
    ) -> dict[str, Any]:
        wanted = changes.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, self.job["metadata"]["resourceVersion"]):
            raise CloudUnavailableError("it has changed")
        self.writes += 1
        merged = {key: dict(value) for key, value in self.job.items()}
        for key, value in changes.items():
            merged[key] = {**merged[key], **value}
        merged["metadata"]["resourceVersion"] = str(int(merged["metadata"]["resourceVersion"]) + 1)
        self.job = merged
        return self.job

    def pods(self, selector: str) -> list[dict[str, Any]]:
        return self.workers

    def add_pod(self, name: str, address: str) -> dict[str, Any]:
        self.workers.append({"metadata": {"name": name, "annotations": {}}, "status": {"podIP": address}})
        return self.workers[-1]


class Led:
    """A leader whose job runs with two workers, in pods `a` and `b`."""

    def __init__(self, store: Store, folder: Path, /, **spec: Any) -> None:
        self.store, self.server, self.now = store, Server(**spec), 1000.0
        job, me = {"version": 1, "name": "digits"}, this_process()
        new = NewSubmission("digits", job, str(folder / "job.yaml"), me.user, me.host, os.getuid())
        self.id = store.submit(new).id
        lease = store.start_runner(self.id, "holder", None)
        assert lease is not None
        self.fence = lease.fence
        store.create_job("digits", spec=job, job_file=folder / "job.yaml", job_id=self.id)
        store.update_job(self.id, state="running")
        (folder / ".scavenger" / self.id).mkdir(parents=True)
        for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            self.server.add_pod(name, address)
            store.set_process(self.id, f"w{name}", role="worker", state="training", host=address)
        progress = Progress(10, 0, Configuration("2cpu-4gib", 2, 32), 1.0)
        store.add_event(self.id, PROGRESS, str(progress), data=progress.data())
        self.leader = self.new_leader(folder)

    def new_leader(self, folder: Path) -> Leader:
        """The leader of a further pod, which knows what is on record."""
        key = Key("training", "digits", "u")
        return Leader(self.store, self.server, key, folder, clock=lambda: self.now)  # type: ignore[arg-type]

    def round(self) -> None:
        self.now += 1.0
        self.leader.see(self.server.job)
        self.leader.round()

    def asked(self) -> list[object]:
        return [one.operation for one in self.store.operations(self.id)]

    def answer(self, state: Any = "done", message: str = "") -> None:
        (open_one,) = [one for one in self.store.operations(self.id) if not one.ended]
        self.store.end_operation(open_one.id, state, message)


def test_a_change_of_replicas_is_asked_for_once_and_told(store: Store, tmp_path: Path) -> None:
    led = Led(store, tmp_path, replicas=2)
    led.round()
    assert led.asked() == []
    assert led.server.job["status"]["replicas"] == 2

    led.server.job["spec"]["replicas"] = 3
    for _ in range(3):
        led.round()
    assert led.asked() == [ScaleTo(3)]
    assert (tmp_path / ".scavenger" / led.id / "asked").is_file()
    led.answer()
    for _ in range(3):
        led.round()
    assert led.asked() == [ScaleTo(3)]
    assert led.server.job["status"]["wanted"] == 3


def test_what_the_job_refuses_is_told_and_asked_for_again_later(store: Store, tmp_path: Path) -> None:
    led = Led(store, tmp_path, replicas=9)
    led.round()
    led.answer("refused", "the job has 1 to 3 workers")
    led.round()
    assert led.server.job["status"]["refused"] == "the job has 1 to 3 workers"
    assert led.asked() == [ScaleTo(9)]

    led.now += 60.0
    led.round()
    assert led.asked() == [ScaleTo(9), ScaleTo(9)]


def test_a_named_pod_counts_once_though_the_leader_is_another_one_after_each_write(
    store: Store, tmp_path: Path
) -> None:
    led = Led(store, tmp_path, replicas=2)
    led.server.workers[0]["metadata"]["annotations"]["scavenger.dev/remove"] = "true"
    for _ in range(3):
        led.leader = led.new_leader(tmp_path)
        led.round()

    assert led.server.job["spec"]["replicas"] == 1
    assert led.server.job["metadata"]["annotations"] == {"scavenger.dev/removed": "a"}
    assert led.asked() == [ScaleIn(("wa",))]
    led.answer()
    led.round()
    assert led.asked() == [ScaleIn(("wa",))]


def test_the_last_worker_is_not_let_go_by_its_name(store: Store, tmp_path: Path) -> None:
    led = Led(store, tmp_path, replicas=1)
    for pod in led.server.workers:
        pod["metadata"]["annotations"]["scavenger.dev/remove"] = "true"
    led.round()

    assert led.server.job["spec"]["replicas"] == 1
    assert led.asked() == [ScaleTo(1)]


def test_with_a_pod_that_is_named_all_workers_on_it_go(store: Store, tmp_path: Path) -> None:
    led = Led(store, tmp_path, replicas=4)
    for name, address in (("aa", "10.0.0.1"), ("bb", "10.0.0.2")):
        store.set_process(led.id, f"w{name}", role="worker", state="training", host=address)
    progress = Progress(11, 0, Configuration("8cpu-64gib-2gpu", 4, 32), 1.0)
    store.add_event(led.id, PROGRESS, str(progress), data=progress.data())
    led.server.workers[0]["metadata"]["annotations"]["scavenger.dev/remove"] = "true"
    led.round()

    assert (led.server.job["status"]["replicas"], led.server.job["status"]["pods"]) == (4, 2)
    assert led.server.job["spec"]["replicas"] == 2
    assert led.asked() == [ScaleIn(("wa", "waa"))]


def test_a_job_that_is_suspended_is_stopped_once_and_told_when_it_has_stopped(
    store: Store, tmp_path: Path
) -> None:
    led = Led(store, tmp_path, replicas=2)
    led.round()
    led.server.job["spec"]["suspend"] = True
    led.round()
    assert store.submissions(1)[0].cancelling
    assert led.server.job["status"]["state"] == "running"

    store.finish_job(led.id, state="interrupted", report=None, error="suspended", exit_code=None)
    store.end_submission(led.fence, led.id, "suspended")
    led.round()
    assert (led.server.job["status"]["state"], led.server.job["status"]["replicas"]) == ("suspended", 0)
    assert not led.leader.over

    led.server.job["spec"]["suspend"] = False
    led.round()
    assert store.submissions(1)[0].state == "queued"


def test_the_leader_is_done_when_the_end_of_the_job_is_told(store: Store, tmp_path: Path) -> None:
    led = Led(store, tmp_path)
    store.finish_job(led.id, state="succeeded", report=None, error="", exit_code=0)
    store.end_submission(led.fence, led.id, "succeeded")
    led.round()
    told = led.server.writes
    led.round()

    assert led.leader.over
    assert led.server.job["status"]["state"] == "succeeded"
    assert led.server.writes == told


def test_an_elastic_job_of_the_same_name_is_another_one(store: Store, tmp_path: Path) -> None:
    led = Led(store, tmp_path)
    led.leader.see({**led.server.job, "metadata": {**led.server.job["metadata"], "uid": "later"}})
    assert led.leader.over


def test_a_folder_is_laid_out_once(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("first")
    job = job_of(tmp_path / "work", document="{}", code=str(code))
    (code / "train.py").write_text("second")
    (tmp_path / "work" / "job.new").mkdir()
    again = job_of(tmp_path / "work", document="{'other': 1}", code=str(code))

    assert again == job
    assert ((job / "train.py").read_text(), (job / "job.yaml").read_text()) == ("first", "{}")


def share(allotment: int, workers: int) -> dict[str, Any]:
    return {"pool": "gpu", "allotment": allotment, "workers": workers, "slots": workers}


def stand(led: Led, state: Any, *, held: int, obeyed: int) -> None:
    lease = led.store.lease(runner_lease(led.id))
    assert lease is not None
    led.store.stand(lease.fence, led.id, JobStanding(lease.token, state, held, obeyed, size=held))


@pytest.fixture
def pooled(store: Store, tmp_path: Path) -> Led:
    """It was begun with two workers by allotment 3, as a leader before has noted."""
    (tmp_path / "job.yaml").write_text(
        '{version: 1, name: digits, train: "train:job", goal: {max_epochs: 1}}'
    )
    led = Led(store, tmp_path, pool="gpu", store={"claim": "c"})
    mine = PoolShare(2, 2, 2, 3)
    store.put_allotment(PoolAllotment(Pool("gpu", 2), 3, {led.id: mine}, (), datetime.now(UTC)))
    led.server.job["status"]["share"] = share(3, 2)
    stand(led, "training", held=2, obeyed=3)
    return led


def test_a_share_is_asked_for_once_and_an_older_one_never(pooled: Led, tmp_path: Path) -> None:
    pooled.round()
    assert pooled.asked() == []
    status = pooled.server.job["status"]
    assert (status["apart"], status["wanted"], status["standing"]["obeyed"]) == (1, 2, 3)

    pooled.server.job["status"]["share"] = share(7, 1)
    for _ in range(3):
        pooled.round()
    assert pooled.asked() == [TakeShare(1, 7)]
    pooled.answer()
    stand(pooled, "training", held=1, obeyed=7)
    pooled.server.job["status"]["share"] = share(6, 2)
    for _ in range(3):
        pooled.round()
    assert pooled.asked() == [TakeShare(1, 7)]
    allotment = pooled.store.allotment("gpu")
    assert allotment is not None
    assert (allotment.number, allotment.shares[pooled.id].told) == (7, 1), (
        "a runner that begins has the newest"
    )


def test_pods_with_several_gpus_are_slots_with_a_worker_on_each(pooled: Led, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(file.read_text().replace("{version", "{resources: {vm: 8cpu-64gib-2gpu}, version"))
    pooled.server.job["status"]["share"] = {**share(7, 3), "slots": 2}
    pooled.round()

    assert pooled.asked() == [TakeShare(2, 7)]
    assert pooled.server.job["status"]["wanted"] == 3
    allotment = pooled.store.allotment("gpu")
    assert allotment is not None
    assert (allotment.shares[pooled.id].told, allotment.per_slot("")) == (2, 2)


def test_without_a_share_the_job_is_stopped_and_that_is_answered_by_its_number(pooled: Led) -> None:
    pooled.server.job["status"]["share"] = share(8, 0)
    pooled.round()
    assert pooled.store.submissions(1)[0].cancelling
    assert pooled.asked() == []
    assert pooled.server.job["status"]["standing"]["state"] == "training"

    pooled.store.finish_job(pooled.id, state="interrupted", report=None, error="paused", exit_code=None)
    pooled.store.end_submission(pooled.fence, pooled.id, "paused")
    pooled.round()
    status = pooled.server.job["status"]
    assert (status["state"], status["standing"]["state"], status["standing"]["obeyed"]) == (
        "suspended",
        "waiting",
        8,
    )

    pooled.server.job["status"]["share"] = share(9, 3)
    pooled.round()
    assert pooled.store.submissions(1)[0].state == "queued"
    allotment = pooled.store.allotment("gpu")
    assert allotment is not None
    assert (allotment.number, allotment.shares[pooled.id].told) == (9, 3)


def test_a_job_that_began_without_its_pool_stops_and_begins_with_it(store: Store, tmp_path: Path) -> None:
    led = Led(store, tmp_path, pool="gpu", store={"claim": "c"})
    (tmp_path / "job.yaml").write_text(
        '{version: 1, name: digits, train: "train:job", goal: {max_epochs: 1}}'
    )
    led.server.job["status"]["share"] = share(2, 2)
    led.round()

    assert store.submissions(1)[0].cancelling
    assert led.asked() == []
