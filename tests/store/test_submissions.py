"""Laws of the queue: each submission is run by one runner at a time, and one that was replaced writes nothing more."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from properties import examples
from store_values import Clock

from scavenger.control.service.runner import take_over
from scavenger.domain.intent import Fence, Lease
from scavenger.domain.submission import (
    GivenEnvironment,
    NewSubmission,
    RunnerStarts,
    ServerRecord,
    Submission,
    runner_lease,
)
from scavenger.errors import ConfigurationError, LeaseLostError, TransientError
from scavenger.store import Store
from scavenger.store.owner import this_process

HOST, UID = socket.gethostname(), os.getuid()
JOB = NewSubmission("digits", {"version": 1}, "/home/ann/job.yaml", "ann", HOST, UID)


def backlog(store: Store, **changed: Any) -> Any:
    return store.backlog(**{"host": HOST, "uid": UID, "since": Clock().at, **changed})


def started(store: Store, job: Submission, holder: str = "server-1") -> Fence:
    """Start the next runner, which takes over its lease; the fence under which it writes."""
    lease = store.start_runner(job.id, holder, store.lease(runner_lease(job.id)))
    assert lease is not None
    taken = store.hand_over_lease(lease.fence, "runner")
    assert taken is not None
    return taken.fence


@contextmanager
def as_runner(url: str, fence: Fence) -> Iterator[Store]:
    with Store.open(url) as store:
        store.fence(fence)
        yield store


class TestEnvironments:
    GIVEN = GivenEnvironment({"DATA_VERSION": "2", "KEY": "tell-nobody-ä"}, whole=True)

    def test_what_a_submission_was_given_is_kept_sealed_also_for_its_next_attempt(
        self, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        with Store.open(url) as store:
            plain = store.submit(JOB)
            given = store.submit(replace(JOB, environment=self.GIVEN))
            assert store.environment_of(plain.id) is None
            assert store.environment_of(given.id) == self.GIVEN
            assert given.job.environment is None
            assert "tell-nobody" not in repr(self.GIVEN)

            store.cancel(given.id, "withdrawn")
            store.submit_again(given.id, JOB)
            assert store.environment_of(given.id) == self.GIVEN
            store.cancel(given.id, "withdrawn")
            other = GivenEnvironment({}, whole=False)
            store.submit_again(given.id, replace(JOB, environment=other))
            assert store.environment_of(given.id) == other

    def test_it_is_not_in_the_database_and_is_refused_without_its_key(self, tmp_path: Path) -> None:
        with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as store:
            given = store.submit(replace(JOB, environment=self.GIVEN))
            for path in tmp_path.iterdir():
                assert b"tell-nobody" not in path.read_bytes(), path
            key = tmp_path / f"environment-key-{UID}"
            assert key.stat().st_mode & 0o777 == 0o600

            key.rename(tmp_path / "away")
            with pytest.raises(ConfigurationError, match=rf"{key} is gone; submit it again"):
                store.environment_of(given.id)
            store.submit(replace(JOB, environment=self.GIVEN))
            with pytest.raises(ConfigurationError, match=rf"{key} is another key by now"):
                store.environment_of(given.id)
            key.write_text("nothing")
            with pytest.raises(ConfigurationError, match=rf"{key} has no key"):
                store.environment_of(given.id)


class TestSubmitting:
    def test_a_submission_is_read_back_as_it_was_given(self, url: str) -> None:
        new = replace(JOB, rents=True, reserved_usd=2.5, audit=True, priority=3, idempotency_key="k")
        with Store.open(url, clock=Clock()) as store:
            job = store.submit(new)

            assert job.job == new
            assert (job.state, job.reason, job.cancelling, job.starts.count) == ("queued", "", False, 0)
            assert (job.starts.step, job.submitted_at, job.started_at, job.ended_at) == (
                None,
                Clock().at,
                None,
                None,
            )
            assert (
                store.submission(job.id) == store.submission(job.id[:6]) == store.submission("digits") == job
            )
            assert backlog(store).queued == (job,)

    def test_the_same_key_of_the_same_user_submits_once(self, store: Store) -> None:
        first = store.submit(replace(JOB, idempotency_key="k"))

        assert store.submit(replace(JOB, idempotency_key="k", priority=9)) == first
        assert store.submit(replace(JOB, idempotency_key="k", user="bob")).id != first.id
        assert store.submit(JOB).id != store.submit(JOB).id
        with pytest.raises(ConfigurationError, match="'k' was used for another job"):
            store.submit(replace(JOB, idempotency_key="k", spec={"version": 2}))

    def test_of_many_with_one_key_at_once_one_is_submitted(self, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: store.submit(replace(JOB, idempotency_key="k")).id, range(8)))

        assert len(set(found)) == len(store.submissions()) == 1

    def test_pages_and_filters(self, store: Store) -> None:
        jobs = [store.submit(replace(JOB, user=user)) for user in ("ann", "bob", "ann", "bob")]

        first = store.submissions(limit=3)
        assert [job.id for job in first] == [job.id for job in reversed(jobs[1:])]
        assert [job.id for job in store.submissions(before=first[-1].number)] == [jobs[0].id]
        assert [job.id for job in store.submissions(user="bob")] == [jobs[3].id, jobs[1].id]
        assert store.submissions(states=("ended",)) == ()

    def test_a_job_that_ended_can_be_submitted_again(self, store: Store) -> None:
        job = store.submit(JOB)
        with pytest.raises(ConfigurationError, match="queued already"):
            store.submit_again(job.id, JOB)
        assert store.end_submission(started(store, job), job.id, "done")

        again = store.submit_again(job.id, JOB)
        assert (again.id, again.state, again.starts.count) == (job.id, "queued", 0)
        assert started(store, again).token > 2  # its leases go on counting


class TestRunners:
    def test_a_runner_takes_over_its_lease_and_ends_the_submission(self, url: str) -> None:
        with Store.open(url) as store:
            job = store.submit(JOB)
            fence = started(store, job)
            with as_runner(url, fence) as runner:
                record = runner.create_job("digits", spec={}, job_file="/job.yaml", job_id=job.id)
                runner.update_job(job.id, state="running", step=5, cost_usd=0.25)
                (seen,) = backlog(store).running
                assert (record.id, seen.step, seen.cost_usd, seen.job_state) == (job.id, 5, 0.25, "running")
                assert seen.lease == Lease(fence.name, "runner", fence.token, 0)
                assert runner.renew_lease(fence)
                assert store.lease(fence.name) == Lease(fence.name, "runner", fence.token, 1)
                assert runner.end_submission(fence, job.id, "succeeded")
                with pytest.raises(LeaseLostError):
                    runner.update_job(job.id, step=6)

            ended = store.submission(job.id)
            assert ended is not None
            assert (ended.state, ended.reason, ended.starts.count) == ("ended", "succeeded", 1)
            assert backlog(store).running == ()

    def test_of_servers_that_start_a_runner_at_once_one_does(self, url: str) -> None:
        with Store.open(url) as store, Store.open(url) as other:
            job = store.submit(JOB)
            with ThreadPoolExecutor(4) as pool:
                taken = list(
                    pool.map(
                        lambda number: (store, other)[number % 2].start_runner(job.id, f"s{number}", None),
                        range(4),
                    )
                )
            assert len([lease for lease in taken if lease is not None]) == 1

    def test_a_runner_that_was_replaced_writes_nothing_more(self, url: str) -> None:
        with Store.open(url) as store:
            job = store.submit(JOB)
            first = started(store, job)
            with as_runner(url, first) as stalled:
                stalled.create_job("digits", spec={}, job_file="/job.yaml", job_id=job.id)
                stalled.update_job(job.id, step=3)
                second = started(store, job, "server-2")
                for write in (
                    lambda: stalled.update_job(job.id, step=4),
                    lambda: stalled.add_event(job.id, "note", "late"),
                    lambda: stalled.heartbeat(job.id),
                    lambda: stalled.finish_job(job.id, state="failed", report=None, exit_code=1),
                    lambda: stalled.end_submission(first, job.id, "late"),
                    lambda: stalled.renew_lease(first),
                ):
                    with pytest.raises(LeaseLostError, match="taken over"):
                        write()
                with pytest.raises(LeaseLostError), stalled.together():
                    stalled.update_job(job.id, step=5)
                assert stalled.job(job.id).step == 3  # it may read
            assert not store.renew_lease(first)
            assert not store.end_submission(first, job.id, "late")
            assert store.requeue(second, job.id, "its file is in use")
            queued = store.submission(job.id)
            assert queued is not None
            assert (queued.state, queued.reason) == ("queued", "its file is in use")

    def test_a_runner_whose_server_died_before_it_could_take_over_is_refused(self, store: Store) -> None:
        job = store.submit(JOB)
        late = store.start_runner(job.id, "server-1", None)
        assert late is not None
        started(store, job, "server-2")

        assert store.hand_over_lease(late.fence, "runner") is None

    def test_a_runner_whose_lease_was_taken_over_and_the_answer_lost_has_it(self, store: Store) -> None:
        job = store.submit(JOB)
        lease = store.start_runner(job.id, "server", None)
        assert lease is not None
        first = take_over(store, lease.fence, "runner")

        assert take_over(store, lease.fence, "runner") == first
        assert take_over(store, lease.fence, "another") is None

    def test_starts_without_progress_are_counted(self, url: str) -> None:
        with Store.open(url) as store:
            job = store.submit(JOB)
            for expected in (1, 2):
                started(store, job)
                assert store.submission(job.id).starts.fruitless == expected  # type: ignore[union-attr]
            store.create_job("digits", spec={}, job_file="/job.yaml", job_id=job.id)
            store.update_job(job.id, step=7)
            started(store, job)
            found = store.submission(job.id)
            assert found is not None
            assert found.starts == RunnerStarts(3, 1, 0, 7)

    def test_a_job_without_checkpoint_may_start_again_under_its_runner(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = store.submit(JOB)
        started(store, job)
        with monkeypatch.context() as dead:
            gone = replace(this_process(), pid=4_194_303)
            dead.setattr("scavenger.store.base.this_process", lambda: gone)
            store.create_job("digits", spec={}, job_file="/job.yaml", job_id=job.id)
        assert store.reap_dead_jobs() == ()  # a server starts its next runner
        with pytest.raises(ConfigurationError, match="before its first checkpoint"):
            store.resume_job(job.id)
        assert store.resume_job(job.id, again=True).attempts == 2
        with pytest.raises(TransientError, match="it runs"):
            store.resume_job(job.id, again=True)


class TestCancelling:
    def test_one_that_waits_is_withdrawn_and_one_that_runs_is_told(self, store: Store) -> None:
        waiting, running = store.submit(JOB), store.submit(JOB)
        fence = started(store, running)

        assert store.cancel(waiting.id, "by ann").state == "cancelled"  # type: ignore[union-attr]
        told = store.cancel(running.id, "by ann")
        assert told is not None
        assert (told.state, told.cancelling, told.reason) == ("running", True, "by ann")
        assert store.start_runner(waiting.id, "s", None) is None
        assert store.end_submission(fence, running.id, "interrupted")
        assert store.cancel(running.id, "late").reason == "interrupted"  # type: ignore[union-attr]
        assert store.cancel("none", "") is None


class TestBacklog:
    def test_a_file_that_a_live_job_uses_is_told(self, store: Store) -> None:
        waiting = store.submit(replace(JOB, job_file="/c.yaml"))
        live = store.create_job("digits", spec={}, job_file="/c.yaml")

        assert backlog(store).busy_files == {waiting.job.job_file: live.id}
        store.finish_job(live.id, state="failed", report=None, exit_code=1)
        assert backlog(store).busy_files == {}


def test_servers_are_listed_while_they_live(url: str) -> None:
    clock, me = Clock(), this_process()
    alive = ServerRecord(
        "a", me.host, me.pid, me.started_at_s, me.user, UID, "", "0.1", True, clock.at, clock.at
    )
    with Store.open(url, clock=clock) as store:
        store.put_server(alive)
        store.put_server(replace(alive, id="b", pid=4_194_303))
        store.put_server(replace(alive, id="c", host="elsewhere"))
        assert [server.id for server in store.servers()] == ["a", "c"]
        clock.pass_(61)
        store.put_server(alive)
        assert store.servers() == (replace(alive, heartbeat_at=clock.at),)
        assert len(store.servers(alive=False)) == 3
        store.remove_server("a")
        assert store.servers() == ()


# ---- schedules ---------------------------------------------------------------------------------------------

_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["look", "start", "adopt", "write", "write", "end"]), st.integers(0, 7)),
    max_size=40,
)


class _Runner:
    """A runner process as it may be at any moment: started with a lease, and perhaps stalled since then."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.store, self.lease, self.writes = store, lease, False


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=_ACTIONS)
def test_never_two_runners_write_for_one_job(url: str, actions: list[tuple[str, int]]) -> None:
    """Two servers that both take every runner for dead at any moment, and runners that stall and come back."""
    with Store.open(url) as store:
        job = store.submit(JOB)
        store.create_job("digits", spec={}, job_file="/job.yaml", job_id=job.id)
        name = runner_lease(job.id)
        seen: list[Lease | None] = [None, None]
        runners: list[_Runner] = []
        order: list[int] = []  # tokens of runners, in the order in which they took over
        for action, number in actions:
            server = number % 2
            runner = runners[number % len(runners)] if runners else None
            if action == "look":
                seen[server] = store.lease(name)
            elif action == "start":
                lease = store.start_runner(job.id, f"server-{server}", seen[server])
                if lease is not None:
                    runners.append(_Runner(Store.open(url), lease))
            elif runner is None:
                continue
            elif action == "adopt" and not runner.writes:
                taken = store.hand_over_lease(runner.lease.fence, "runner")
                if taken is not None:
                    runner.lease, runner.writes = taken, True
                    runner.store.fence(taken.fence)
                    order.append(taken.token)
            elif action in ("write", "end") and runner.writes:
                newest = store.lease(name)
                assert newest is not None
                try:
                    if action == "end":
                        runner.store.end_submission(runner.lease.fence, job.id, "ended")
                    else:
                        runner.store.add_event(job.id, "step", str(runner.lease.token))
                except LeaseLostError:
                    assert newest.token > runner.lease.token or not newest.holder
                else:
                    assert newest.token == runner.lease.token
        wrote = [int(event.message) for event in store.events(job.id, limit=100)]
        assert wrote == sorted(wrote)
        assert order == sorted(order)
        assert set(wrote) <= set(order)
        for runner in runners:
            runner.store.close()
