"""The parts of a command job: how processes find each other, what a program tells, and what its steps mean."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scavenger.control.places.kinds import check_command
from scavenger.domain.command import RunSpec
from scavenger.domain.job import JobSpec
from scavenger.elastic.recovery import RolledBack
from scavenger.errors import ConfigurationError, TrainingCodeError, WorkersLostError
from scavenger.models.noise import noise_scale_parts
from scavenger.sdk import report as sdk
from scavenger.train.command.checkpoints import CommandCheckpoint, CommandCheckpoints, Kept
from scavenger.train.command.messages import Record
from scavenger.train.command.output import Lines, LogPatterns, Reports, parse_report
from scavenger.train.command.progress import AttemptProcesses, CommandProgress
from scavenger.train.command.rendezvous import rendezvous
from scavenger.train.command.source import CommandSource
from scavenger.train.command.watch import EpochWatch, MetricWatch, Restarts, why_not_together
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.events import Warned
from scavenger.train.transport import messages as m

# ---- rendezvous --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.just("10.0.0.1"), st.integers(1, 65535)), min_size=1, max_size=5))
def test_all_processes_are_told_the_same_group_each_with_its_own_number(
    addresses: list[tuple[str, int]],
) -> None:
    each = [rendezvous(addresses, rank, "j-1") for rank in range(len(addresses))]
    own = {"RANK", "PET_NODE_RANK", "KERAS_DISTRIBUTION_PROCESS_ID", "JAX_PROCESS_ID"}

    for rank, env in enumerate(each):
        assert {env[name] for name in own} == {str(rank)}
        assert {env[name] for name in ("WORLD_SIZE", "PET_NNODES", "JAX_NUM_PROCESSES")} == {
            str(len(addresses))
        }
        cluster = json.loads(env["TF_CONFIG"])
        assert cluster["task"] == {"type": "worker", "index": rank}
        assert cluster["cluster"]["worker"] == env["KERAS_DISTRIBUTION_JOB_ADDRESSES"].split(",")
        master = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        assert (
            master
            == env["PET_RDZV_ENDPOINT"]
            == env["JAX_COORDINATOR_ADDRESS"]
            == cluster["cluster"]["worker"][0]
        )
        assert {k: v for k, v in env.items() if k not in own | {"TF_CONFIG"}} == {
            k: v for k, v in each[0].items() if k not in own | {"TF_CONFIG"}
        }


@given(batch=st.integers(1, 500), workers=st.integers(1, 9))
def test_the_local_batches_of_all_processes_add_up_to_the_global_batch(batch: int, workers: int) -> None:
    workers = min(workers, batch)
    source = _source("prog {local_batch_size} {global_batch_size} {rank} {lr}", params={"lr": 0.5})
    group = AttemptProcesses(3, tuple(f"w{k}" for k in range(workers)), batch)
    addresses = [("127.0.0.1", 1000 + k) for k in range(workers)]
    words = [source.order(group, rank, addresses, "/d", None).words for rank in range(workers)]

    shares = [int(word[1]) for word in words]
    assert sum(shares) == batch
    assert max(shares) - min(shares) <= 1
    assert [word[2:] for word in words] == [(str(batch), str(rank), "0.5") for rank in range(workers)]


def _source(command: str, params: dict[str, Any] | None = None, **changes: Any) -> CommandSource:
    job = JobSource("", Path("."), 0, 1, "job", params=params or {})
    return CommandSource(RunSpec(command=command), job, 3, "val_accuracy", **changes)


def test_the_program_goes_on_from_the_step_and_epoch_of_its_checkpoint_with_the_users_own_environment() -> (
    None
):
    source = _source("prog", environ={"KERAS_BACKEND": "jax"})
    held = CommandCheckpoint(40, 2, 8)
    order = source.order(AttemptProcesses(1, ("w0",), 8), 0, [("127.0.0.1", 9)], "/d", held)

    assert (order.env["SCAVENGER_STEP"], order.env["SCAVENGER_EPOCH"]) == ("40", "2")
    assert order.env["KERAS_BACKEND"] == "jax"
    assert order.env["SCAVENGER_CHECKPOINT_DIR"] == "/d"
    assert (
        "KERAS_BACKEND"
        in _source("prog", environ={})
        .order(AttemptProcesses(1, ("w0",), 8), 0, [("127.0.0.1", 9)], "/d", None)
        .without
    )


# ---- what a program tells ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("step 40 loss 0.25", ("step", 40, None, 0.25, {})),
        ("\x1b[1mstep 40\x1b[0m loss 0.25", ("step", 40, None, 0.25, {})),
        ("epoch 3: acc=0.9 auc=0.8", ("epoch", None, 2, None, {"val_accuracy": 0.9, "auc": 0.8})),
        ("epoch 3: acc=nan auc=0.8", ("epoch", None, 2, None, {"auc": 0.8})),
        ("epoch 0: acc=1 auc=1", None),
        ("nothing of it", None),
        ("step x loss 1", None),
    ],
)
def test_log_patterns_tell_of_steps_and_epochs(line: str, told: tuple[Any, ...] | None) -> None:
    patterns = LogPatterns(
        [
            r"step (?P<step>\w+) loss (?P<loss>\S+)",
            r"epoch (?P<epoch1>\d+): acc=(?P<metric>\S+) auc=(?P<auc>\S+)",
        ],
        "val_accuracy",
        lambda group, message: None,
    )
    found = [one for text in Lines().take(line.encode() + b"\n") for one in patterns.read(text, 1.0)]

    assert [(one.kind, one.step, one.epoch, one.loss, one.metrics) for one in found] == [told] * bool(told)


@pytest.mark.parametrize("ends", [b"\n", b"\r", b"\r\n"])
@given(cuts=st.lists(st.integers(1, 30)))
def test_every_update_of_a_progress_bar_is_a_line_however_output_arrives(
    ends: bytes, cuts: list[int]
) -> None:
    bars = [f"{step}/9 [{'=' * step}] loss: {step / 8}" for step in range(1, 10)]
    data, lines, found = ends.join(bar.encode() for bar in bars), Lines(), list[str]()
    for cut in cuts:
        found += lines.take(data[:cut])
        data = data[cut:]
    found += lines.take(data) + lines.rest()

    assert found == bars


def test_lines_that_are_read_at_once_were_written_one_after_the_other() -> None:
    lines = Lines()

    assert lines.timed(b"a\nb\n", 10.0) == [("a", 10.0), ("b", 10.0)]  # since when is not known
    assert lines.timed(b"c\n", 10.5) == [("c", 10.5)]
    assert lines.timed(b"d\ne\nf", 11.5) == [("d", 11.0), ("e", 11.5)]
    assert lines.timed(b"g\n", 12.0) == [("fg", 12.0)]


def test_a_line_tells_of_all_its_steps_and_then_of_the_end_of_their_epoch() -> None:
    patterns = LogPatterns(
        [
            r"epoch (?P<epoch1>\d+).* val_loss (?P<val_loss>{number})",
            r"step (?P<step>\d+)",
            r"step (?P<step>\d+) loss (?P<loss>{number})",
            r"(?P<done>Early stopping.*)",
        ],
        "val_loss",
        lambda group, message: None,
    )
    line = "epoch 3 step 7 loss -2.5e-01 step 8 loss nan val_loss .5 Early stopping: no better"
    found = patterns.read(line, 1.0)

    assert [(one.kind, one.step, one.epoch) for one in found] == [
        ("step", 7, None),
        ("step", 8, None),
        ("epoch", None, 2),
        ("done", None, None),
    ]
    assert found[0].loss == -0.25
    assert math.isnan(found[1].loss or 0.0)
    assert found[2].metrics == {"val_loss": 0.5}
    assert found[3].done == "Early stopping: no better"


@given(
    st.floats() | st.integers(-(10**6), 10**6), st.sampled_from(["{:g}", "{:.2e}", "{:+.4f}", "{!r}", "{!s}"])
)
def test_a_number_is_read_as_programs_print_it(value: float, form: str) -> None:
    text = form.format(value)
    doubts: list[str] = []
    patterns = LogPatterns(
        [r"(?P<step>\d+): a=(?P<a>{number}), b"], "", lambda *doubt: doubts.append(doubt[0])
    )
    (found,) = patterns.read(f"12: a={text}, b=7.", 1.0)

    assert found.metrics == ({"a": float(text)} if math.isfinite(float(text)) else {})
    assert doubts == []


@pytest.mark.parametrize(
    ("line", "value", "words"),
    [
        (
            "3: acc 2.20e-01",
            0.22,
            "the group metric captures '2.20' of the number 2.20e-01, which counts as a whole",
        ),
        ("3: acc -0.3", -0.3, "captures '0.3' of the number -0.3"),
        ("3: acc 0.5.", 0.5, ""),
        ("3: acc 0.25-", 0.25, ""),
        ("3: acc 1.2.3", None, "captures '1.2.3', which is no number; write (?P<metric>{number})"),
    ],
)
def test_what_captures_a_part_of_a_number_is_doubted_once(line: str, value: float | None, words: str) -> None:
    doubts: list[str] = []
    patterns = LogPatterns(
        [r"(?P<epoch>\d+): acc .*?(?P<metric>[\d.]+\d)"], "acc", lambda *doubt: doubts.append(doubt[1])
    )
    for _ in range(2):
        (found,) = patterns.read(line, 1.0)

    assert found.metrics == ({} if value is None else {"acc": value})
    assert [words in doubt for doubt in doubts] == [True] * bool(words)


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_no_line_of_a_program_can_do_harm(line: bytes) -> None:
    assert parse_report(line) is None or isinstance(parse_report(line), Record)


def test_what_is_reported_arrives_across_files_and_half_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk, "LINES_BYTES_MAX", 300)
    monkeypatch.setattr("scavenger.train.command.output.LINES_BYTES_MAX", 300)
    report, reports = (
        sdk.Report({sdk.FOLDER: str(tmp_path), "SCAVENGER_GLOBAL_BATCH_SIZE": "8"}),
        Reports(tmp_path),
    )
    told: list[Record] = []
    for step in range(20):
        report.step(loss=float("nan") if step == 3 else 0.5)
        told += reports.read() if step % 3 == 0 else []
    with open(tmp_path / "report.jsonl", "a") as stray:
        stray.write("no line of ours\n")
    told += reports.read()

    assert [record.kind for record in told] == ["begin", *["step"] * 20]
    assert [record.step for record in told[1:]] == list(range(1, 21))
    assert {record.samples for record in told[1:]} == {8}
    assert math.isnan(told[4].loss or 0.0)
    assert len(list(tmp_path.glob("report*.jsonl"))) <= 3


def test_what_a_program_tells_is_timed_by_a_clock_that_never_jumps(tmp_path: Path) -> None:
    before = time.monotonic()
    report = sdk.Report({sdk.FOLDER: str(tmp_path)})
    report.step()
    at_s = [record.at_s for record in Reports(tmp_path).read()]

    assert sorted(at_s) == at_s
    assert before <= at_s[0] <= at_s[-1] <= time.monotonic()


def test_gradients_may_be_missing_of_any_precision_sparse_and_not_finite(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    report = sdk.Report({sdk.FOLDER: str(tmp_path)})
    sparse = torch.sparse_coo_tensor([[1]], [2.0], (3,), check_invariants=True)
    kinds = [np.array([2.0]), torch.tensor([2.0]).bfloat16(), torch.tensor([2.0], requires_grad=True), sparse]
    for one in kinds:
        for _ in range(2):
            report.step(gradients=[None, one])
    report.step(gradients=[torch.tensor([2.0, math.inf])])
    report.step(gradients=[np.full(1, 1e30)])
    report.step(gradients=[None])
    told = [record.successive for record in Reports(tmp_path).read() if record.kind == "step"]

    assert told == [*((4.0,) * count for count in range(1, 7)), (4.0,), (4.0, 4.0), (), (), ()]
    with pytest.raises(
        TrainingCodeError, match=r"report\.step\(gradients=\) takes arrays and tensors, not str"
    ):
        report.step(gradients=["weights"])


def test_a_program_without_a_job_reports_nothing_and_runs_on(tmp_path: Path) -> None:
    with sdk.scavenger_report(save=lambda: tmp_path / "never") as report:
        for _ in range(3):
            report.step(loss=1.0, gradients=[np.ones(2)])
        report.epoch(val_accuracy=0.5)
        report.checkpoint("x")

    assert (report.steps, report.epochs, report.ending) == (3, 1, False)


def test_every_process_ends_after_the_same_step_and_the_first_saves(tmp_path: Path) -> None:
    saved: list[int] = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "request").write_text(json.dumps({"save_at": 2, "end_at": 4}))
        report = sdk.Report({sdk.FOLDER: str(folder), "RANK": str(rank)}, partial(saved.append, rank))
        with pytest.raises(SystemExit) as ended:
            _steps(report, 9)
        assert (ended.value.code, report.steps) == (0, 4)

    assert saved == [0, 0]
    kinds = [record.kind for record in Reports(tmp_path / "0").read()]
    assert kinds == ["begin", "step", "step", "checkpoint", "step", "step", "checkpoint"]
    assert Reports(tmp_path / "1").read() == []


def test_a_program_counts_on_from_its_own_checkpoint_even_if_the_job_does_not_know_it(tmp_path: Path) -> None:
    env = {sdk.FOLDER: str(tmp_path), "SCAVENGER_CHECKPOINT_DIR": str(tmp_path), "SCAVENGER_STEP": "3"}
    report = sdk.Report(env)
    assert (report.steps, report.epochs) == (3, 0)
    _steps(report, 4)
    report.checkpoint()
    _steps(report, 2)

    assert sdk.Report({**env, "RANK": "1"}).steps == 7


def _steps(report: sdk.Report, count: int) -> None:
    for _ in range(count):
        report.step()


# ---- what its steps mean -----------------------------------------------------------------------------------


def _told(progress: CommandProgress, steps: Iterable[int], *, since_s: float = 0.0) -> list[Any]:
    return [e for n in steps for e in progress.take(Record("step", since_s + n, n, loss=1.0), since_s + n)]


@given(
    attempts=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 15), st.integers(1, 3)), min_size=1, max_size=6
    )
)
def test_every_step_counts_once_however_often_it_is_done(attempts: list[tuple[int, int, int]]) -> None:
    """An attempt goes on some steps before the newest (0: at the next), and does some steps with K workers."""
    progress, counted = CommandProgress(), dict[int, int]()
    for view, (back, count, workers) in enumerate(attempts, start=1):
        progress.begin(AttemptProcesses(view, tuple(f"w{k}" for k in range(workers)), 8 * view))
        first = max(1, progress.step + 1 - back)
        newest = progress.step
        for event in _told(progress, range(first, first + count), since_s=100.0 * view):
            if isinstance(event, RolledBack):
                assert first <= newest
                assert event.step == first - 1
                counted = {step: samples for step, samples in counted.items() if step <= event.step}
            elif isinstance(event, m.StepReport):
                assert event.step not in counted
                assert sum(stop - start for _, start, stop in event.pieces) == event.samples
                counted[event.step] = event.samples
            else:
                assert isinstance(event, m.ViewInstalled)
                assert (event.view.number, event.view.first_step, len(event.view.members)) == (
                    view,
                    first,
                    workers,
                )
        assert sorted(counted) == list(range(1, first + count))
        assert progress.step == first + count - 1


def test_the_first_step_of_an_attempt_has_the_time_of_the_change_and_later_ones_their_own() -> None:
    progress = CommandProgress()
    progress.begin(AttemptProcesses(1, ("w0",), 8))
    _told(progress, range(1, 4))
    progress.begin(AttemptProcesses(2, ("w0", "w1"), 8))
    events = progress.take(Record("step", 1000.0, 4), 10.0) + progress.take(Record("step", 1000.5, 6), 10.6)

    view, *reports = events
    assert isinstance(view, m.ViewInstalled)
    assert all(isinstance(report, m.StepReport) for report in reports)
    assert [(r.step, r.step_time_s, r.compute_s) for r in reports] == [
        (4, 7.0, 0.0),
        (5, 0.25, 0.25),
        (6, 0.25, 0.25),
    ]


def test_a_program_whose_checkpoint_is_newer_than_the_job_knows_goes_on_in_its_own_epoch() -> None:
    """The job was killed before it had read of the checkpoint: steps count once, and no epoch was without its end."""
    progress = CommandProgress(step=100, epoch=5)
    watch = MetricWatch("acc", judged=True, epochs=30)
    progress.begin(AttemptProcesses(2, ("w0",), 32))
    events = progress.take(Record("step", 1.0, 221, epoch=11), 1.0)

    assert isinstance(events[-1], m.StepReport)
    assert (events[-1].step, events[-1].epoch, events[-1].samples) == (221, 11, 121 * 32)
    assert (progress.epoch, progress.samples) == (11, 32)
    assert watch.look(events, progress, 640) == []
    (epoch,) = progress.take(Record("epoch", 2.0, epoch=11, metrics={"acc": 0.5}), 2.0)
    assert isinstance(epoch, m.EpochReport)
    assert (
        EpochWatch().look(progress.newest, 640)[0].message.startswith("epoch 12")
    )  # where it began is not known


def test_an_epoch_that_was_undone_counts_again_and_one_before_the_checkpoint_does_not() -> None:
    progress = CommandProgress()
    progress.begin(AttemptProcesses(1, ("w0",), 8))
    _told(progress, range(1, 5))
    progress.take(Record("epoch", 5.0, epoch=0, metrics={"a": 1.0}), 5.0)
    _told(progress, range(5, 9))
    progress.take(Record("epoch", 9.0, epoch=1), 9.0)
    progress.begin(AttemptProcesses(2, ("w0",), 8))
    assert progress.epoch == 2

    again = _told(progress, [7], since_s=50.0)
    assert isinstance(again[0], RolledBack)
    assert progress.epoch == 1
    assert progress.take(Record("epoch", 60.0, epoch=0), 60.0) == []
    (epoch,) = progress.take(Record("epoch", 61.0, epoch=1, metrics={"a": 2.0}), 61.0)
    assert isinstance(epoch, m.EpochReport)
    assert (epoch.epoch, epoch.step, epoch.metrics["a"]) == (1, 7, 2.0)

    progress.begin(AttemptProcesses(3, ("w0",), 8))
    rolled, first, *_ = _told(progress, [5], since_s=90.0)
    assert (rolled.step, first.epoch, first.metrics["a"]) == (4, 0, 1.0)  # the end of epoch 0 was at step 4


def test_successive_gradients_tell_the_noise() -> None:
    rng, true, batch = np.random.default_rng(0), np.full(50, 0.3), 16
    progress, traces, squares = CommandProgress(), [], []
    progress.begin(AttemptProcesses(1, ("w0", "w1"), batch))
    report = sdk.Report({}, None)
    for step in range(1, 2000):
        gradient = true + rng.normal(size=50) / math.sqrt(batch)
        told = report._compare([gradient[:20].reshape(4, 5), gradient[20:]])
        record = Record("step", float(step), step, successive=tuple(told or ()))
        event = progress.take(record, float(step))[-1]
        assert isinstance(event, m.StepReport)
        if event.noise_parts >= 2:
            trace, square = noise_scale_parts(event.mean_worker_sqnorm, event.mean_sqnorm, batch / 2, batch)
            traces.append(trace)
            squares.append(square)

    assert len(traces) == 1998
    assert np.mean(traces) == pytest.approx(50.0, rel=0.05)
    assert np.mean(squares) == pytest.approx(float(true @ true), rel=0.05)


# ---- what is kept, and what is refused ---------------------------------------------------------------------


def test_the_record_of_a_checkpoint_is_found_again_and_is_of_one_command(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    kept = Kept(CommandCheckpoint(40, 2, 8, "state.pt"), 3, 5, 640)
    checkpoints = CommandCheckpoints(str(tmp_path), "python train.py")
    checkpoints.make_folder()
    assert checkpoints.empty
    (Path(checkpoints.folder) / "state.pt").write_text("x")
    for step in (10, 20, 30, 40):
        at = CommandCheckpoint(step, 2, 8, "state.pt")
        checkpoints.record(Kept(at, 3, 5, 640), now=datetime.now(UTC))

    assert CommandCheckpoints(str(tmp_path), "python train.py").latest() == kept
    assert not checkpoints.empty
    with pytest.raises(ConfigurationError, match="another command"):
        CommandCheckpoints(str(tmp_path), "python other.py").latest()


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    spec = {"version": 1, "name": "x", "run": "python train.py", "goal": {"max_epochs": 3}}
    plain = JobSpec.model_validate(spec)
    assert plain.run is not None
    check_command(plain, tmp_path)
    with pytest.raises(ConfigurationError, match="no program 'pyhton'"):
        check_command(plain.model_copy(update={"run": RunSpec(command="pyhton train.py")}), tmp_path)


@pytest.mark.parametrize("further", [0, 1])
def test_a_program_that_said_so_has_ended_training_with_its_newest_epoch(further: int) -> None:
    progress = CommandProgress()
    progress.begin(AttemptProcesses(1, ("w0",), 8))
    progress.take(Record("step", 1.0, step=1), 1.0)
    progress.take(Record("epoch", 1.5, step=1, epoch=0, metrics={"auc": 0.5}), 1.5)
    for step in range(2, 2 + further):
        progress.take(Record("step", float(step), step=step, metrics={"auc": 0.7}), float(step))
    assert progress.done == ""
    progress.take(Record("done", 9.0, done="no better"), 9.0)

    (report,) = progress.stop()
    assert isinstance(report, m.EpochReport)
    assert (report.epoch, report.stopped_by) == (further, "the program (no better)")
    assert report.metrics["auc"] == (0.7 if further else 0.5)


@given(
    samples=st.integers(1, 500),
    batches=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    epochs=st.integers(1, 4),
    every=st.integers(1, 5),
)
def test_a_program_that_tells_no_epochs_has_done_them_if_its_steps_are_enough(
    samples: int, batches: list[int], epochs: int, every: int
) -> None:
    """Also if it leaves out what makes no whole batch, and tells each few steps alone."""
    progress, step = CommandProgress(), 0
    for view, batch in enumerate(batches, start=1):
        progress.begin(AttemptProcesses(view, ("w0",), batch))
        count = epochs if view == len(batches) else 0
        for _ in range(count * max(1, samples // batch)):
            step += 1
            if step % every == 0:
                progress.take(Record("step", float(step), step=step), float(step))

    assume(progress.step > 0)
    assert progress.missing(epochs, samples) == 0
    if samples >= 64:  # a whole batch at least, so no more than half of an epoch is left out
        assert progress.missing(4 * epochs + 2 * every, samples) > 0


def test_a_metric_that_is_never_told_is_warned_of_and_then_ends_a_job_with_a_target() -> None:
    for judged in (True, False):
        progress = CommandProgress()
        progress.begin(AttemptProcesses(1, ("w0",), 8))
        watch = MetricWatch("val_acc", judged=judged, epochs=20)
        warned = list[str]()
        for epoch in range(4):
            events = progress.take(Record("epoch", 1.0, epoch=epoch, metrics={"val_accuracy": 0.5}), 1.0)
            warned += [
                event.message for event in watch.look(events, progress, 64) if isinstance(event, Warned)
            ]
        assert warned == [
            "goal.metric: no finite val_acc was told of the first epoch, but val_accuracy; did you mean val_accuracy?"
        ]
        last = progress.take(Record("epoch", 1.0, epoch=4, metrics={"val_acc": math.nan}), 1.0)
        if judged:
            with pytest.raises(TrainingCodeError, match="no finite val_acc was told of the first 5 epochs"):
                watch.look(last, progress, 64)
        else:
            assert watch.look(last, progress, 64) == []


def test_a_metric_that_is_told_after_the_fifth_epoch_is_enough() -> None:
    progress = CommandProgress()
    progress.begin(AttemptProcesses(1, ("w0",), 8))
    watch = MetricWatch("acc", judged=True, epochs=20)
    for epoch in range(12):
        metrics = {"acc": 0.5} if epoch % 5 == 4 else {}
        events = progress.take(Record("epoch", 1.0, epoch=epoch, metrics=metrics), 1.0)
        assert bool(watch.look(events, progress, 64)) is (epoch == 0)


@pytest.mark.parametrize(
    ("told", "epochs", "warned"),
    [
        ([*range(7), *range(8, 12)], range(12), {7: 8}),  # told of, without the metric
        ([*range(7), *range(8, 12)], [*range(7), *range(8, 12)], {8: 8}),  # not told of at all
        ([4, 9, 19], range(20), {14: 15}),
        ([4, 9, 14, 19], range(20), {}),
        ([0, 5, 10], range(12), {}),
        ([0, 1, 2, 6, 8], range(12), {3: 4}),  # once
        (range(12), range(12), {}),
    ],
)
def test_an_epoch_without_the_metric_among_others_that_have_it_is_warned_of_once(
    told: Sequence[int], epochs: Sequence[int], warned: dict[int, int]
) -> None:
    progress = CommandProgress()
    progress.begin(AttemptProcesses(1, ("w0",), 8))
    watch = MetricWatch("acc", judged=False, epochs=20)
    found = dict[int, int]()
    for epoch in epochs:
        metrics = {"acc": 0.5} if epoch in told else {"acc": math.nan, "loss": 1.0}
        events = progress.take(Record("epoch", 1.0, epoch=epoch, metrics=metrics), 1.0)
        for event in watch.look(events, progress, 64):
            if isinstance(event, Warned) and "as it was before" in event.message:
                found[epoch] = int(event.message.partition("of epoch ")[2].partition(",")[0])
    assert found == warned


def test_a_program_whose_ends_of_epochs_no_pattern_finds_is_warned_of_by_its_samples() -> None:
    progress = CommandProgress()
    progress.begin(AttemptProcesses(1, ("w0",), 8))
    watch = MetricWatch("acc", judged=True, epochs=20)
    warned = list[tuple[int, str]]()
    for step in range(1, 48):
        events = progress.take(Record("step", float(step), step=step), float(step))
        warned += [(step, e.message) for e in watch.look(events, progress, 64) if isinstance(e, Warned)]
    assert [step for step, _ in warned] == [16]
    assert "has trained 2 epochs by run.samples and told of the end of none" in warned[0][1]
    with pytest.raises(TrainingCodeError, match="has trained 6 epochs"):
        watch.look(progress.take(Record("step", 48.0, step=48), 48.0), progress, 64)


def _epoch(progress: CommandProgress, watch: EpochWatch, epoch: int, steps: int, declared: int) -> list[str]:
    """What is said when an epoch ends after some further steps."""
    first = progress.step + 1
    _told(progress, range(first, first + steps), since_s=1000.0 * epoch)
    progress.take(Record("epoch", 1000.0 * epoch + first + steps, epoch=epoch), 0.0)
    return [event.message for event in watch.look(progress.newest, declared) if isinstance(event, Warned)]


@given(samples=st.integers(1, 5000), batch=st.integers(1, 300), workers=st.integers(1, 8), last=st.booleans())
def test_an_epoch_has_the_samples_that_it_should_have_with_or_without_its_last_batch(
    samples: int, batch: int, workers: int, last: bool
) -> None:
    assume(workers <= batch)
    progress, watch = CommandProgress(), EpochWatch()
    members = tuple(f"w{k}" for k in range(workers))
    progress.begin(AttemptProcesses(1, members, batch))
    each = -(-samples // workers)  # padded, as by DistributedSampler
    steps = -(-each * workers // batch) if last else max(1, samples // batch)
    for epoch in range(3):
        assert _epoch(progress, watch, epoch, steps, samples) == []


def test_an_epoch_of_half_its_samples_ends_the_job_unless_a_change_explains_it() -> None:
    for share, words in ((2, "ended after 1,024 samples .* should have 2,048"), (0.5, "4,096 .* 2,048")):
        progress, watch = CommandProgress(), EpochWatch()
        progress.begin(AttemptProcesses(1, ("w0",), 64))
        with pytest.raises(ConfigurationError, match=f"run.samples: epoch 1 .*{words}"):
            _epoch(progress, watch, 0, int(32 / share), 2048)

    progress, watch = CommandProgress(), EpochWatch()
    progress.begin(AttemptProcesses(1, ("w0",), 64))
    assert _epoch(progress, watch, 0, 32, 2048) == []
    _told(progress, range(33, 43), since_s=500.0)
    progress.begin(AttemptProcesses(2, ("w0", "w1"), 128))  # the program begins the epoch anew
    (warning,) = _epoch(progress, watch, 1, 16, 2048)
    assert warning.startswith(
        "epoch 2 of the program ended after 2,688 samples, and should have 2,048: after a"
    )
    assert _epoch(progress, watch, 2, 16, 2048) == []


def test_a_program_that_tells_of_each_third_epoch_alone_has_their_samples() -> None:
    progress, watch = CommandProgress(), EpochWatch()
    progress.begin(AttemptProcesses(1, ("w0",), 64))
    for epoch in (2, 5, 8):
        assert _epoch(progress, watch, epoch, 96, 2048) == []
    with pytest.raises(ConfigurationError, match="epochs 10 to 12 of the program ended after 2,048"):
        _epoch(progress, watch, 11, 32, 2048)


@pytest.mark.parametrize(
    ("world", "workers", "of_local", "words"),
    [
        (2, 2, True, ""),
        (4, 2, True, "4 processes on 2 workers .* 128 samples a step instead of 64"),
        (4, 2, False, ""),  # it divides the whole batch
        (1, 2, False, "trains with 1 of 2 workers"),
    ],
)
def test_processes_that_do_not_share_a_step_are_told(
    world: int, workers: int, of_local: bool, words: str
) -> None:
    assert re.search(words, why_not_together(world, workers, 64, of_local=of_local)) is not None
    assert bool(words) is bool(why_not_together(world, workers, 64, of_local=of_local))


def test_attempts_that_fail_at_the_same_step_end_the_job_and_those_that_get_further_do_not() -> None:
    restarts = Restarts(3)
    assert [restarts.failed(step, "x", killed=False) for step in (10, 10, 10, 11, 5, 11)] == [None] * 6
    failure = restarts.failed(11, "the command of w1 ended with status 1", killed=False)
    assert isinstance(failure, TrainingCodeError)
    assert "w1 ended with status 1; so did 3 starts before it, and none went beyond step 11" in str(failure)
    assert isinstance(restarts.failed(11, "w1 was lost", killed=True), WorkersLostError)


def test_a_program_that_raises_tells_of_its_exception_from_every_process(tmp_path: Path) -> None:
    for rank, error in enumerate([ValueError("no\nsuch"), SystemExit(3), SystemExit(0)]):
        folder = tmp_path / str(rank)
        folder.mkdir()
        with pytest.raises(type(error)), sdk.Report({sdk.FOLDER: str(folder), "RANK": str(rank)}):
            raise error
    told = [
        [one.error for one in Reports(tmp_path / str(rank)).read() if one.kind == "raised"]
        for rank in range(3)
    ]

    assert told == [["ValueError: no such"], ["SystemExit: 3"], []]


def test_the_reason_of_a_program_for_ending_training_is_in_the_report_of_its_epoch(tmp_path: Path) -> None:
    report = sdk.Report({sdk.FOLDER: str(tmp_path)})
    (tmp_path / "request").write_text(json.dumps({"epoch": 0, "stop": False}))
    report.step()
    report.epoch(done="no\x1bbetter" + "." * 1000)
    records = Reports(tmp_path).read()
    progress = CommandProgress()
    progress.begin(AttemptProcesses(1, ("w0",), 8))
    events = [event for record in records for event in progress.take(record, 1.0)]
    (told,) = [event for event in events if isinstance(event, m.EpochReport)]
    assert told.stopped_by.startswith("the program (no?better...")
    assert len(told.stopped_by) < 600


# ---- stored models of a command ----------------------------------------------------------------------------


def test_another_code_of_a_module_that_the_command_does_not_name_is_another_command(tmp_path: Path) -> None:
    def architecture() -> str:
        run = RunSpec(command="python -m pkg.train")
        return CommandSource(run, JobSource("", tmp_path, 0, 1), 3, "val_accuracy").manifest(100).architecture

    package = tmp_path / "pkg"
    package.mkdir()
    (package / "train.py").write_text("from pkg import model\n")
    (package / "model.py").write_text("UNITS = 8\n")
    before = architecture()
    for unseen in ("runs/1/copy.py", "__pycache__/model.py", ".git/hook.py", "notes.txt"):
        (tmp_path / unseen).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / unseen).write_text("whatever\n")
    (tmp_path / "env" / "lib").mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "env" / "lib" / "library.py").write_text("1\n")

    assert architecture() == before
    (package / "model.py").write_text("UNITS = 9\n")
    assert architecture() != before


def test_a_manifest_says_what_of_a_command_was_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "model.py").write_text("")
    source = CommandSource(RunSpec(command="python train.py"), JobSource("", tmp_path, 0, 1), 3)
    told = source.manifest(100).compared

    assert told == "compared were the command, its params and 2 files of its folder, and not its data"
