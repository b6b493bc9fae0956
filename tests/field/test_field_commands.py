"""Training programs of strangers as command jobs: a failure is never told as success, nor a number as another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_jobs import Job, Outcome, lines

pytestmark = pytest.mark.slow

RUN = "python train.py {checkpoint_dir} {epochs}"
LOG = [
    r"^step (?P<step>\d+): loss (?P<loss>{number})",
    r"^epoch (?P<epoch1>\d+): .*val_loss (?P<metric>{number})",
]
PRINTING = """
import sys, time
folder, epochs = sys.argv[1], int(sys.argv[2])
for epoch in range(1, epochs + 1):
    for step in range(10 * epoch - 9, 10 * epoch + 1):
        time.sleep(0.003)
        print(f"step {step}: loss {1 / step:.3e}")
        IN_STEP
    print(f"epoch {epoch}: val_loss {0.9 ** epoch:.2e}")
    IN_EPOCH
""" + (SAVE := '    open(folder + "/model.txt", "w").write(str(epoch))')


def _run(make_job: Callable[..., Job], program: str, run: Any = RUN, **sections: Any) -> Outcome:
    given = {
        "search": {"workers": 1, "batch_size": [8]},
        "goal": {"metric": "val_loss", "target": 0.05, "mode": "min", "max_epochs": 30, "epochs_hint": 20},
        "profile": {"steps": 4},
        "elastic": {"policy": "fixed", "failures": {"give_up": 2}},
    }
    if not isinstance(run, dict):
        run = {"command": run, "samples": 80, "log": LOG}
    job = make_job(**{**given, **sections}, run=run)
    job.spec.pop("train", None)
    (job.folder / "train.py").write_text(program)
    return job.change().run()


def _printing(*, in_step: str = "", in_epoch: str = "") -> str:
    return PRINTING.replace("IN_STEP", in_step).replace("IN_EPOCH", in_epoch)


def _values(report: dict[str, Any]) -> list[float]:
    return [
        line["metrics"]["val_loss"] for line in lines(report["measurements_path"]) if line["kind"] == "epoch"
    ]


# ---- a crash is no success ---------------------------------------------------------------------------------


def test_a_crash_that_a_pipe_hides_is_a_failure(make_job: Callable[..., Job]) -> None:
    """The exit status of `python train.py | tee` is that of tee, and the newest epoch is over, with its metric."""
    program = _printing(in_epoch="1 / (epoch - 6)")
    outcome = _run(
        make_job, program, 'bash -c "python train.py {checkpoint_dir} {epochs} 2>&1 | tee run.log"'
    )

    assert outcome.code == 6, outcome.stderr
    assert outcome.report["job"]["state"] == "failed"
    assert (
        "ended by itself with status 0 in epoch 7 of 30, before the goal was reached; see " in outcome.error
    )
    assert "temporary" not in outcome.stderr


@pytest.mark.long
def test_an_exception_that_a_shell_hides_is_tried_again_and_then_named(make_job: Callable[..., Job]) -> None:
    program = """
import sys
from scavenger.sdk.report import scavenger_report
with scavenger_report(samples_per_epoch=80) as report:
    for epoch in range(20):
        if epoch == 3:
            raise ValueError("no such file: images/0042.png")
        for step in range(10):
            report.step(loss=1.0)
        report.epoch(val_loss=0.33)
"""
    outcome = _run(make_job, program, {"command": 'bash -c "python train.py; true"'})

    assert outcome.code == 6, outcome.stderr
    assert "status 0 after ValueError: no such file: images/0042.png" in outcome.error
    assert "so did 2 starts before it, and none went beyond step 30" in outcome.error
    assert "temporary" not in outcome.stderr


@pytest.mark.long
def test_a_program_that_saves_nothing_is_no_temporary_failure(make_job: Callable[..., Job]) -> None:
    program = _printing().replace(SAVE, "")
    outcome = _run(make_job, program, goal={"metric": "val_loss", "mode": "min", "max_epochs": 3})

    assert outcome.code == 6, outcome.stderr
    assert "the command has saved nothing in {checkpoint_dir}" in outcome.error


@pytest.mark.long
def test_a_program_that_prints_why_it_ends_has_succeeded(make_job: Callable[..., Job]) -> None:
    program = _printing(in_epoch="if epoch == 4: print('EarlyStopping: no better'); break")
    program += '\nopen(folder + "/model.txt", "w").write("stopped")'
    run = {"command": RUN, "samples": 80, "log": [*LOG, r"EarlyStopping: (?P<done>.*)"]}
    outcome = _run(make_job, program, run)

    assert outcome.code == 0, outcome.stderr
    assert "stopped by the program (no better) after epoch 4" in outcome.stderr.replace("\n", " ")
    assert Path(outcome.report["model_path"], "model.txt").read_text() == "stopped"


@pytest.mark.long
@pytest.mark.parametrize(("steps", "code"), [(60, 6), (100, 0)])
def test_a_program_that_tells_steps_alone_is_done_if_they_are_enough(
    make_job: Callable[..., Job], steps: int, code: int
) -> None:
    program = f"""
