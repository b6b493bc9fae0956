"""The operator with 200 ElasticJobs and 2,000 pods before a real API server; needs `make test-kubernetes` once."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.control.cluster.crd import crd
from scavenger.domain.elastic_job import GROUP, JOB_LABEL, KIND, PLURAL, VERSION, leader_name

JOBS, PODS = 200, 2_000
REPORT_EVERY_S, REPORTS_S = 5.0, 30.0
_AIM_S, _AIM_BYTES = 2.0, 300e6
_NAMESPACE = "jobs"
_THREADS = 8


class _World:
    """An API server with the custom resource."""

    def __init__(self, plane: Any) -> None:
        kube = importlib.import_module("kubernetes").client
        self.core = plane.core()
        self.objects = kube.CustomObjectsApi(self.core.api_client)
        extensions = kube.ApiextensionsV1Api(self.core.api_client)
        extensions.create_custom_resource_definition(crd())
        self.core.create_namespace({"metadata": {"name": _NAMESPACE}})
        account = {"metadata": {"name": "scavenger-leader"}}
        self._until(lambda: self.core.read_namespaced_service_account("default", _NAMESPACE))
        self.core.create_namespaced_service_account(_NAMESPACE, account)
        self._until(lambda: self.objects.list_namespaced_custom_object(GROUP, VERSION, _NAMESPACE, PLURAL))

    @staticmethod
    def _until(ask: Callable[[], object]) -> None:
        until_s = time.monotonic() + 60.0
        while True:
            try:
                ask()
                return
            except Exception:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.2)

    def add(self, number: int) -> str:
        """An ElasticJob, and pods as its workers have; returns its uid."""
        job = {"train": "train:job", "goal": {"max_epochs": 3}, "resources": {"cpus": 2, "memory": 4}}
        name = f"job-{number}"
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {"job": job, "code": {"path": "/code"}, "replicas": 4},
        }
        made = self.objects.create_namespaced_custom_object(GROUP, VERSION, _NAMESPACE, PLURAL, body)
        for index in range(PODS // JOBS - 1):
            labels = {JOB_LABEL: name, "scavenger/role": "worker"}
            spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
            meta = {"name": f"{name}-{index}", "labels": labels}
            self.core.create_namespaced_pod(_NAMESPACE, {"metadata": meta, "spec": spec})
        return str(made["metadata"]["uid"])

    def leaders(self) -> int:
        """How many leaders' pods there are."""
        found = self.core.list_namespaced_pod(_NAMESPACE, label_selector="scavenger/role=leader")
        return len(found.items)

    def begin(self, uid: str) -> None:
        """The leader's pod runs."""
        status = {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
        self.core.patch_namespaced_pod_status(leader_name(uid), _NAMESPACE, status)

    def report(self, number: int, step: int) -> None:
        """As a leader reports."""
        status = {"status": {"state": "running", "replicas": 4, "wanted": 4, "step": step}}
        self.objects.patch_namespaced_custom_object_status(
            GROUP, VERSION, _NAMESPACE, PLURAL, f"job-{number}", status
        )


def _once(where: Path) -> dict[str, float]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if reason := importlib.import_module("tests.cluster.binaries").missing():
        raise RuntimeError(reason)
    control_plane = importlib.import_module("tests.cluster.control_plane")
    where.mkdir()
    with control_plane.running_control_plane(where) as plane:
        world = _World(plane)
        looks = where / "looks"
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig())}
        with (where / "operator.log").open("wb") as log:
            command = [sys.executable, "-m", "benchmarks.operator_process", str(looks)]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            return _measured(world, process, looks)
        finally:
            process.terminate()
            process.wait(30)


def _measured(world: _World, process: subprocess.Popen[bytes], looks: Path) -> dict[str, float]:
    memory = psutil.Process(process.pid)
    with ThreadPoolExecutor(_THREADS) as pool:
        uids = list(pool.map(world.add, range(JOBS)))
        until_s = time.monotonic() + 120.0
        while world.leaders() < JOBS:
            if time.monotonic() > until_s or process.poll() is not None:
                raise RuntimeError(
                    f"{world.leaders()} leaders of {JOBS}; the operator ended: {process.poll()}"
                )
            time.sleep(0.2)
        list(pool.map(world.begin, uids))
        begun, most, step = time.monotonic(), 0, 0
        over = threading.Event()
        while time.monotonic() - begun < REPORTS_S:
            step += 1
            round_s = time.monotonic()
            list(pool.map(lambda number: world.report(number, step), range(JOBS)))  # noqa: B023
            most = max(most, memory.memory_info().rss)
            over.wait(max(0.0, REPORT_EVERY_S - (time.monotonic() - round_s)))
    return _figures(looks, most, cpu_s=sum(memory.cpu_times()[:2]))


def _figures(file: Path, rss_bytes: float, *, cpu_s: float) -> dict[str, float]:
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
    waited, took = np.array([line[1:] for line in lines if line[0] == "look"]).T
    calls = np.array([line[2] for line in lines if line[0] == "call"])
    took_s = waited + took
    return {
        "p50_s": float(np.quantile(took_s, 0.5)),
        "p99_s": float(np.quantile(took_s, 0.99)),
        "waited_p99_s": float(np.quantile(waited, 0.99)),
        "looks": float(len(took_s)),
        "calls": float(len(calls)),
        "call_p50_s": float(np.quantile(calls, 0.5)),
        "call_p99_s": float(np.quantile(calls, 0.99)),
        "called_share": float(calls.sum() / took.sum()),
        "cpu_s": cpu_s,
        "rss_bytes": rss_bytes,
    }


def run(repetitions: int, folder: Path) -> Result:
    found = [_once(folder / str(number)) for number in range(repetitions)]
    figures = {name: Spread.of(one[name] for one in found) for name in found[0]}
    p99, rss = figures["p99_s"], figures["rss_bytes"]
    good = p99.high < _AIM_S and rss.high < _AIM_BYTES
    return Result(
        headers=(
            "looks",
            "median s",
            "p99 s",
            "of it waiting",
            "calls",
            "call, median s",
            "call, p99 s",
            "MB",
        ),
        rows=(
            (
                figures["looks"].text(digits=0),
                figures["p50_s"].text(digits=3),
                p99.text(digits=2),
                figures["waited_p99_s"].text(digits=2),
                figures["calls"].text(digits=0),
                figures["call_p50_s"].text(digits=3),
                figures["call_p99_s"].text(digits=2),
                rss.text(1e-6, digits=0),
            ),
        ),
        verdict=f"Aim: p99 below {_AIM_S:g} s from the event to the end of the look, in {_AIM_BYTES / 1e6:.0f} MB: "
        f"{'met' if good else 'missed'}.",
        figures=figures,
        remarks=(
            f"{JOBS} ElasticJobs and {PODS:,} pods are created at once, and each leader then reports every "
            f"{REPORT_EVERY_S:g} s; API server, etcd, controllers and who reports are on the same machine.",
            "A call to the API server is timed by its client; the operator used "
            f"{figures['cpu_s'].text()} s of processor time.",
        ),
    )


BENCHMARK = Benchmark("operator", 3, run)
