"""The dashboard in real Chromium: what people see, click and hear, at every width and in both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import axe_source, browser, serving, why_no_browser
from dashboard_samples import PREDICTED, curve_of
from server_world import World, end_runner

from scavenger.control.search.outcome import NOTHING_SEARCHED
from scavenger.control.training.journal import Journal
from scavenger.domain.configuration import Configuration
from scavenger.domain.document import report_document
from scavenger.domain.operation import ScaleTo
from scavenger.domain.progress import PROGRESS, Progress
from scavenger.domain.report import ReportedJob, RunReport
from scavenger.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "there is a browser"),
]

PROGRESSED = Progress(
    40,
    4,
    Configuration("local-1", 2, 10**6),
    0.4,
    "val_accuracy",
    0.82,
    0.99,
    (9.0, 40.0),
    600.0,
    (300.0, 1200.0),
)


@pytest.fixture
def running(store: Store, world: World) -> str:
    """Ann's job with a journal, a curve, a choice and progress."""
    job_id = world.jobs["ann"]
    job = store.job(job_id)
    curve, choice = curve_of()
    journal = Journal(Path(job.job_file).parent / ".scavenger" / job_id / "measurements.jsonl", job_id=job_id)
    for number in range(1, 41):
        one = {
            "step": number,
            "workers": 2,
            "global_batch_size": 64,
            "step_time_s": 0.1,
            "loss": 1.0 / number,
        }
        journal.add("step", {**one, "disturbed": False, "at_s": 0.1 * number, "noise_scale": 50.0 + number})
        if number % 8 == 0:
            metrics = {"val_loss": 1.0 / number, "val_accuracy": number / 50}
            told = {"epoch": number // 8 - 1, "step": number, "metrics": metrics, "evaluation_s": 0.1}
            journal.add("epoch", {**told, "at_s": 0.1 * number})
    report = RunReport(ReportedJob(job_id, job.name, "running"), NOTHING_SEARCHED, curve=curve, choice=choice)
    journal.add("curve", report_document(report))
    journal.tick(4.0, 0.5)
    journal.close()
    store.update_job(
        job_id, chosen=choice.configuration, predicted=PREDICTED, phase="running", detail="on its way"
    )
    store.add_event(job_id, "view", "view 1", data={"workers": 2, "global_batch_size": 64})
    store.add_event(job_id, PROGRESS, "", data=PROGRESSED.data(), replacing=True)
    return job_id


@pytest.fixture
def address(store: Store) -> Iterator[str]:
    with serving(store) as url:
        yield url


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(chromium: Any, address: str, world: World) -> Iterator[Any]:
    """A page of ann's, on which nothing may fail."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    failures: list[str] = []
    opened.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: failures.append(str(error)))
    opened.set_default_timeout(60_000)
    opened.goto(f"{address}/login?token={world.tokens['ann']}")
    yield opened
    context.close()
    assert failures == []


def drawn(page: Any) -> None:
    page.locator(
        "#burn-words:not(:empty)"
    ).wait_for()  # functions to wait for are scripts, which pages forbid
    page.locator("#timeline .main-svg").first.wait_for()
    page.locator("#steps .main-svg").first.wait_for()


def test_a_job_is_found_watched_and_scaled(page: Any, store: Store, running: str) -> None:
    page.reload()
    page.get_by_role("link", name="ann-secret").click()
    drawn(page)
    assert page.locator("#metric-words").inner_text().startswith("5 evaluations")
    assert page.get_by_text("10 min left").is_visible()
    # it goes on by itself
    later = replace(PROGRESSED, epoch=6, value=0.9, left_s=30.0, left_interval_s=(20.0, 50.0))
    store.add_event(running, PROGRESS, "", data=later.data(), replacing=True)
    page.get_by_text("30 s left").wait_for()
    page.get_by_label("Workers", exact=True).fill("3")
    page.get_by_role("button", name="Scale…").click()
    assert page.get_by_role("heading", name=re.compile("Scale to 3 workers")).is_visible()
    assert store.operations(running, limit=1) == ()
    page.get_by_role("button", name="Scale to 3").click()
    page.wait_for_url(f"**/jobs/{running}")
    (asked,) = store.operations(running, limit=1)
    assert asked.operation == ScaleTo(3)
    page.get_by_text("scale to 3 workers").first.wait_for()
    store.end_operation(asked.id, "done", "it has 3 workers")
    page.get_by_text("it has 3 workers").wait_for()
    store.finish_job(running, state="succeeded", report=None, exit_code=0)
    page.get_by_text("succeeded", exact=True).wait_for()


def test_a_request_is_withdrawn_and_a_job_that_was_stopped_goes_on(
    page: Any, store: Store, running: str
) -> None:
    page.goto(page.url.rstrip("/") + f"/jobs/{running}")
    page.get_by_role("button", name="Migrate…").click()
    page.get_by_role("button", name="Migrate the workers").click()
    page.get_by_role("button", name="Withdraw the request…").click()
    page.get_by_role("button", name="Withdraw the request").click()
    page.get_by_text("withdrawn by ann").first.wait_for()
    store.update_job(running, checkpoint="/jobs/checkpoint")
    store.finish_job(running, state="stopped", report=None, exit_code=0)
    end_runner(store, running)
    page.reload()
    page.get_by_role("button", name="Resume…").click()
    page.get_by_role("button", name="Resume the job").click()
    page.wait_for_url(f"**/jobs/{running}")
    resumed = store.submission(running)
    assert resumed is not None
    assert resumed.state == "queued"


def test_all_can_be_reached_by_the_keyboard_and_its_place_is_seen(page: Any, running: str) -> None:
    page.reload()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    reached = []
    for _ in range(25):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "(() => { const one = document.activeElement, style = getComputedStyle(one);"
            "return [one.textContent.trim(), parseFloat(style.outlineWidth), style.outlineStyle]; })()"
        )
        if found[0] == "ann-secret":
            break
        reached.append(found)
    assert found[1] >= 2
    assert found[2] != "none"
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{running}")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 3840])
def test_no_page_is_wider_than_its_window(
    page: Any, address: str, running: str, width: int, theme: str
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    for path in (
        "/",
        f"/jobs/{running}",
        "/models",
        "/pools",
        "/vms",
        "/budgets",
        "/submit",
        f"/jobs/{running}/confirm?what=stop",
    ):
        page.goto(address + path)
        if path == f"/jobs/{running}":
            drawn(page)
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert (path, over) == (path, 0)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", back)[:3])) > 384) == (theme == "light")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_barrier(page: Any, address: str, running: str, theme: str) -> None:
    script = axe_source()
    if script is None:
        pytest.skip("axe-core is not there: npm cannot fetch it, and AXE_CORE names no folder")
    page.emulate_media(color_scheme=theme)
    for path in (
        "/",
        f"/jobs/{running}",
        "/models",
        "/pools",
        "/vms",
        "/budgets",
        "/submit",
        f"/jobs/{running}/confirm?what=stop",
        "/jobs/none",
    ):
        if path == "/jobs/none":  # which Chromium reports on the console as well
            continue
        page.goto(address + path)
        if path == f"/jobs/{running}":
            drawn(page)
        page.evaluate(script)  # not as an element: the pages' policy allows no foreign script
        found = page.evaluate("axe.run().then((found) => found.violations)")
        told = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]
        assert (path, told) == (path, [])


def test_without_scripts_the_texts_say_what_the_pictures_show(
    chromium: Any, address: str, world: World, running: str
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(f"{address}/login?token={world.tokens['ann']}")
    opened.goto(f"{address}/jobs/{running}")
    text = opened.locator("body").inner_text()
    for words in ("6 configurations", "5 evaluations", "40 steps", "Without scripts", "10 min left"):
        assert words in text
    context.close()


def test_a_page_that_lost_its_server_shows_that_its_values_are_old(
    chromium: Any, store: Store, world: World, running: str
) -> None:
    context = chromium.new_context()
    with serving(store) as address:
        opened = context.new_page()
        opened.goto(f"{address}/login?token={world.tokens['ann']}")
    opened.wait_for_selector(".stale", timeout=60_000)
    context.close()


def test_a_newcomer_goes_by_the_keyboard_from_the_tour_to_the_submitted_demo(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    context = chromium.new_context(viewport={"width": 360, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    script = axe_source()

    def check() -> None:
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over == 0
        if script is not None:
            page.evaluate(script)
            found = page.evaluate("axe.run().then((found) => found.violations)")
            assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []

    def press(button: str) -> None:
        for _ in range(25):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent.trim()").startswith(button):
                return page.keyboard.press("Enter")
        raise AssertionError(f"no key leads to {button}")

    with Store.open(f"sqlite:///{tmp_path}/empty.db") as empty:
        empty.set_user("ann", "admin")
        with serving(empty) as address:
            page.goto(f"{address}/login?token={empty.new_token('ann', 'test')[1]}")
            assert page.get_by_role("region", name="No job yet: what this is").is_visible()
            check()
            press("Submit a job file")
            page.get_by_label("Job file").fill("/nowhere/job.yaml")
            page.keyboard.press("Enter")
            page.get_by_role("alert").wait_for()
            assert page.evaluate("document.activeElement.id") == "path"
            assert "no such file" in page.get_by_role("alert").inner_text()
            check()
            page.goto(address)
            press("Show the plan of the demo")
            page.get_by_role("heading", name="Submit digits-cnn?").wait_for()
            assert "not known before the search" in page.locator("#total").inner_text()
            check()
            press("Search first")
            page.get_by_text("queued").first.wait_for()
            (made,) = empty.submissions(2)
            assert not made.job.run
    context.close()