import sys
for step in range(1, {steps} + 1):
    print(f"step {{step}}: loss 1")
open(sys.argv[1] + "/model.txt", "w").write("done")
"""
    outcome = _run(make_job, program, goal={"max_epochs": 10})

    assert outcome.code == code, outcome.stderr
    if code:
        assert "status 0 40 steps short of 10 epochs" in outcome.error


@pytest.mark.parametrize(
    ("ends", "code", "words"),
    [
        ("sys.exit(3)", 6, "the training code failed: w0 lost its command, which ended with status 3"),
        pytest.param(
            "os.kill(os.getpid(), 9)",
            3,
            "w0 lost its command, which was killed by SIGKILL",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_program_that_ends_after_a_few_steps_is_told_from_one_that_is_killed(
    make_job: Callable[..., Job], ends: str, code: int, words: str
) -> None:
    program = _printing(in_epoch=f"if epoch == 1: import os; {ends}")
    outcome = _run(make_job, program, elastic={"policy": "fixed", "failures": {"give_up": 1}})

    assert outcome.code == code, outcome.stderr
    assert outcome.error.startswith(words)


def test_a_program_that_raises_shows_its_own_lines(make_job: Callable[..., Job]) -> None:
    program = _printing(in_epoch="if epoch == 1: json.loads('{')")
    outcome = _run(
        make_job, f"import json\n{program}", elastic={"policy": "fixed", "failures": {"give_up": 1}}
    )

    assert outcome.code == 6, outcome.stderr
    assert "after json.decoder.JSONDecodeError: Expecting" in outcome.error
    (mine,) = [one for one in outcome.report["traceback"] if one["file"]]
    assert mine["file"].endswith("/train.py")
    assert mine["code"].endswith("json.loads('{')")
    assert outcome.report["traceback"][-1]["of"] == "Python"
    assert f"line {mine['line']}, in <module>" in outcome.stderr


# ---- one process that ends alone ---------------------------------------------------------------------------


def test_a_process_that_ends_with_status_0_while_others_wait_is_named_and_the_job_ends(
    make_job: Callable[..., Job],
) -> None:
    """The second process leaves at the same step each time, and the first one waits for it, as in an all-reduce."""
    program = """
import os, sys, time
from scavenger.sdk.report import scavenger_report
rank, path = os.environ["RANK"], sys.argv[1] + "/state"
with scavenger_report(save=lambda: open(path, "w").write("x"), samples_per_epoch=800) as report:
    for step in range(1, 999):
        time.sleep(0.002)
        if step == 25 and rank == "1":
            sys.exit(0)
        if step == 25:
            time.sleep(600)
        report.step(loss=1.0, step=step)
