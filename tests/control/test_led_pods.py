"""A job that a pod leads, from the command to its submission: the pod's program runs, the API server is played."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from machines import ROOT
from test_seats import FakeCluster

from scavenger.cloud.kubernetes import leader as kubernetes_leader
from scavenger.cloud.kubernetes.pods import PodSettings
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.leading import pod_seat
from scavenger.control.leading.following import LeaderSession
from scavenger.control.leading.record import Leaders
from scavenger.control.leading.seats import seat_of
from scavenger.control.leading.start import LeaderStart
from scavenger.control.leading.starting import restart_leader, start_leader
from scavenger.control.places.pods import RentedPods
from scavenger.control.settings import SETTINGS_VARIABLE
from scavenger.domain.vm import DEFAULT_SETTINGS, VmSettings
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.store import Store

client = pytest.importorskip("kubernetes.client")
pytest.importorskip("fastapi")

pytestmark = pytest.mark.slow

JOB = {
    "version": 1,
    "name": "digits",
    "train": "train:job",
    "goal": {"max_epochs": 2},
    "infra": {
        "at": "kubernetes/tests",
        "namespace": "jobs",
        "image": "scavenger:tests",
        "leader_service_account": "scavenger-leader",
        "leader_claim": "leaders",
        "usd_per_cpu_hour": 0.03,
        "usd_per_gib_hour": 0.004,
    },
    "resources": {"cpus": 2, "memory": 4},
    "search": {"workers": [1], "batch_size": [32]},
    "constraints": {"budget": "$20"},
    "leader": "vm",
}
WAITING = "[service]\nbudget = 0.01\n"
"""Settings of a server with which the job waits."""


class RunningCluster(FakeCluster):
    """A cluster whose leader's pod is a process of this machine, reached through what its API server would forward."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.types = ("2cpu-4gib",)
        self.settings = PodSettings(namespace="jobs", image="scavenger:tests")
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])

    def zones(self, vm: str, settings: VmSettings = DEFAULT_SETTINGS) -> tuple[str, ...]:
        return self.places

    def keep_pod(self, body: Mapping[str, Any]) -> None:
        super().keep_pod(body)
        self.advance(60.0)
        (container,) = body["spec"]["containers"]
        sent = self.folder / "sent"
        sent.mkdir(exist_ok=True)
        for name, text in self.secrets[body["metadata"]["name"]].items():
            (sent / name).write_text(text)
        settings = self.folder / "there.toml"
        settings.write_text(WAITING)
        given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        environment = {
            **os.environ,
            **given,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
            "HOME": str(self.folder),
            SETTINGS_VARIABLE: str(settings),
        }
        command = [sys.executable, *container["command"][1:]]
        self.processes.append(subprocess.Popen(command, env=environment, cwd=self.folder))

    def phase_of(self, name: str) -> tuple[str, str]:
        phase, why = super().phase_of(name)
        code = self.processes[-1].poll()
        return (phase, why) if code is None else ("Failed", f"exit code {code}")

    def end_pod(self, name: str) -> None:
        super().end_pod(name)
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def lose_pod(self, name: str) -> None:
        """Its node is gone."""
        self.processes[-1].kill()
        self.processes[-1].wait()
        self.delete_by_hand(self.pods.pop(name))

    @property
    def api(self) -> Any:
        settings = client.Configuration()
        settings.host = f"http://127.0.0.1:{self.server.server_address[1]}"
        return client.ApiClient(settings)

    def serve(self) -> None:
        port = self.port

        class ApiServer(http.server.BaseHTTPRequestHandler):
            def _any(self) -> None:
                path = self.path.partition("/proxy")[2]
                body = self.rfile.read(int(self.headers.get("Content-Length", 0) or 0))
                try:
                    answer = requests.request(
                        self.command,
                        f"https://127.0.0.1:{port}{path}",
                        data=body,
                        headers=dict(self.headers),
                        verify=False,
                        timeout=60,
                    )
                except requests.RequestException as error:
                    self.send_response(503)
                    self.end_headers()
                    self.wfile.write(json.dumps({"kind": "Status", "message": str(error)}).encode())
                    return
                self.send_response(answer.status_code)
                for name in ("Content-Type", "X-Content-Type-Options"):
                    self.send_header(name, answer.headers.get(name, ""))
                self.end_headers()
                self.wfile.write(answer.content)

            do_GET = do_POST = _any  # noqa: N815 - http.server's names

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    folder = tmp_path / "pod"
    folder.mkdir()
    cluster = RunningCluster(folder)
    monkeypatch.setattr(kubernetes_leader, "LEADER_FOLDER", str(folder))
    monkeypatch.setattr(pod_seat, "FILES", str(folder / "sent"))
    monkeypatch.setattr(pod_seat, "POD_PORT", cluster.port)
    cluster.serve()
    yield cluster
    for process in cluster.processes:
        process.kill()
        process.wait()
    cluster.server.shutdown()
    cluster.server.server_close()


