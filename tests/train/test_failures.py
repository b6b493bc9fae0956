"""Failures of the training code are told apart from failures of machines, in one line that names the source line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driving import JOBS, Run, assert_fired, assert_same_weights, batches, plain_keras
from processes import alive
from waiting import eventually
from warm_servers import ADDRESS, warm_address

from scavenger.errors import (
    NonFiniteError,
    ScavengerError,
    TrainingCodeError,
    TrainingHungError,
    WorkersLostError,
)
from scavenger.train.transport import layout

pytestmark = pytest.mark.slow


def fails(name: str, work_dir: Path, *, step_s: float = 60.0) -> tuple[ScavengerError, Run]:
    """Return the error that ends a job of one worker, and the job's run."""
    run = Run(f"broken:{name}", work_dir, step_s=step_s)
    with run, pytest.raises(ScavengerError) as caught:
        run.begin(1, 20).train(10_000)
    assert "\n" not in str(caught.value)
    return caught.value, run


def test_an_exception_in_the_data_names_its_file_and_line(tmp_path: Path) -> None:
    error, run = fails("raises_in_data", tmp_path)

    assert isinstance(error, TrainingCodeError)
    line = (JOBS / "broken.py").read_text().splitlines().index(
        '        raise RuntimeError("the disk is on fire")'
    ) + 1
    assert f"broken.py:{line}: RuntimeError: the disk is on fire" in str(error)
    assert "Traceback" in run.log("w0")


def test_an_exception_in_the_model_names_its_file_and_line(tmp_path: Path) -> None:
    error, _ = fails("raises_in_call", tmp_path)

    assert isinstance(error, TrainingCodeError)
    assert "this layer does not feel like it" in str(error)
    assert "broken.py:" in str(error)


def test_a_gradient_that_is_not_finite_is_refused_and_the_weights_before_it_are_kept(tmp_path: Path) -> None:
    with Run("broken:gives_nan", tmp_path) as run:
        run.begin(1, 20)
        with pytest.raises(
            NonFiniteError, match=r"loss became nan at step \d+, epoch \d+ \(on w0\)"
        ) as caught:
            run.train(10_000)
        weights = run.finish()

    assert f"step {run.steps[-1].step + 1}," in str(caught.value)
    assert all(abs(w).max() < 100 for w in weights)


def test_training_code_that_hangs_is_ended_with_its_stack_in_the_log(tmp_path: Path) -> None:
    error, run = fails("hangs", tmp_path, step_s=3.0)

    assert isinstance(error, TrainingHungError)
    assert "limits.step" in str(error)
    log = run.log("w0")
    assert 'broken.py", line' in log
    assert "in hangs" in log or "in <lambda>" in log


def test_an_evaluation_may_take_longer_than_a_step(tmp_path: Path) -> None:
    with Run("broken:evaluates_slowly", tmp_path, epochs=1, step_s=2.0, evaluation_s=60.0) as run:
        run.begin(1, 20).to_the_end()

    assert run.epochs[-1].evaluation_s >= 5.0
    assert run.lost == []


def test_an_evaluation_that_hangs_is_ended_by_a_limit_of_its_own(tmp_path: Path) -> None:
    run = Run("broken:hangs_in_evaluation", tmp_path, epochs=1, evaluation_s=3.0)
    with run, pytest.raises(TrainingHungError, match=r"evaluation after step \d+ .* \(limits\.evaluation\)"):
        run.begin(1, 20).to_the_end()


def test_training_code_that_ends_its_process_is_to_blame_itself(tmp_path: Path) -> None:
    error, _ = fails("leaves", tmp_path)

    assert isinstance(error, TrainingCodeError)
    assert "ended w0, which ended with status 7" in str(error)


def test_a_worker_that_does_not_get_ready_in_time_is_ended(tmp_path: Path) -> None:
    with (
        Run("small:momentum", tmp_path, start_s=0.05) as run,
        pytest.raises(TrainingHungError, match=r"limits\.start"),
    ):
        run.begin(1, 20)


