"""Laws of a server: one at a time on SQLite, and what it does about runners that are dead, without starting one."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from scavenger.control.service import server as server_module
from scavenger.control.service.server import Server, runner_log
from scavenger.control.service.submitting import live_server, runner_environment
from scavenger.control.settings import parse_settings
from scavenger.domain.pool import Pool, UserPart, differing
from scavenger.domain.submission import (
    SERVER_LEASE,
    Backlog,
    GivenEnvironment,
    NewSubmission,
    StoredBudgets,
    Submission,
    runner_lease,
)
from scavenger.errors import (
    ConfigurationError,
    JobFileError,
    LeaseLostError,
    StoreUnavailableError,
    TransientError,
)
from scavenger.policy.admission import QueueLimits
from scavenger.policy.runners import FAULTS_MAX, SILENT_S, STARTS_MAX
from scavenger.store import Store
from scavenger.train.engines import reaper

pytestmark = pytest.mark.slow

HOST = socket.gethostname()
DEAD = f"{HOST}/4194303/1.00"
"""A holder that was a process of this machine, and is not any more."""


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as opened:
        yield opened


def submitted(store: Store, folder: str = "/nowhere", **fields: Any) -> Submission:
    return store.submit(NewSubmission("tiny", {}, f"{folder}/job.yaml", "ann", HOST, os.getuid(), **fields))


def now(store: Store, one: Submission) -> Submission:
    found = store.submission(one.id)
    assert found is not None
    return found


class TestItsPlace:
    def test_a_second_server_of_a_sqlite_store_is_refused(self, store: Store) -> None:
        first, second = Server(store, QueueLimits()), Server(store, QueueLimits())
        first.start()
        with pytest.raises(TransientError, match=f"served already, by process {os.getpid()}"):
            second.start()
        first.close()
        second.start()
        assert [one.id for one in store.servers()] == [second.record.id]

    def test_who_has_news_for_it_wakes_it_before_its_round_is_due(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server, stop = Server(store, QueueLimits()), threading.Event()

        def rested_s() -> float:
            begin = time.monotonic()
            server.rest(stop)
            return time.monotonic() - begin

        monkeypatch.setattr(server_module, "_ROUND_S", 60.0)
        store.wake_servers()
        assert rested_s() < 30.0
        monkeypatch.setattr(server_module, "_ROUND_S", 0.2)
        assert rested_s() >= 0.2
        stop.set()
        monkeypatch.setattr(server_module, "_ROUND_S", 60.0)
        assert rested_s() < 30.0

    def test_the_place_of_a_dead_server_is_taken_at_once(self, store: Store) -> None:
        store.take_lease(SERVER_LEASE, DEAD, None)
        Server(store, QueueLimits()).start()

        lease = store.lease(SERVER_LEASE)
        assert lease is not None
        assert lease.token == 2

    def test_a_second_server_with_other_pools_is_refused_where_several_may_serve(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Store, "path", None)  # as on PostgreSQL
        pools = {"gpu": Pool("gpu", 4, "even"), "local": Pool("local", 2, "fifo", whole=True)}
        first = Server(store, QueueLimits(), pools)
        first.start()
        other = pools | {"gpu": Pool("gpu", 6, "even", {"ann": UserPart(most=2)})}
        second = Server(store, QueueLimits(), other)
        with pytest.raises(ConfigurationError, match="pool gpu: slots is 6 here, and 4 there, at process"):
            second.start()
        assert [one.id for one in store.servers()] == [first.record.id]
        Server(store, QueueLimits(), pools).start()  # the same pools
        first.close()
        assert differing(pools, other) == "pool gpu: slots is 4 here, and 6 there"
        assert differing(pools, {}) == "pool gpu is not there"

    def test_one_whose_place_was_taken_ends(self, store: Store) -> None:
        clock = Clock()
        server = Server(store, QueueLimits(), clock=clock)
        server.start()
        store.take_lease(SERVER_LEASE, "elsewhere/1/1.0", store.lease(SERVER_LEASE))
        clock.at += 10.0

        with pytest.raises(LeaseLostError, match="another server"):
            server.tick()


class TestEnvironments:
    SERVER: ClassVar = {"DATA_VERSION": "1", "AWS_PROFILE": "of-the-service", reaper.VARIABLE: "x"}
    GIVEN = GivenEnvironment({"DATA_VERSION": "2"}, whole=True)

    def test_a_server_in_the_background_gives_nothing_of_whoever_submitted_first(self) -> None:
        found = runner_environment(self.GIVEN, "sqlite:///s", background=True, environ=self.SERVER)
        assert found == {"DATA_VERSION": "2", "SCAVENGER_STORE": "sqlite:///s"}

    def test_a_service_gives_what_the_submitter_has_not(self) -> None:
        found = runner_environment(self.GIVEN, "sqlite:///s", background=False, environ=self.SERVER)
        assert found["DATA_VERSION"] == "2"
        assert found["AWS_PROFILE"] == "of-the-service"
        assert reaper.VARIABLE not in found

    def test_what_was_submitted_elsewhere_has_the_servers_and_what_was_given(self) -> None:
        given = GivenEnvironment({"KEY": "k"}, whole=False)
        found = runner_environment(given, "sqlite:///s", background=True, environ=self.SERVER)
        assert (found["DATA_VERSION"], found["KEY"]) == ("1", "k")
        assert (
            runner_environment(None, "sqlite:///s", background=True, environ=self.SERVER)["DATA_VERSION"]
            == "1"
        )

    def test_a_job_whose_environment_cannot_be_read_ends_with_the_reason(
        self, store: Store, tmp_path: Path
    ) -> None:
        one = submitted(store, str(tmp_path), environment=self.GIVEN)
        (tmp_path / f"environment-key-{os.getuid()}").unlink()
        Server(store, QueueLimits()).tick()

        ended = now(store, one)
        assert ended.state == "ended"
        assert "is gone; submit it again" in ended.reason


class TestRounds:
    def test_a_job_whose_runner_cannot_be_started_is_tried_again_and_begins_when_the_fault_has_passed(
        self, store: Store, tmp_path: Path
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        one, clock = submitted(store, str(blocked)), Clock()
        server = Server(store, QueueLimits(), clock=clock)
        for faults in range(1, STARTS_MAX + 3):
            assert server.tick()
            waits = now(store, one)
            assert (waits.state, waits.starts.fruitless, waits.starts.faults) == ("queued", 0, faults)
            assert waits.reason.startswith("its runner cannot be started: File exists")
            assert server.tick()
            assert now(store, one).starts.count == faults  # it rests
            clock.at += 300.0
        blocked.unlink()
        blocked.mkdir()
        assert server.tick()
        assert now(store, one).state == "running"
        _ended(server)

    def test_one_that_ran_and_whose_next_runner_cannot_be_started_waits_for_it(
        self, store: Store, tmp_path: Path
    ) -> None:
        one = submitted(store, str(tmp_path))
        assert store.start_runner(one.id, "", None)
        store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml", job_id=one.id)
        server = Server(store, QueueLimits())
        with _without_descriptors():
            server.tick()

        waits = now(store, one)
        assert (waits.state, waits.starts.fruitless, waits.starts.faults) == ("queued", 1, 1)
        assert waits.reason.startswith("its runner cannot be started: Too many open files")

    def test_a_job_whose_runner_can_never_be_started_ends_with_the_reason(
        self, store: Store, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        one, clock = submitted(store, str(tmp_path / "file")), Clock()
        server = Server(store, QueueLimits(), clock=clock)
        while server.tick():
            clock.at += 300.0

        ended = now(store, one)
        assert (ended.state, ended.starts.count) == ("ended", FAULTS_MAX)
        assert ended.reason.startswith(
            "it could not begin in 20 attempts; its runner cannot be started: File"
        )

    def test_why_a_job_waits_is_on_record(self, store: Store) -> None:
        waits = submitted(store, rents=True)
        server = Server(store, QueueLimits(budget_usd=1.0))
        assert server.tick()

        assert now(store, waits).reason == (
            "it needs a limit, constraints.budget: $1.00 is left of the budget of all users, $1.00"
        )
        store.cancel(waits.id, "")
        assert not server.tick()

    def test_of_two_jobs_that_two_servers_begin_at_once_one_waits_where_the_budget_pays_for_one(
        self, store: Store
    ) -> None:
        mine, others = (submitted(store, f"/{name}", rents=True, reserved_usd=50.0) for name in ("a", "b"))

        class Overtaken(Server):
            """Another server begins the other job while this one decides."""

            def backlog(self) -> Backlog:
                found = super().backlog()
                store.start_runner(others.id, "elsewhere/1/1.0", None)
                return found

        server = Overtaken(store, QueueLimits(budget_usd=60.0))
        server.tick()
        assert (now(store, mine).state, now(store, others).state) == ("queued", "running")
        server.tick()
        assert now(store, mine).reason == (
            "it may cost $50.00, and $10.00 is left of the budget of all users, $60.00"
        )

    def test_a_budget_of_the_store_holds_for_servers_that_were_given_none(self, store: Store) -> None:
        store.set_budgets(StoredBudgets(20.0))
        waits = submitted(store, rents=True, reserved_usd=50.0)
        Server(store, QueueLimits(budget_usd=100.0), idle_s=60.0).tick()

        assert now(store, waits).reason.startswith("it may cost $50.00, and $20.00 is left")

    def test_a_job_that_began_after_the_backup_that_was_restored_is_not_begun_again(
        self, store: Store, tmp_path: Path
    ) -> None:
        one = submitted(store, str(tmp_path))
        folder = tmp_path / ".scavenger" / one.id
        folder.mkdir(parents=True)
        (folder / "record.json").write_text("{}")
        Server(store, QueueLimits()).tick()

        assert (now(store, one).state, now(store, one).starts.count) == ("ended", 0)
        assert now(store, one).reason.endswith(f"scavenger store recover {folder}")

    def test_jobs_of_other_machines_and_accounts_are_left_alone(self, store: Store) -> None:
        other = store.submit(NewSubmission("tiny", {}, "/job.yaml", "ann", "elsewhere", os.getuid()))
        third = store.submit(NewSubmission("tiny", {}, "/job.yaml", "ann", HOST, os.getuid() + 1))

        assert not Server(store, QueueLimits()).tick()
        assert (now(store, other).state, now(store, third).state) == ("queued", "queued")

    def test_a_machine_that_is_renamed_goes_on_with_its_jobs(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits = submitted(store)
        begun = _with_dead_runner(store)  # of the host's name before
        with _holder(store, 1.0, 1.0) as process:
            monkeypatch.setattr("socket.gethostname", lambda: "renamed")
            clock = Clock()
            server = Server(store, QueueLimits(jobs_max=0), clock=clock)
            server.start()
            assert live_server(store) == store.servers()[0]
            assert [one.id for one in server.backlog().queued] == [waits.id]
            assert server.tick()
            assert (
                now(store, begun).starts.count == 1
            )  # its process cannot be told by a name, so its silence decides
            for _ in range(14):
                clock.at += 5.0
                server.tick()
            assert process.poll() is None
            assert now(store, begun).starts.count == 2
            _ended(server)

    def test_a_cancelled_job_whose_runner_is_dead_ends_as_interrupted(self, store: Store) -> None:
        one = _with_dead_runner(store)
        store.cancel(one.id, "cancelled by ann")
        Server(store, QueueLimits()).tick()

        assert (now(store, one).state, now(store, one).reason) == ("ended", "cancelled by ann")
        assert (store.job(one.id).state, store.job(one.id).error) == ("interrupted", "cancelled by ann")
        lease = store.lease(runner_lease(one.id))
        assert lease is not None
        assert lease.holder == ""

    def test_a_job_whose_runners_die_without_progress_ends_as_failed(self, store: Store) -> None:
        one = _with_dead_runner(store)
        for _ in range(STARTS_MAX - 1):
            assert store.start_runner(one.id, DEAD, store.lease(runner_lease(one.id)))
        Server(store, QueueLimits()).tick()

        assert now(store, one).state == "ended"
        assert (store.job(one.id).state, store.job(one.id).exit_code) == ("failed", None)
        assert "5 times in a row" in store.job(one.id).error

    def test_the_submission_of_a_job_that_ended_before_its_runner_died_ends_too(self, store: Store) -> None:
        one = _with_dead_runner(store)
        store.finish_job(one.id, state="succeeded", report=None, exit_code=0)
        Server(store, QueueLimits()).tick()

        assert (now(store, one).state, now(store, one).reason) == ("ended", "succeeded")

    def test_the_log_of_a_runner_is_beside_those_of_its_job(self, store: Store) -> None:
        one = submitted(store, "/home/ann")

        assert runner_log(one) == Path(f"/home/ann/.scavenger/{one.id}/logs/runner.log")


class TestSilentRunners:
    """A process of its own holds the lease of a runner, and does not renew it."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def server(self, store: Store, clock: Clock) -> Server:
        return Server(store, QueueLimits(), clock=clock)

    def run_for(self, server: Server, clock: Clock, seconds: float) -> None:
        for _ in range(round(seconds / 5.0)):
            clock.at += 5.0
            server.tick()

    def test_one_that_does_not_answer_is_ended(self, store: Store, server: Server, clock: Clock) -> None:
        with _holder(store) as process:
            self.run_for(server, clock, SILENT_S)
            assert process.poll() is None
            self.run_for(server, clock, 15.0)
            assert process.wait(10.0) == -signal.SIGKILL

    def test_one_that_answers_goes_on_though_it_cannot_renew_its_lease(
        self, store: Store, server: Server, clock: Clock
    ) -> None:
        with _holder(store, 1.0, 2.0 * SILENT_S) as process:  # its job is its own matter
            self.run_for(server, clock, 4 * SILENT_S)
            assert process.poll() is None

    def test_one_whose_job_does_not_do_what_its_pool_asks_for_is_ended_if_it_does_not_work(
        self, store: Store, server: Server, clock: Clock
    ) -> None:
        with _holder(store, 1.0, 2.0 * SILENT_S) as process:
            (one,) = store.submissions()
            server._pools.late = {one.id: "it has not become 2 workers"}
            self.run_for(server, clock, 5.0)
            assert process.wait(10.0) == -signal.SIGKILL

    def test_a_store_that_was_away_and_a_machine_that_slept_end_nobody(
        self, store: Store, server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with _holder(store) as process:
            self.run_for(server, clock, SILENT_S - 10.0)
            clock.at += 90.0  # both were suspended
            self.run_for(server, clock, SILENT_S - 10.0)
            with monkeypatch.context() as away:
                away.setattr(store, "backlog", _out_of_service)
                for _ in range(66):
                    clock.at += 1.0
                    with pytest.raises(StoreUnavailableError):
                        server.tick()
            self.run_for(server, clock, SILENT_S - 10.0)
            assert process.poll() is None


def test_limits_are_read_from_the_settings_file() -> None:
    service = parse_settings(
        '[service]\njobs = 3\nbudget = "$200"\nbudgets = {ann = "$5"}\n', path="c"
    ).service

    assert (service.jobs, service.budget, service.budgets) == (3, 200.0, {"ann": 5.0})
    with pytest.raises(JobFileError, match=r"unknown key 'job' in service.*did you mean"):
        parse_settings("[service]\njob = 3\n", path="c")


def _with_dead_runner(store: Store) -> Submission:
    """A submission whose first runner has put its job on record, and died."""
    one = submitted(store)
    lease = store.start_runner(one.id, DEAD, None)
    assert lease is not None
    store.create_job("tiny", spec={}, job_file="/nowhere/job.yaml", job_id=one.id)
    return one


def _ended(server: Server) -> None:
    """End the runners that a server has started, whose jobs do not exist."""
    for child in server._children.values():
        child.kill()
        child.wait()


@contextmanager
def _without_descriptors() -> Iterator[None]:
    """This process has none left for what a runner needs, and its store has what it needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        spare = [stack.enter_context(open(os.devnull)) for _ in range(8)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(one.fileno() for one in spare) + 1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _out_of_service(*_: object) -> Backlog:
    raise StoreUnavailableError("the database is away")


_HOLDER = """
import sys
from scavenger.control.provisioning.lease_holder import holder_name
from scavenger.control.service.life import answering
from contextlib import ExitStack
with ExitStack() as stack:
    if idle := [float(each) for each in sys.argv[1:]]:
        stack.enter_context(answering(*(lambda each=each: each for each in idle)))
    print(holder_name(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder(store: Store, *idle_s: float) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease of a submission's runner as long as the block, and answers this, if anything."""
    command = [sys.executable, "-c", _HOLDER, *map(str, idle_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert store.start_runner(submitted(store).id, process.stdout.readline().strip(), None)
        yield process
    finally:
        process.kill()
        process.communicate()