def start_of(folder: Path, cluster: RunningCluster, **sections: Any) -> LeaderStart:
    """A job in a folder of its own, with its code."""
    folder.mkdir()
    path = folder / "job.yaml"
    path.write_text(json.dumps({**JOB, **sections}))
    (folder / "train.py").write_text("job = None\n")
    (folder / ".scavenger").mkdir()
    (folder / ".scavenger" / "left").write_text("an earlier result")
    place = RentedPods(load_job(path), {})
    place.__dict__["provider"] = cluster
    return LeaderStart(PreparedJob(path, folder, place))


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_a_pod_leads_a_job_and_the_next_one_on_its_claim_goes_on_with_it(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    said = list[str]()
    options: dict[str, Any] = {"inform": said.append, "environment": {"HF_TOKEN": "of-the-job"}}
    start = start_of(tmp_path / "job", cluster, secrets=["HF_TOKEN"])
    with Store.open(f"sqlite:///{tmp_path / 'scavenger.db'}") as books:
        leaders = Leaders.beside(books)

        record = start_leader(start, leaders, books, **options)

        assert said[0] == "starting the leader's pod"
        assert said[-1].endswith("is led there, and goes on without this machine")
        there = Path(seat_of(leaders, record, inform=said.append).folder)
        assert sorted(path.name for path in (there / "job").iterdir()) == ["job.yaml", "train.py"]
        (sent,) = cluster.secrets.values()
        assert not [name for name, text in sent.items() if "of-the-job" in text], "they go with the request"
        with Store.open(f"sqlite:///{there / 'store' / 'scavenger.db'}") as store:
            (submission,) = store.submissions(9)
            assert (submission.id, submission.job.spec["leader"]) == (record.job_id, "here")
            given = store.environment_of(submission.id)
        assert given is not None
        assert given.variables["HF_TOKEN"] == "of-the-job"

        cluster.lose_pod(pod_seat.pod_name(record))
        restart_leader(start, leaders, record, **options)

        assert said[-1] == f"job digits ({record.job_id[:8]}) goes on there"
        seat = seat_of(leaders, record, inform=said.append, provider=cluster, sleep=cluster.advance)
        with seat.api() as api:
            assert [one["id"] for one in api.get("queue")["submissions"]] == [record.job_id]
        assert LeaderSession(seat).end(books) == ()
        assert [one for one in cluster.processes if one.poll() is None] == []
        assert list(leaders.all()) == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_a_job_that_its_leader_refuses_leaves_no_pod_and_says_why(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    """As soon as the leader serves, and with the leader's own words."""
    said = list[str]()
    start = start_of(tmp_path / "job", cluster)
    there = start_of(tmp_path / "other", cluster, train="missing:job")
    start = LeaderStart(PreparedJob(start.prepared.job_file, tmp_path / "job", there.prepared.place))
    with Store.open(f"sqlite:///{tmp_path / 'scavenger.db'}") as books:
        leaders = Leaders.beside(books)

        with pytest.raises(ScavengerError) as told:
            start_leader(start, leaders, books, inform=said.append, environment={})

        assert isinstance(told.value, ConfigurationError)
        assert "missing" in str(told.value)
        assert said[-1] == "the leader's pod is ended, as its job could not be started"
        assert (list(leaders.all()), cluster.secrets) == ([], {})
        assert [one for one in cluster.processes if one.poll() is None] == []
