"""Laws of jobs: what is written is read, what has ended stays, the dead are told from the living."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from properties import examples
from store_values import (
    ANOTHER_MACHINE,
    FINGERPRINT,
    Clock,
    configurations,
    documents,
    fingerprints,
    measurements,
    positive,
    start_python,
)

from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import Actual, Predicted
from scavenger.errors import ConfigurationError, StoreError
from scavenger.store import Store
from scavenger.store.owner import HEARTBEAT_STALE, is_alive
from scavenger.store.records import JobRecord

intervals = st.tuples(positive, positive)
predictions = st.builds(Predicted, positive, intervals, positive, intervals, positive, positive)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for many examples, since making one costs more than all of them."""
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('shared')}/s.db") as store:
        yield store


def new_job(store: Store, name: str = "digits", job_file: str = "job.yaml") -> JobRecord:
    return store.create_job(name, spec={"version": 1, "name": name}, job_file=job_file)


class TestAJobsLife:
    def test_a_new_job_is_owned_by_this_process_and_alive(self, store: Store) -> None:
        job = new_job(store)

        assert (job.state, job.owner.pid, job.owner.host) == ("starting", os.getpid(), socket.gethostname())
        assert store.is_alive(job)
        assert not job.ended
        assert store.job(job.id) == job
        assert job.created_at.tzinfo is UTC

    def test_training_starts_once_and_ends_with_the_report(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            job = new_job(store)
            clock.pass_(5)
            store.update_job(job.id, state="profiling", phase="profiling", detail="1 of 4")
            clock.pass_(5)
            store.update_job(job.id, state="running", step=40, cost_usd=0.25)
            clock.pass_(5)
            ended = store.finish_job(
                job.id,
                state="succeeded",
                report={"steps": 41, "odd": math.nan},
                exit_code=0,
                model_path="/m.keras",
            )

            assert ended == store.job(job.id)
            assert (ended.started_at, ended.ended_at) == (
                job.created_at.replace(second=5),
                job.created_at.replace(second=15),
            )
            assert (ended.phase, ended.detail, ended.step, ended.cost_usd) == (
                "profiling",
                "1 of 4",
                40,
                0.25,
            )
            assert (ended.report, ended.exit_code, ended.model_path) == (
                {"steps": 41, "odd": None},
                0,
                "/m.keras",
            )
            assert ended.ended
            assert not store.is_alive(ended)

    def test_a_job_that_has_ended_stays_as_it_is(self, store: Store) -> None:
        job = new_job(store)
        ended = store.finish_job(job.id, state="failed", report=None, error="it broke", exit_code=6)

        with pytest.raises(StoreError, match="already ended as failed"):
            store.update_job(job.id, detail="still here")
        with pytest.raises(StoreError, match="already ended as failed"):
            store.finish_job(job.id, state="succeeded", report=None, exit_code=0)
        store.heartbeat(job.id)
        assert store.job(job.id) == ended

    def test_only_finish_ends_and_only_with_a_final_state(self, store: Store) -> None:
        job = new_job(store)

        with pytest.raises(StoreError, match="a state that ends it"):
            store.update_job(job.id, state="stopped")
        with pytest.raises(StoreError, match="state of a live job"):
            store.finish_job(job.id, state="running", report=None, exit_code=0)
        with pytest.raises(TypeError, match="colour"):
            store.update_job(job.id, colour="red")  # type: ignore[call-arg]
        assert store.job(job.id) == job

    def test_an_unknown_job_is_named_by_every_writer(self, store: Store) -> None:
        for write in (
            lambda: store.update_job("none", detail=""),
            lambda: store.heartbeat("none"),
            lambda: store.finish_job("none", state="failed", report=None, exit_code=1),
            lambda: store.set_process("none", "w1", role="worker", state="ready"),
            lambda: store.add_event("none", "note", "hello"),
            lambda: store.add_measurements("none", []),
        ):
            with pytest.raises(ConfigurationError, match="there is no job none"):
                write()

    def test_what_the_schema_forbids_is_one_line_and_changes_nothing(self, store: Store) -> None:
        job = new_job(store)

        with pytest.raises(StoreError, match="cost_usd") as caught:
            store.update_job(job.id, detail="free", cost_usd=-1.0)
        assert "\n" not in str(caught.value)
        assert store.job(job.id) == job

    def test_bytes_that_no_database_takes_do_not_lose_the_message(self, store: Store) -> None:
        job = new_job(store, job_file="/tmp/caf\udce9.yaml")
        ended = store.finish_job(job.id, state="failed", report=None, error="bad \0 byte", exit_code=6)

        assert ended.job_file == "/tmp/caf\\udce9.yaml"
        assert ended.error == "bad \\x00 byte"

    @examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(documents, fingerprints, configurations, predictions)
    def test_every_field_is_read_as_written(
        self, shared: Store, spec: dict, fingerprint: object, chosen: Configuration, predicted: Predicted
    ) -> None:
        actual = Actual(predicted.time_s, predicted.cost_usd, predicted.step_time_s, predicted.epochs)
        job = shared.create_job("any", spec=spec, job_file="job.yaml")
        shared.update_job(job.id, fingerprint=fingerprint, chosen=chosen, predicted=predicted, actual=actual)

        assert shared.job(job.id) == replace(
            job, fingerprint=fingerprint, chosen=chosen, predicted=predicted, actual=actual
        )

    def test_a_figure_without_bound_is_read_as_unknown(self, store: Store) -> None:
        job = new_job(store)
        store.update_job(job.id, predicted=Predicted(9.0, (1.0, math.inf), 1.0, (1.0, 2.0), 0.1, 3.0))

        predicted = store.job(job.id).predicted
        assert predicted is not None
        assert predicted.time_interval_s[0] == 1.0
        assert math.isnan(predicted.time_interval_s[1])


class TestFindingAJob:
    def test_by_id_by_prefix_and_by_name_with_the_latest_first(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            jobs = []
            for name in ("digits", "imdb", "digits"):
                jobs.append(new_job(store, name))
                clock.pass_(1)

            assert store.job("digits") == jobs[2]
            assert store.job(jobs[0].id) == jobs[0]
            assert store.job(jobs[1].id[:13]) == jobs[1]
            assert store.jobs() == tuple(reversed(jobs))
            assert store.jobs(1) == (jobs[2],)

    def test_a_slip_is_answered_with_what_was_meant(self, store: Store) -> None:
        with pytest.raises(ConfigurationError, match="holds no job yet"):
            store.job("digits")
        job = new_job(store)

        with pytest.raises(ConfigurationError, match="did you mean 'digits'"):
            store.job("digit")
        with pytest.raises(ConfigurationError, match="lists the jobs"):
            store.job(job.id[:3])
        with pytest.raises(ConfigurationError, match="no job '%%%%'"):
            store.job("%%%%")

    def test_listings_leave_the_report_out(self, store: Store) -> None:
        job = new_job(store)
        ended = store.finish_job(job.id, state="planned", report={"curve": []}, exit_code=0)

        assert ended.report == {"curve": []}
        assert store.jobs() == (replace(ended, report=None),)


class TestTheLivingAndTheDead:
    @pytest.mark.slow
    def test_a_job_whose_process_was_killed_is_reaped_once(self, url: str) -> None:
        code = (
            "import sys; from scavenger.store import Store; store = Store.open(sys.argv[1]);"
            "print(store.create_job('dies', spec={}, job_file='job.yaml').id, flush=True); sys.stdin.read()"
        )
        with Store.open(url) as store, start_python(code, url) as child:
            assert child.stdout is not None
            job_id = child.stdout.readline().strip()
            mine = new_job(store)

            assert {job.id for job in store.running_jobs("job.yaml")} == {job_id, mine.id}
            assert store.running_jobs("other.yaml") == ()
            assert store.reap_dead_jobs() == ()

            child.kill()
            child.wait()
            assert [job.id for job in store.running_jobs()] == [mine.id]
            assert [job.id for job in store.reap_dead_jobs()] == [job_id]
            assert store.reap_dead_jobs() == ()
            reaped = store.job(job_id)
            assert (reaped.state, reaped.exit_code) == ("failed", None)
            assert f"process {child.pid} ended unexpectedly" in reaped.error
            assert store.job(mine.id) == mine

    @pytest.mark.slow
    def test_a_zombie_is_dead(self, store: Store) -> None:
        child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.read()  # ends when the child does, which is then not yet waited for
        try:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            job = new_job(store)
            assert not store.is_alive(replace(job, owner=replace(job.owner, pid=child.pid)))
        finally:
            child.wait()
            child.stdout.close()

    def test_a_pid_used_again_is_dead_once_its_heartbeat_is_stale(self, store: Store) -> None:
        job = new_job(store)
        unborn = replace(job.owner, started_at_s=job.owner.started_at_s - 3600, birth="")
        reused = replace(job, owner=unborn)  # of an earlier version

        assert is_alive(reused, at=job.heartbeat_at)
        assert not is_alive(reused, at=job.heartbeat_at + HEARTBEAT_STALE)
        assert is_alive(job, at=job.heartbeat_at + 100 * HEARTBEAT_STALE)

    def test_elsewhere_only_the_heartbeat_counts_and_nothing_is_reaped(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            job = new_job(store)
            elsewhere = replace(job, owner=ANOTHER_MACHINE)

            assert store.is_alive(elsewhere)
            clock.pass_(HEARTBEAT_STALE.total_seconds())
            assert not store.is_alive(elsewhere)
            store.heartbeat(job.id)
            assert store.is_alive(replace(store.job(job.id), owner=elsewhere.owner))


class TestWhatHappens:
    def test_a_process_keeps_what_was_known_of_it(self, store: Store) -> None:
        job = new_job(store)
        store.set_process(job.id, "worker-1", role="worker", state="starting", pid=77)
        store.set_process(job.id, "worker-1", role="worker", state="training", step=5, view=2)
        store.set_process(job.id, "worker-10", role="worker", state="ready")
        store.set_process(job.id, "worker-2", role="worker", state="ready")
        store.set_process(job.id, "aggregator-0", role="aggregator", state="ready")

        processes = store.processes(job.id)
        assert [each.process for each in processes] == ["worker-1", "worker-2", "worker-10", "aggregator-0"]
        assert (processes[0].pid, processes[0].state, processes[0].step, processes[0].view) == (
            77,
            "training",
            5,
            2,
        )

    def test_only_the_newest_events_of_each_job_are_kept(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scavenger.store.progress.EVENTS_MAX", 20)
        busy, quiet = new_job(store), new_job(store)
        store.add_event(quiet.id, "note", "kept", level="warning")
        for number in range(25):
            store.add_event(busy.id, "note", str(number))

        kept = store.events(busy.id)
        assert [event.message for event in kept] == [str(number) for number in range(5, 25)]
        assert [(event.message, event.level) for event in store.events(quiet.id)] == [("kept", "warning")]
        assert store.events(busy.id, after=kept[-3].id) == kept[-2:]
        assert store.events(busy.id, limit=2) == kept[-2:]

    @examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(measurements, max_size=5, unique_by=lambda each: each.configuration))
    def test_measurements_are_read_as_written_and_in_order(self, shared: Store, taken: list) -> None:
        job = new_job(shared)
        shared.add_measurements(job.id, taken)
        shared.add_measurements(job.id, taken[1:2])

        assert shared.measurements(job.id) == tuple(taken)

    def test_a_configuration_measured_again_replaces_the_first(self, store: Store) -> None:
        job = new_job(store)
        first = measurement_of(step_time_s=0.2)
        store.add_measurements(job.id, [first])
        store.add_measurements(job.id, [replace(first, step_time_s=0.1)])

        assert store.measurements(job.id) == (replace(first, step_time_s=0.1),)

    @pytest.mark.parametrize("step_time_s", [0.0, -1.0, math.nan])
    def test_a_time_that_is_none_is_refused_with_all_that_came_with_it(
        self, sqlite_url: str, step_time_s: float
    ) -> None:
        with Store.open(sqlite_url) as store:
            job = new_job(store)
            good = measurement_of(step_time_s=0.1)
            bad = replace(good, configuration=Configuration("e2", 2, 64), step_time_s=step_time_s)

            with pytest.raises(StoreError, match="step_time_s"):
                store.add_measurements(job.id, [good, bad])
            assert store.measurements(job.id) == ()

    def test_a_fingerprint_is_shared_by_jobs_of_a_kind(self, store: Store) -> None:
        jobs = [new_job(store), new_job(store)]
        for job in jobs:
            store.update_job(job.id, fingerprint=FINGERPRINT)

        assert {job.fingerprint for job in store.jobs()} == {FINGERPRINT}


def measurement_of(step_time_s: float) -> Measurement:
    return Measurement(Configuration("e2", 1, 64), 20, step_time_s, 0.01, 0.06, 0.04, 1.5, None, 1 << 30)
