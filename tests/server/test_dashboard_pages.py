"""What the dashboard's pages show, and that no text of a job becomes part of their markup."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from dashboard_samples import ACTUAL, HOSTILE, NOW, curve_of, job_of, sight_of_running

from scavenger.control.training.run_course import RunCourse
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import thinned
from scavenger.domain.progress import Moved
from scavenger.errors import ConfigurationError
from scavenger.server.dashboard.confirming import confirmation_of, operation_of
from scavenger.server.dashboard.figures import errors_figure, job_figures
from scavenger.server.dashboard.job_list import job_line, jobs_page
from scavenger.server.dashboard.job_page import JobSight, job_page, job_tables
from scavenger.server.dashboard.pages import render
from scavenger.server.dashboard.plots import Figure, figures_document
from scavenger.store.records import EventRecord

VOID = {"meta", "link", "input", "rect", "br"}


class Checker(HTMLParser):
    """Collects the elements of a page; every element must be closed in order, and no id occur twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        ids = [found["id"] for _, found in self.elements if "id" in found]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def job_html(sight: JobSight, figures: dict[str, Figure]) -> str:
    page, tables = job_page(sight), job_tables(sight)
    return render("job.html", here="", user="ann", page=page, tables=tables, figures=figures)


def test_a_running_job_shows_state_progress_time_left_and_money_with_units(tmp_path: Path) -> None:
    line = job_page(sight_of_running(tmp_path)).line
    assert (line.state.words, line.state.live) == ("running", True)
    assert line.progress is not None
    assert line.progress.words == "50 % of about 20 min"
    assert line.left is not None
    assert (line.left.value, line.left.detail) == ("10 min", "90 %: 5 min to 20 min")
    assert line.cost == "$0.50"
    assert line.spent is not None
    assert line.spent.words == "$0.50 of $2.00 (25 %)"


def test_a_budget_that_runs_out_changes_its_tone(tmp_path: Path) -> None:
    tones = []
    for cost in (1.0, 1.7, 2.5):
        line = job_line(replace(job_of(tmp_path), cost_usd=cost), None, alive=True, now=NOW)
        assert line.spent is not None
        tones.append((line.spent.tone, line.spent.percent))
    assert tones == [("live", 50.0), ("warn", 85.0), ("bad", 100.0)]


def test_a_job_without_a_process_is_shown_as_dead_and_has_no_time_left(tmp_path: Path) -> None:
    sight = sight_of_running(tmp_path)
    page = job_page(replace(sight, cost=replace(sight.cost, alive=False)))
    assert page.line.state.words == "dead (running when last seen)"
    assert page.line.left is page.line.progress is None
    assert not page.can_operate


def test_errors_of_predictions_are_shown_of_runs_that_reached_their_end_only(tmp_path: Path) -> None:
    for state, off in (("succeeded", "+12.5 %"), ("stopped", "-")):
        job = replace(job_of(tmp_path), state=state, ended_at=NOW, actual=ACTUAL)
        tables = job_tables(replace(sight_of_running(tmp_path), job=job))
        assert (tables.compared[0].name, tables.compared[0].off_by) == ("Time", off)


def test_every_figure_of_a_running_job_is_drawn_and_described(tmp_path: Path) -> None:
    figures = job_figures(sight_of_running(tmp_path))
    assert all(one.plot is not None and one.words for one in figures.values())
    names = {id: [trace["name"] for trace in one.plot["data"]] for id, one in figures.items() if one.plot}
    assert {"front", "chosen", "budget $2.00"} <= set(names["curve"])
    assert {"measured", "extrapolated", "90 % interval", "target 0.99"} <= set(names["metric"])
    assert {"step time", "noise scale", "batch size"} <= set(names["steps"])
    assert {"workers", "failures and warnings", "cost"} <= set(names["timeline"])
    assert {"left", "expected", "90 % interval", "used up"} <= set(names["burn"])
    assert "(90 %:" in figures["metric"].words
    document = json.dumps(figures_document(figures), allow_nan=False)
    for theme in json.loads(document)["themes"].values():
        used = {word for word in document.split('"') if word.startswith("@") and word.endswith("@")}
        assert used <= set(theme)


def test_a_job_of_which_nothing_is_known_says_what_is_missing(tmp_path: Path) -> None:
    sight = replace(sight_of_running(tmp_path), course=RunCourse(), events=(), progress=None)
    sight = replace(sight, cost=replace(sight.cost, actual_usd=None), job=replace(sight.job, spec={}))
    figures = job_figures(sight)
    assert [one.plot for one in figures.values()] == [None] * len(figures)
    assert "when profiling ends" in figures["curve"].words
    assert "constraints.budget" in figures["burn"].words
    page = job_page(sight)
    assert page.no_journal.startswith("No step yet")
    Checker(job_html(sight, figures))
    assert "is not on this machine" in job_page(replace(sight, reachable=False)).no_journal


