"""Training code that fails is told from machines that fail, in one line that names the place."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driving import JOBS, Run
from processes import alive, eventually

from scavenger.errors import (
    NonFiniteError,
    ScavengerError,
    TrainingCodeError,
    TrainingHungError,
    WorkersLostError,
)

pytestmark = pytest.mark.slow


def fails(name: str, work_dir: Path, *, step_s: float = 60.0) -> tuple[ScavengerError, Run]:
    """The error that ends a job of one worker, and what was left of the job."""
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
    assert "Traceback" in run.coordinator.engine.log("w0").read_text()


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
    log = run.coordinator.engine.log("w0").read_text()
    assert 'broken.py", line' in log
    assert "in hangs" in log or "in <lambda>" in log


def test_training_code_that_ends_its_process_is_to_blame_itself(tmp_path: Path) -> None:
    error, _ = fails("leaves", tmp_path)

    assert isinstance(error, TrainingCodeError)
    assert "ended w0, which ended with status 7" in str(error)


def test_a_worker_that_does_not_get_ready_in_time_is_ended(tmp_path: Path) -> None:
    with (
        Run("small:momentum", tmp_path, start_s=0.3) as run,
        pytest.raises(TrainingHungError, match=r"limits\.start"),
    ):
        run.begin(1, 20)


def test_the_death_of_the_aggregator_is_told(tmp_path: Path) -> None:
    with Run("small:momentum", tmp_path) as run:
        run.coordinator.start(1)
        run.coordinator.engine.kill("aggregator")

        with pytest.raises(WorkersLostError, match="aggregator was killed by SIGKILL"):
            run.until(lambda: False)


def test_no_more_workers_start_than_there_are_slots(tmp_path: Path) -> None:
    with Run("small:momentum", tmp_path, slots=1) as run:
        run.coordinator.start(1)
        with pytest.raises(WorkersLostError, match="1 workers may be started"):
            run.coordinator.launch(1)
        # the refused one does not haunt the job
        run.poll()
        assert run.coordinator.membership.alive == ("w0",)


def test_the_first_worker_may_die_before_it_has_seeded_the_weights(tmp_path: Path) -> None:
    with Run("small:momentum", tmp_path) as run:
        run.coordinator.start(2)
        run.until(lambda: run.coordinator.manifest is not None)
        seeding = run.coordinator._seeding or run.coordinator._greeted[0]
        run.coordinator.engine.kill(seeding)
        run.until(lambda: bool(run.lost) and run.coordinator.ready == 1)
        run.coordinator.resize(1, 20, "start")
        run.train(20)

    assert run.steps[19].loss < run.steps[0].loss


def test_unruly_training_code_trains_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Run("broken:unruly", tmp_path) as run:
        run.begin(1, 20)
        run.train(5)
        log = run.coordinator.engine.log("w0").read_text()
    spawned = [int(line.split()[1]) for line in log.splitlines() if line.startswith("child ")]

    assert len(spawned) == 2
    assert all(eventually(lambda pid=pid: not alive(pid)) for pid in spawned)  # type: ignore[misc]


_LEADER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from driving import Run
with Run("broken:unruly", Path(sys.argv[2])) as run:
    run.begin(1, 20)
    run.train(5)
    engine = run.coordinator.engine
    print(engine.pid("aggregator"), engine.pid("w0"), engine._reaper.pid, flush=True)
    run.train(10**9)
"""


def test_a_leader_killed_in_mid_run_leaves_no_process(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _LEADER, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        pids = [int(pid) for pid in leader.stdout.readline().split()]
        log = (tmp_path / "logs" / "w0.log").read_text()
        pids += [int(line.split()[1]) for line in log.splitlines() if line.startswith("child ")]
        assert len(pids) == 5
        assert all(alive(pid) for pid in pids)
        leader.send_signal(signal.SIGKILL)

    assert eventually(lambda: not any(alive(pid) for pid in pids))
