"""Answers of a client as text, as tables of a notebook, and as errors; budgets that jobs share."""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scavenger import errors
from scavenger.client.problems import error_of
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import (
    Choice,
    CurveConfigurations,
    Infeasible,
    Interval,
    PointMarks,
    TradeoffCurve,
)
from scavenger.domain.measurement import EpochRecord, StepRecord
from scavenger.domain.report import (
    Actual,
    EpochEnded,
    MetricOutcome,
    Noted,
    PhaseChanged,
    Predicted,
    ReportedJob,
    RunReport,
    SearchOutcome,
    StepDone,
    TrainingResult,
)
from scavenger.errors import LimitReachedError, NoFeasiblePlanError, TrainingError
from scavenger.frames import Frame
from scavenger.pipelines.budget import Budget, dollars
from scavenger.pipelines.progress import LineProgress, NotebookProgress
from scavenger.pipelines.results import Plan, Run


def curve() -> TradeoffCurve:
    time_s, cost = np.array([60.0, 40.0, 90.0]), np.array([0.01, 0.02, 0.03])
    return TradeoffCurve(
        CurveConfigurations(("local-1",), np.zeros(3, np.int64), np.array([1, 2, 1]), np.array([32, 64, 64])),
        time_s,
        Interval(time_s / 2, time_s * 2),
        cost,
        Interval(cost / 2, cost * 2),
        np.full(3, 0.05),
        np.full(3, 10.0),
        PointMarks(np.array([True, True, False]), np.full(3, True), np.full(3, False), np.zeros(3, np.int64)),
    )


