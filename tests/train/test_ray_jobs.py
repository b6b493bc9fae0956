"""Jobs whose processes run on the hosts of a Ray cluster: here, several raylets on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import JOBS, SEED, Run, assert_same_weights, plain_keras
from test_ray_engine import (  # noqa: F401 - fixtures
    _NETWORK,
    _STORE_BYTES,
    _listens,
    _nothing_is_left_behind,
    _raylet_above,
    _run,
    bridge,
    cluster,
    ray_folder,
)
from waiting import eventually

from scavenger.train.engines.base import Engine
from scavenger.train.engines.ray.engine import engine_maker
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.slow


class RayRun(Run):
    """A job on the hosts of a cluster."""

    def __init__(
        self,
        name: str,
        work_dir: Path,
        *,
        made: Callable[[Path, int], Engine] | None = engine_maker("ray"),  # noqa: B008 - as of a job file
    ) -> None:
        super().__init__(f"small:{name}", work_dir / "local", replace=True)
        self.supervisor.close()
        self.work_dir = work_dir
        self.supervisor = Supervisor.open(
            JobSource(f"small:{name}", JOBS, SEED, threads=1),
            work_dir=work_dir,
            timeouts=Timeouts(180.0, 60.0),
            engine=made,
        )

    def pid(self, process: str) -> int:
        return self.supervisor.engine.pid(process)


@pytest.mark.long
def test_a_job_outlives_one_of_its_hosts(cluster: Any, tmp_path: Path) -> None:  # noqa: F811
    with RayRun("slow", tmp_path) as run:
        run.begin(2, 40, within_s=180.0)
        run.train(10)
        names = [process.name for process in run.supervisor.processes()]
        raylets = {name: _raylet_above(run.pid(name)) for name in names}
        assert len(set(raylets.values())) == 2, "Ray did not spread them"
        # the aggregator's, with whatever else is there: the model is lost, and begins anew
        lost = raylets["aggregator-0"]
        gone = {name for name, raylet in raylets.items() if raylet == lost}

        lost.send_signal(signal.SIGKILL)

        run.until(lambda: bool(run.rolled_back), within_s=180.0)
        run.train(10)
        run.until(lambda: run.supervisor.ready == 2, within_s=180.0)
        run.train(5)
        got = run.finish()

    assert {told.worker for told in run.lost} == {name for name in gone if name.startswith("w")}
    assert [back.step for back in run.rolled_back] == [0]
    assert_same_weights(got, plain_keras("slow", run.steps))


_LEADER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_ray_jobs import RayRun
from driving import assert_same_weights, plain_keras
from scavenger.train.engines.ray.engine import RayEngine

class Pinned(RayEngine):
    def launch(self, boot, *, env=None, host=None, vm=""):
        return super().launch(boot, env=env, host=sys.argv[5] if boot.name == "w1" else sys.argv[4])

with RayRun("slow", Path(sys.argv[2]), made=lambda log_dir, _: Pinned(log_dir, address=sys.argv[3])) as run:
    run.begin(2, 40, within_s=180.0)
    run.train(10)
    supervisor = run.supervisor
    print(*sorted({supervisor.engine.host(p.name) for p in supervisor.processes()}), flush=True)
    run.until(lambda: bool(run.lost), within_s=60.0)
    print("lost", *(lost.worker for lost in run.lost), flush=True)
    run.train(10)
    run.until(lambda: supervisor.ready == 2, within_s=180.0)
    run.train(5)
    got = run.finish()
    assert not run.rolled_back
    assert_same_weights(got, plain_keras("slow", run.steps))
print("same", flush=True)
"""
_CUT_S = 4.0
"""Longer than heartbeats take to be missed, and shorter than Ray takes to give a host up."""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make networks")
@pytest.mark.long
def test_a_host_whose_link_is_cut_in_mid_step_is_done_without_and_heard_no_more(
    ray_folder: str,  # noqa: F811
    bridge: list[str],  # noqa: F811
    tmp_path: Path,
) -> None:
    with socket.create_server((f"{_NETWORK}1", 0)) as server:
        address = f"{_NETWORK}1:{server.getsockname()[1]}"
    ray = (str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats")
    store = f"--object-store-memory={_STORE_BYTES}"
    head = ("--head", f"--port={address.partition(':')[2]}", "--num-cpus=0", "--include-dashboard=false")
    apart = ("sh", "-c", f'mount -t tmpfs none {ray_folder} && exec "$@"', "sh")
    with contextlib.ExitStack() as stack:

        def started(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        started(*ray, *head, f"--node-ip-address={_NETWORK}1", store)
        assert eventually(lambda: _listens(address), within_s=60.0)
        for number, space in enumerate(bridge, start=2):
            started(
                *("ip", "netns", "exec", space, *apart, *ray, "--num-cpus=8", store),
                *(f"--address={address}", f"--node-ip-address={_NETWORK}{number}"),
            )
        kept, cut = f"{_NETWORK}2", f"{_NETWORK}3"
        leader = started(
            *(sys.executable, "-c", _LEADER, str(Path(__file__).parent), str(tmp_path / "job")),
            *(address, kept, cut),
        )
        assert leader.stdout is not None
        assert leader.stdout.readline().split() == [kept, cut], "each host has an address of its own"

        _run("ip", "link", "set", f"{bridge[1]}v", "down")
        time.sleep(_CUT_S)
        _run("ip", "link", "set", f"{bridge[1]}v", "up")

        assert leader.stdout.readline() == "lost w1\n"
        assert leader.stdout.readline() == "same\n"