"""
    outcome = _run(
        make_job,
        program,
        {"command": "python train.py {checkpoint_dir}", "grace": "1s"},
        search={"workers": 2, "batch_size": [8]},
        goal={"max_epochs": 10},
    )

    assert outcome.code == 6, outcome.stderr
    assert "ended with status 0 while w0 went on for 1 s (run.grace)" in outcome.error
    assert "so did 2 starts before it, and none went beyond step 24" in outcome.error
    assert "lost its command" in outcome.stderr
    assert "; see " in outcome.stderr


# ---- numbers, and what is never told -----------------------------------------------------------------------


def test_half_a_number_is_read_as_a_whole_and_warned_of(make_job: Callable[..., Job]) -> None:
    r"""`[\d.]+` reads 2.2 of 2.20e-01, and nothing of -0.3."""
    log = [pattern.replace("{number}", r"[\d.]+") for pattern in LOG]
    outcome = _run(
        make_job,
        _printing(),
        {"command": RUN, "samples": 80, "log": log},
        goal={"metric": "val_loss", "target": 0.6, "mode": "min", "max_epochs": 30, "epochs_hint": 20},
    )

    assert outcome.code == 0, outcome.stderr
    # it ends a moment after the epoch in which the target is reached, not three epochs later by a 0.5 of 5.31e-01
    assert _values(outcome.report)[:5] == [0.9, 0.81, 0.729, 0.656, 0.59]
    assert outcome.report["metric"]["reached"]
    assert "run.log: the group metric captures '9.00' of the number 9.00e-01" in outcome.stderr.replace(
        "\n", " "
    )
    assert "write (?P<metric>{number})" in outcome.stderr.replace("\n", " ")


@pytest.mark.long
def test_a_goal_whose_metric_is_never_told_ends_after_the_first_epochs(make_job: Callable[..., Job]) -> None:
    pattern = LOG[1].replace("val_loss", "val_accuracy")
    outcome = _run(make_job, _printing(), {"command": RUN, "samples": 80, "log": [LOG[0], pattern]})

    assert outcome.code == 6, outcome.stderr
    assert "goal.metric: " in outcome.error
    assert outcome.report["steps"] <= 75


def test_a_goal_whose_metric_no_pattern_could_tell_is_refused(make_job: Callable[..., Job]) -> None:
    pattern = LOG[1].replace("metric", "acc")
    outcome = _run(make_job, _printing(), {"command": RUN, "samples": 80, "log": [LOG[0], pattern]})

    assert outcome.code == 2, outcome.stderr
    assert (
        "no pattern of run.log has the group (?P<metric>...), so val_loss would never be seen"
        in outcome.error
    )


# ---- progress bars -----------------------------------------------------------------------------------------


def test_the_updates_of_a_progress_bar_are_lines(make_job: Callable[..., Job]) -> None:
    program = """
import sys, time
for epoch in range(1, 7):
    for step in range(20 * epoch - 19, 20 * epoch + 1):
        time.sleep(0.003)
        print(f"\\r{step}/120 [{'=' * (step % 20)}] - loss: {1 / step:.4f}", end="", file=sys.stderr)
    print(f" - epoch {epoch} - val_loss: {0.9 ** epoch:.4f}", file=sys.stderr)
open(sys.argv[1] + "/model.txt", "w").write("done")
"""
    log = [
        r"(?P<step>\d+)/120 .* loss: (?P<loss>{number})",
        r"epoch (?P<epoch1>\d+) - val_loss: (?P<metric>{number})",
    ]
    outcome = _run(
        make_job,
        program,
        {"command": RUN, "samples": 160, "log": log},
        goal={"metric": "val_loss", "mode": "min", "max_epochs": 6},
    )

    assert outcome.code == 0, outcome.stderr
    assert outcome.report["steps"] == 120
    assert _values(outcome.report) == pytest.approx([0.9**epoch for epoch in range(1, 7)], abs=1e-4)


@pytest.mark.long
def test_a_program_that_writes_something_is_alive_however_long_its_first_step_takes(
    make_job: Callable[..., Job],
) -> None:
    """A start that takes longer than `limits.start`, and tells nothing but a progress bar of its own."""
    program = """
import sys, time
from scavenger.sdk.report import scavenger_report
with scavenger_report(save=lambda: open(sys.argv[1] + "/model", "w").close(), samples_per_epoch=40) as report:
    for part in range(40):
        time.sleep(0.5)
        print(f"\\rindexing {part}/40", end="", flush=True)
    for epoch in range(3):
        for step in range(5):
            report.step(loss=1.0)
        report.epoch(val_loss=0.5)
"""
    outcome = _run(
        make_job,
        program,
        {"command": "python train.py {checkpoint_dir}"},
        goal={"metric": "val_loss", "mode": "min", "max_epochs": 3},
        limits={"start": "12s"},
    )

    assert outcome.code == 0, outcome.stderr
    assert outcome.report["steps"] == 15
    assert "told nothing" not in outcome.stderr
