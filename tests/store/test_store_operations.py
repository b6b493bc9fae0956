"""Laws of operations: one at a time, each answered once, and none outlives its job."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.exc import IntegrityError
from store_values import ANOTHER_MACHINE, Clock, start_python

from scavenger.domain.operation import Migrate, ScaleIn, ScaleOut, ScaleTo, StopJob, operation_document
from scavenger.errors import ConfigurationError, StoreBusyError, StoreError, TransientError
from scavenger.store import Store
from scavenger.store.database import ADVISORY_LOCK, HURRIED_WAIT_S
from scavenger.store.owner import HEARTBEAT_STALE
from scavenger.store.records import JobRecord
from scavenger.store.schema import OperationRow


def new_job(store: Store, state: str = "running") -> JobRecord:
    job = store.create_job("digits", spec={}, job_file="job.yaml")
    store.update_job(job.id, state=state)  # type: ignore[typeddict-item]
    return store.job(job.id)


class TestOneOperation:
    def test_is_submitted_taken_and_answered(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            job = new_job(store)
            assert store.next_operation(job.id) is None
            asked = store.submit_operation(job.id, ScaleIn(("w1", "w2")), "ann@host")
            clock.pass_(1)
            taken = store.next_operation(job.id)
            clock.pass_(1)

            assert taken is not None
            assert (taken.id, taken.operation, taken.state) == (asked.id, ScaleIn(("w1", "w2")), "running")
            assert store.next_operation(job.id) is None
            assert store.open_operation(job.id) == taken
            ended = store.end_operation(asked.id, "done", "view 3\nfrom step 90")
            assert ended == store.operation(asked.id)
            assert (ended.state, ended.message, ended.requested_by) == (
                "done",
                "view 3 from step 90",
                "ann@host",
            )
            moments = (ended.requested_at, ended.started_at, ended.ended_at)
            assert [moment.second for moment in moments if moment] == [0, 1, 2]
            assert store.open_operation(job.id) is None

    def test_keeps_its_first_answer(self, store: Store) -> None:
        job = new_job(store)
        asked = store.submit_operation(job.id, ScaleTo(2), "ann")
        first = store.end_operation(asked.id, "refused", "at most 1 worker")

        assert store.end_operation(asked.id, "done", "2 workers") == first
        assert store.withdraw_operation(asked.id, "too late") == first

    def test_can_be_withdrawn_until_it_is_taken(self, store: Store) -> None:
        job = new_job(store)
        early = store.submit_operation(job.id, ScaleTo(2), "ann")
        assert store.withdraw_operation(early.id, "withdrawn").state == "refused"
        assert store.next_operation(job.id) is None

        late = store.submit_operation(job.id, ScaleTo(2), "ann")
        taken = store.next_operation(job.id)
        assert store.withdraw_operation(late.id, "withdrawn") == taken

    def test_of_another_number_is_told(self, store: Store) -> None:
        for ask in (
            lambda: store.operation(99),
            lambda: store.end_operation(99, "done", ""),
            lambda: store.withdraw_operation(99, ""),
        ):
            with pytest.raises(ConfigurationError, match="no operation 99"):
                ask()
        with pytest.raises(ConfigurationError, match="no job none"):
            store.submit_operation("none", ScaleTo(1), "ann")


class TestOneAtATime:
    @pytest.mark.parametrize("taken", [False, True])
    def test_a_second_request_is_told_to_try_again(self, store: Store, taken: bool) -> None:
        job = new_job(store)
        first = store.submit_operation(job.id, ScaleTo(4), "ann@host")
        if taken:
            store.next_operation(job.id)

        with pytest.raises(TransientError, match=r"scale to 4 workers \(asked by ann@host\).*try again"):
            store.submit_operation(job.id, StopJob(), "bob")
        store.end_operation(first.id, "done", "")
        assert store.submit_operation(job.id, StopJob(), "bob").state == "pending"

    def test_another_job_is_not_held_up(self, store: Store) -> None:
        first, second = new_job(store), new_job(store)
        store.submit_operation(first.id, ScaleTo(4), "ann")

        assert store.next_operation(second.id) is None
        assert store.submit_operation(second.id, ScaleOut(1), "ann").state == "pending"
        assert [each.operation for each in store.operations(first.id)] == [ScaleTo(4)]

    @pytest.mark.slow
    def test_of_processes_that_ask_at_once_one_succeeds(self, url: str) -> None:
        code = (
            "import sys\n"
            "from scavenger.store import Store\n"
            "from scavenger.domain.operation import ScaleTo\n"
            "from scavenger.errors import TransientError\n"
            "with Store.open(sys.argv[1]) as store:\n"
            "    print('up', flush=True); sys.stdin.readline()\n"
            "    try: print(store.submit_operation(sys.argv[2], ScaleTo(int(sys.argv[3])), 'x').state)\n"
            "    except TransientError: print('again')\n"
        )
        with Store.open(url) as store:
            job = new_job(store)
            children = [start_python(code, url, job.id, str(number)) for number in (1, 2, 3)]
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == "up\n"
            said = []
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            for child in children:
                output, complaint = child.communicate(timeout=60)
                assert complaint == ""
                said.append(output.strip())
            assert sorted(said) == ["again", "again", "pending"]
            assert len(store.operations(job.id)) == 1

    def test_the_database_itself_refuses_a_second(self, url: str) -> None:
        with Store.open(url) as store:
            job = new_job(store)
            store.submit_operation(job.id, ScaleTo(4), "ann")
            values = {
                "job_id": job.id,
                "operation": operation_document(ScaleTo(1)),
                "requested_by": "",
                "state": "pending",
                "message": "",
                "requested_at": job.created_at,
            }
            engine = create_engine(url)
            with engine.begin() as connection, pytest.raises(IntegrityError):
                connection.execute(insert(OperationRow).values(**values))
            engine.dispose()
            assert len(store.operations(job.id)) == 1

    def test_whoever_slips_past_the_look_is_told_to_try_again_too(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = new_job(store)
        store.submit_operation(job.id, ScaleTo(4), "ann")
        with monkeypatch.context() as unseen:
            unseen.setattr("scavenger.store.operations._open_row", lambda *_: None)
            with pytest.raises(TransientError, match="at the same moment; try again"):
                store.submit_operation(job.id, ScaleTo(2), "bob")
        assert [each.operation for each in store.operations(job.id)] == [ScaleTo(4)]

    def test_of_threads_that_look_for_work_one_gets_it(self, store: Store) -> None:
        job = new_job(store)
        store.submit_operation(job.id, Migrate(), "ann")
        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(lambda _: store.next_operation(job.id), range(4)))

        assert len([each for each in taken if each is not None]) == 1


class TestOperationsAndTheirJob:
    def test_a_job_that_ended_is_asked_nothing(self, store: Store) -> None:
        job = new_job(store)
        store.finish_job(job.id, state="target_missed", report=None, exit_code=0)

        with pytest.raises(ConfigurationError, match="asked to stop: it has ended as target missed"):
            store.submit_operation(job.id, StopJob(), "ann")

    def test_a_job_that_waits_for_workers_can_be_asked(self, store: Store) -> None:
        job = new_job(store, "paused")

        assert store.submit_operation(job.id, ScaleTo(1), "ann").state == "pending"

    def test_a_job_whose_process_is_silent_elsewhere_is_asked_nothing(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            with monkeypatch.context() as there:
                there.setattr(store, "me", lambda: ANOTHER_MACHINE)
                job = new_job(store)
            asked = store.submit_operation(job.id, ScaleTo(1), "ann")
            store.end_operation(asked.id, "done", "")
            clock.pass_(HEARTBEAT_STALE.total_seconds())

            with pytest.raises(ConfigurationError, match=f"process {os.getpid()} on node-7 is gone"):
                store.submit_operation(job.id, ScaleTo(2), "ann")

    @pytest.mark.parametrize(
        ("operation", "taken", "state", "error", "verdict"),
        [
            (ScaleTo(2), False, "succeeded", "", "refused"),
            (ScaleTo(2), True, "succeeded", "", "failed"),
            (StopJob(), False, "succeeded", "", "refused"),
            (StopJob(), True, "interrupted", "stopped by ann", "done"),
            (StopJob(), True, "failed", "w1 raised", "failed"),
        ],
    )
    def test_what_a_job_still_had_to_do_ends_with_it(
        self, store: Store, operation: ScaleTo, taken: bool, state: str, error: str, verdict: str
    ) -> None:
        job = new_job(store)
        asked = store.submit_operation(job.id, operation, "ann")
        if taken:
            store.next_operation(job.id)
        store.finish_job(job.id, state=state, report=None, error=error, exit_code=0)  # type: ignore[arg-type]

        ended = store.operation(asked.id)
        assert (ended.state, ended.ended_at) == (verdict, store.job(job.id).ended_at)
        assert f"the job ended as {state}" in ended.message
        assert error in ended.message

    @pytest.mark.slow
    def test_what_a_killed_job_was_asked_ends_when_it_is_reaped(self, url: str) -> None:
        code = (
            "import sys; from scavenger.store import Store; store = Store.open(sys.argv[1]);"
            "job = store.create_job('dies', spec={}, job_file='job.yaml').id;"
            "store.set_process(job, 'w0', role='worker', state='training', pid=77);"
            "print(job, flush=True); sys.stdin.read()"
        )
        with Store.open(url) as store, start_python(code, url) as child:
            assert child.stdout is not None
            job_id = child.stdout.readline().strip()
            asked = store.submit_operation(job_id, StopJob(), "ann")
            child.kill()
            child.wait()

            with pytest.raises(ConfigurationError, match=f"process {child.pid} on .* is gone"):
                store.submit_operation(job_id, ScaleTo(1), "ann")
            store.reap_dead_jobs()
            assert store.operation(asked.id).state == "refused"
            assert "ended unexpectedly" in store.operation(asked.id).message
            assert [process.state for process in store.processes(job_id)] == ["lost"]

    def test_an_operation_that_cannot_be_read_holds_up_no_job(self, url: str) -> None:
        with Store.open(url) as store:
            job = new_job(store)
            store.submit_operation(job.id, ScaleTo(4), "ann")
            engine = create_engine(url)
            with engine.begin() as connection:
                connection.execute(text('UPDATE operations SET operation = \'{"kind": "rm"}\''))
            engine.dispose()
            with pytest.raises(StoreError, match="no operation is called 'rm'"):
                store.open_operation(job.id)
            assert store.next_operation(job.id) is None
            assert store.submit_operation(job.id, ScaleTo(2), "ann").state == "pending"


def test_a_hurried_writer_on_postgresql_waits_only_for_a_moment(url: str) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("SQLite's writers wait by a pragma, which has a test of its own")
    engine = create_engine(url)
    with Store.open(url) as store:
        job = new_job(store)
        release = threading.Event()
        with engine.connect() as holder:
            holder.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
            began = time.monotonic()
            with pytest.raises(StoreBusyError), store.hurried():
                store.heartbeat(job.id)
            hurried_s = time.monotonic() - began
            later = threading.Timer(2 * HURRIED_WAIT_S, lambda: (holder.rollback(), release.set()))
            later.start()
            store.heartbeat(job.id)  # in no hurry, it waits until the lock is free
            assert release.is_set()
            later.join()
        with store.hurried():
            store.heartbeat(job.id)
        with store._database.reading() as session:  # the short patience was that transaction's alone
            assert session.scalar(text("SHOW lock_timeout")) == "5s"
    engine.dispose()
    assert HURRIED_WAIT_S <= hurried_s < 3 * HURRIED_WAIT_S