def test_a_stored_curve_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    sight = sight_of_running(tmp_path)
    broken = replace(sight, job=replace(sight.job, report={"schema_version": 99, "curve": [1]}))
    assert "cannot be read" in job_figures(broken)["curve"].words


def test_a_job_whose_code_failed_shows_where(tmp_path: Path) -> None:
    sight = sight_of_running(tmp_path)
    where = {"file": f"{tmp_path}/models/net.py", "line": 3, "function": "<module>", "code": "1 / 0"}
    job = replace(sight.job, state="failed", report={"traceback": [where]}, job_file=f"{tmp_path}/job.yaml")
    page = job_page(replace(sight, job=job))

    assert page.traceback[1:] == ('  File "models/net.py", line 3, in <module>', "    1 / 0")
    assert "line 3, in &lt;module&gt;" in job_html(replace(sight, job=job), {})
    assert job_page(sight).traceback == ()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    sight = sight_of_running(tmp_path)
    assert sight.progress is not None
    moved = Moved(Configuration("local-1", 3, 32), 305, HOSTILE)
    metric = replace(sight.progress, metric=HOSTILE, moved=moved)
    events = (EventRecord(9, sight.job.id, NOW, "warning", "note", HOSTILE, {}), *sight.events)
    job = replace(sight.job, name=HOSTILE, phase=HOSTILE, detail=HOSTILE, error=HOSTILE, job_file=HOSTILE)
    sight = replace(sight, job=job, progress=metric, events=events)
    page, figures = job_page(sight), job_figures(sight)
    assert "(the bend of the front). Moved to 3 x local-1, batch 32 at step 305: <script>" in page.choice
    lists = jobs_page([page.line], [], more=False, older="", state="", name=HOSTILE, store="s", now=NOW)
    texts = [
        job_html(sight, figures),
        render("jobs.html", here="/", user=HOSTILE, page=lists, states=("running",), live="/live"),
        render("problem.html", here="", user="", title="No", message=HOSTILE, fix=HOSTILE),
        render("submit.html", here="", user="", problem=HOSTILE, path=HOSTILE, text=HOSTILE, may_write=True),
    ]
    for text in texts:
        found = Checker(text)
        scripts = [attributes for tag, attributes in found.elements if tag == "script"]
        assert all((one.get("src") or "").startswith("/static/") for one in scripts)
        assert not any(name.startswith("on") for _, one in found.elements for name in one)
        assert any("<script>alert(1)</script>" in words for words in found.words) or "submit" in text
    hover = json.dumps(figures_document(figures)["figures"]["timeline"]["plot"])
    assert "<script" not in hover
    assert "&lt;script&gt;" in hover


def test_the_question_before_scaling_tells_what_the_curve_predicts(tmp_path: Path) -> None:
    sight = sight_of_running(tmp_path)
    question = confirmation_of(sight, {"what": "scale", "workers": "3"})
    assert "With 3 workers a whole run would take 9 min 37 s (90 %: 6.7-15 min)" in question.consequence
    assert "$1.40" in question.consequence
    assert dict(question.fields) == {"what": "scale", "workers": "3"}
    many = confirmation_of(sight, {"what": "scale", "workers": "99"})
    assert "Nothing is predicted for 99 workers" in many.consequence
    assert confirmation_of(sight, {"what": "stop"}).danger


@pytest.mark.parametrize("workers", ["", "0", "-1", "1.5", "²", "9" * 40, "x"])
def test_an_impossible_number_of_workers_is_refused(workers: str) -> None:
    with pytest.raises(ConfigurationError, match="whole number"):
        operation_of({"what": "scale", "workers": workers})


def test_a_curve_of_many_points_keeps_its_front_and_what_is_named() -> None:
    curve, choice = curve_of(5000)
    few, notes = thinned(curve, choice, 100)
    assert len(few) <= 101
    assert len(notes) == 1
    assert few.marks.on_front.sum() == curve.marks.on_front.sum()
    assert few.find(choice.configuration) == curve.find(choice.configuration)
    assert few.knee is not None
    assert curve.knee is not None
    assert few[few.knee] == curve[curve.knee]
    assert few.find(choice.alternatives[0][1].configuration) is not None
    assert thinned(few, choice, 200) == (few, ())


def test_the_errors_of_finished_jobs_say_how_many_were_within_their_interval(tmp_path: Path) -> None:
    done = replace(job_of(tmp_path), state="succeeded", ended_at=NOW, actual=ACTUAL)
    late = replace(done, actual=replace(ACTUAL, time_s=5000.0))
    figure = errors_figure([done, late])
    assert figure.words.startswith("2 finished jobs; the actual time of 1 was within")
    assert errors_figure([]).plot is None