def test_a_worker_whose_code_hangs_is_ended_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS_ONCE", str(tmp_path / "taken"))
    with Run("broken:hangs_once", tmp_path, step_s=3.0, aggregators=2) as run:
        run.begin(2, 20)
        run.until(lambda: bool(run.lost))
        run.train(5)
        (lost,) = run.lost
        assert "limits.step" in lost.cause
        assert 'broken.py", line' in run.log(lost.worker)
    assert run.steps[-1].workers == 1
    batches(run.steps, 170)


def test_an_aggregator_that_stands_still_is_replaced(tmp_path: Path) -> None:
    with Run("small:momentum", tmp_path, aggregators=2) as run:
        run.begin(1, 20)
        run.train(3)
        run.freeze("aggregator-0")  # the other: `test_recovery`
        run.until(lambda: "aggregator-0" in [r.process for r in run.recovered])
        run.train(3)
        got = run.finish()

    assert all("was silent" in recovered.cause for recovered in run.recovered)
    assert_same_weights(got, plain_keras("momentum", run.steps))


def test_no_more_workers_start_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_WORKERS_MAX", 1)
    with Run("small:momentum", tmp_path) as run:
        run.begin(1, 20)
        with pytest.raises(WorkersLostError, match="room for the gradients of 1 worker"):
            run.supervisor.launch(1)
        # the refused one does not haunt the job
        run.train(3)
        assert run.supervisor.alive == ("w0",)


def test_the_first_worker_may_die_before_it_has_seeded_the_weights(tmp_path: Path) -> None:
    with Run("small:momentum", tmp_path, faults=["worker.joining/w0:kill"], aggregators=2) as run:
        run.supervisor.start(2)
        run.until(lambda: run.supervisor.manifest is not None)
        run.kill("w1")  # has greeted, and is about to be told that its weights become the job's
        run.until(lambda: len(run.lost) == 2)
        assert_fired(run, "worker.joining/w0:kill")
        run.supervisor.launch(1)
        run.until(lambda: run.supervisor.ready == 1)
        run.supervisor.resize(1, 20, "start")
        run.train(20)

    assert run.steps[19].loss < run.steps[0].loss


def test_unruly_training_code_trains_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Run("broken:unruly", tmp_path) as run:
        run.begin(1, 20)
        run.train(5)
        log = run.log("w0")
    spawned = [int(line.split()[1]) for line in log.splitlines() if line.startswith("child ")]

    assert len(spawned) == 2
    assert all(eventually(lambda pid=pid: not alive(pid)) for pid in spawned)  # type: ignore[misc]


_LEADER = """
import sys
from pathlib import Path
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport.messages import StepReport
supervisor = Supervisor.open(
    JobSource("broken:unruly", Path(sys.argv[1]), 5, threads=1), work_dir=Path(sys.argv[2]),
    timeouts=Timeouts(120.0, 60.0), engine=ProcessEngine,
)
supervisor.start(1)
while not supervisor.ready: supervisor.poll(0.02)
supervisor.resize(1, 20, "start")
steps = []
while len(steps) < 5: steps += [event for event in supervisor.poll(0.02) if isinstance(event, StepReport)]
engine = supervisor.engine
print(*map(engine.pid, ("coordinator-1", "aggregator-0", "w0")), engine._reaper.pid, flush=True)
while True: supervisor.poll(0.02)
"""


def test_a_leader_killed_in_mid_run_leaves_no_process(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _LEADER, str(JOBS), str(tmp_path)]
    env = {**os.environ, ADDRESS: warm_address()}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=env) as leader:
        assert leader.stdout is not None
        pids = [int(pid) for pid in leader.stdout.readline().split()]
        log = (tmp_path / "logs" / "w0.log").read_text()
        pids += [int(line.split()[1]) for line in log.splitlines() if line.startswith("child ")]
        assert len(pids) == 6
        assert all(alive(pid) for pid in pids)
        leader.send_signal(signal.SIGKILL)

    assert eventually(lambda: not any(alive(pid) for pid in pids))


def test_an_error_carries_the_users_lines_and_folds_those_of_libraries(tmp_path: Path) -> None:
    error, _ = fails("raises_in_call", tmp_path)

    assert isinstance(error, TrainingCodeError)
    mine = [one for one in error.frames if one.file]
    assert mine[-1].file == "broken.py"
    assert mine[-1].code.startswith("raise")
    assert error.frames[0].file  # what calls the user's code is left out
    assert any("keras" in one.of for one in error.frames)