def report(state: str = "succeeded", **changes: object) -> RunReport:
    found = curve()
    made = RunReport(
        ReportedJob("0198c0de-1111-4000-8000-000000000001", "<digits>", state),  # type: ignore[arg-type]
        SearchOutcome("none", "a model is stored", (), 0.1, 0.0),
        found,
        Choice(found[0], "cost", "the cheapest"),
        Predicted(66.0, (50.0, 90.0), 0.011, (0.01, 0.02), 0.05, 10.0),
        result=TrainingResult(
            Actual(60.0, 0.01, 0.05, 9.0), MetricOutcome("val_accuracy", 0.97, 0.96, True), 900, "m.keras"
        ),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_plan_shows_the_front_first_and_the_choice() -> None:
    plan = Plan(report("planned"))

    assert [point.configuration.workers for point in plan.front] == [2, 1]
    assert plan.choice.configuration == Configuration("local-1", 1, 32)
    lines = str(plan).splitlines()
    assert lines[0].startswith("Job <digits> (0198c0de): nothing profiled")
    assert lines[1].startswith("You will pay about $0.011 (90 %: $0.01 to $0.02) in 1 min 6 s")
    assert [line[:2] for line in lines[3:6]] == [" *", ">*", "  "]
    assert lines[-1] == "Chosen: 1 x local-1, batch 32: the cheapest"
    html = plan._repr_html_()
    assert "&lt;digits&gt;" in html
    assert html.count("<tr>") == 4


def test_a_notebook_shows_the_picture_in_its_own_text_colour_above_the_table() -> None:
    html = Plan(report("planned"))._repr_html_()
    svg, _, rest = html.partition("</svg>")

    assert svg.startswith("<svg")
    assert "<style>svg" not in svg  # it would hold for every picture of the page
    assert "Chosen: 1 x batch 32" in svg
    assert "&lt;digits&gt;" in svg
    assert "<table>" in rest


def test_without_matplotlib_a_notebook_shows_the_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scavenger.pipelines.results.find_spec", lambda _: None)

    assert Plan(report("planned"))._repr_html_().startswith("<div>Job")


def test_a_run_has_its_bill() -> None:
    run = Run(report())

    assert run.check() is run
    assert (run.value, run.cost_usd, run.time_s, run.model_path) == (0.97, 0.01, 60.0, "m.keras")
    assert re.search(r"cost +\$0.011 +\$0.01-0.02 +\$0.010 +\+10.0 %", str(run))
    assert "<td>+10.0 %</td>" in run._repr_html_()
    agreed = Predicted(66.0, (50.0, 90.0), 0.02, (0.01, 0.03), 0.05, 10.0)
    assert "+100.0 %" in str(run.against(agreed))
    assert run.against(None) is run


@pytest.mark.parametrize(
    ("code", "kind", "fix"),
    [
        (5, LimitReachedError, "raise the budget"),
        (6, TrainingError, "raise the budget"),
        (4, NoFeasiblePlanError, "raise the budget"),
    ],
)
def test_a_run_that_failed_is_an_error_of_its_class(code: int, kind: type[Exception], fix: str) -> None:
    run = Run(report("stopped", error="it ended; raise the budget", exit_code=code))

    with pytest.raises(kind) as raised:
        run.check()
    assert isinstance(raised.value, errors.ScavengerError)
    assert (raised.value.fix, raised.value.retryable) == (fix, False)
    assert run.state == "stopped"


def test_an_error_of_the_code_shows_its_lines_in_the_exception_and_the_notebook() -> None:
    frames = (
        Frame(str(Path.cwd() / "train.py"), 12, "call", 'raise ValueError("<no>")'),
        Frame(folded=14, of="keras"),
    )
    run = Run(report("failed", error="failed", exit_code=6, result=TrainingResult(traceback=frames)))

    with pytest.raises(TrainingError) as raised:
        run.check()
    assert raised.value.__notes__[0].splitlines() == [
        "your code failed here:",
        '  File "train.py", line 12, in call',
        '    raise ValueError("<no>")',
        "  ... 14 frames of keras",
    ]
    assert "<pre>your code failed here:\n  File" in run._repr_html_()
    assert "&lt;no&gt;" in run._repr_html_()


def test_a_plan_without_a_choice_says_why() -> None:
    with pytest.raises(NoFeasiblePlanError, match="none is cheap enough"):
        _ = Plan(report("failed", choice=Infeasible("none is cheap enough", None))).choice
    with pytest.raises(errors.ConfigurationError, match="has no choice"):
        _ = Plan(report("failed", choice=None)).choice
    with pytest.raises(errors.ConfigurationError, match="has no curve"):
        _ = Plan(report("failed", curve=None)).curve


class TestErrors:
    def test_each_says_its_code_what_to_do_and_whether_to_try_again(self) -> None:
        error = errors.StoreBusyError("another process writes")
        assert (error.code, error.fix, error.retryable) == ("store_busy", "try again", True)
        error = errors.StoreBusyError("another process writes; wait for it")
        assert error.fix == "wait for it"
        assert not errors.LeaseLostError("x").retryable

    def test_what_a_server_tells_of_an_error_is_kept(self) -> None:
        told = {
            "detail": "no space",
            "code": "job_file",
            "fix": "correct it",
            "retryable": False,
            "exit_code": 2,
        }
        error = error_of(409, told, "http://server")
        assert type(error) is errors.ConfigurationError
        assert (error.code, error.fix, error.retryable) == ("job_file", "correct it", False)
        slow = error_of(
            429, {"detail": "wait", "code": "too_many_requests", "retryable": True}, "http://server"
        )
        assert isinstance(slow, errors.TransientError)
        assert (slow.code, slow.retryable) == ("too_many_requests", True)


class TestBudgets:
    def test_each_job_has_what_the_others_leave(self) -> None:
        budget = Budget(10.0, spent_usd=1.0)
        with budget.allowance(4.0) as first:
            assert first.usd == 4.0
            assert budget.left_usd == 5.0
            with budget.allowance(None) as second:
                assert second.usd == 5.0
                with (
                    pytest.raises(LimitReachedError, match="set aside for running jobs"),
                    budget.allowance(1.0),
                ):
                    pass
                second.cost_usd = 2.0
            first.cost_usd = 3.0
        assert (budget.spent_usd, budget.left_usd) == (6.0, 4.0)

    def test_what_is_left_is_shared_among_those_that_run_at_once(self) -> None:
        budget = Budget(12.0)
        with contextlib.ExitStack() as running:
            given = [running.enter_context(budget.allowance(None, at_once=3)).usd for _ in range(3)]
            with pytest.raises(LimitReachedError, match=r"\$12\.00 are set aside"):
                running.enter_context(budget.allowance(None, at_once=3))
        assert given == pytest.approx([4.0, 4.0, 4.0])

    def test_a_failed_job_costs_what_it_has_cost(self) -> None:
        budget = Budget(10.0)
        with contextlib.suppress(TrainingError), budget.allowance(None) as one:
            one.cost_usd = 9.0
            raise TrainingError("no")
        assert budget.left_usd == 1.0

    def test_what_a_job_has_cost_is_all_that_it_might_cost_where_that_is_not_known(self) -> None:
        budget = Budget(10.0)
        with budget.allowance(4.0) as one:
            one.cost_usd = None
        assert budget.left_usd == 6.0

    def test_without_a_limit_only_the_jobs_own_holds(self) -> None:
        budget = Budget(None)
        with budget.allowance(None) as one, budget.allowance(2.0) as other:
            assert (one.usd, other.usd, budget.left_usd) == (None, 2.0, math.inf)

    def test_amounts_are_written_as_in_a_job_file(self) -> None:
        assert [dollars(one) for one in ("$2.50", "2.50", 2.5, None)] == [2.5, 2.5, 2.5, None]
        with pytest.raises(errors.ConfigurationError, match="must be US dollars"):
            dollars("two")


class TestProgress:
    EVENTS = (
        PhaseChanged("running", "to the goal"),
        StepDone(StepRecord(3, 1, 0, 2, 64, 64, 0.05, 0.04, 0.01, 0.25, 1.0, 1.0, 2, False, 3.0), 0.5, 0.01),
        EpochEnded(EpochRecord(0, 3, {"val_loss": 0.5}, 0.1, 3.0), "val_loss", None),
        Noted("warning", "a worker is slow"),
    )

    def test_lines_have_one_event_each(self, tmp_path: Path) -> None:
        file = tmp_path / "log"
        with file.open("w") as stream:
            progress = LineProgress(stream)
            for event in self.EVENTS:
                progress.on_event(event)
        lines = file.read_text().splitlines()
        assert lines[0] == "running: to the goal"
        assert lines[1].startswith("step 3, epoch 1, 2 x batch 64, ")
        assert lines[1].endswith(", 50 %")
        assert lines[2:] == ["epoch 1: val_loss 0.5", "warning: a worker is slow"]

    def test_a_notebook_has_one_output_that_is_updated(self) -> None:
        class Handle:
            updates = 0

            def update(self, shown: object) -> None:
                Handle.updates += 1

        shown: list[object] = []
        progress = NotebookProgress(lambda one, display_id: (shown.append(one), Handle())[1])
        progress.begin()
        for event in self.EVENTS:
            progress.on_event(event)
        progress.end()
        assert shown == [progress]
        assert Handle.updates >= 4
        assert "warning: a worker is slow" in progress._repr_html_()
        assert "val_loss 0.5" in repr(progress)

    def test_a_stream_that_nobody_reads_ends_nothing(self) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        stream = os.fdopen(writing, "w", buffering=1)
        LineProgress(stream).on_event(self.EVENTS[0])
        with contextlib.suppress(BrokenPipeError):
            stream.close()
