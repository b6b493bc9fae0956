"""Jobs that are run from Python: by this process, by an event loop, and by a server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipeline_code
import pytest

from scavenger import AsyncClient, Client, Job, ScavengerError
from scavenger.control.provisioning.kept_vms import KeptVms
from scavenger.domain.report import EpochEnded, Event, Observer
from scavenger.errors import (
    ConfigurationError,
    LimitReachedError,
    NotFoundError,
    TrainingError,
)
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store

PAGE = Path(__file__).parents[2] / "docs" / "sdk.md"
QUICK = {"profile.steps": 3, "profile.points": 2}


def job(tmp_path: Path, **options: Any) -> Job:
    settings = {**QUICK, "output": str(tmp_path / "out"), **options.pop("settings", {})}
    given = {"goal": 3, "workers": 1, "batch_size": [50], **options}
    return Job(pipeline_code.model, data=pipeline_code.data, settings=settings, **given)


class Epochs(Observer):
    """Counts epochs, and calls something at each."""

    def __init__(self, then: Any = lambda: None) -> None:
        self.count, self._then = 0, then

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            self.count += 1
            self._then()


@pytest.mark.slow
def test_a_plan_a_run_of_it_and_what_is_on_record(url: str, tmp_path: Path) -> None:
    epochs = Epochs()
    with Client(store=url, budget="$1") as client:
        plan = client.plan(job(tmp_path))
        run = client.run(job(tmp_path).with_params(width=8, learning_rate=0.01), plan, observer=epochs)

        assert plan.profiled == 1
        assert run.state == "succeeded"
        assert run.report.result.steps == 60
        assert epochs.count == 3
        assert run.model_path is not None
        assert run.cost_usd > 0.0
        assert client.left_usd == pytest.approx(1.0 - client.spent_usd)
        assert client.spent_usd >= run.cost_usd
        assert client.result(run.id).report == run.report
        assert run.predicted == plan.predicted
        assert client.curve(run.id).choice.configuration == plan.choice.configuration
        assert len(client.models()) >= 1
        assert plan.id[:8] not in str(client.models())
        with pytest.raises(NotFoundError):
            client.result("unknown")


@pytest.mark.slow
@pytest.mark.long
def test_code_that_fails_is_told_and_costs_what_it_costs(url: str, tmp_path: Path) -> None:
    failing = Job(pipeline_code.fails, goal=3, settings={"output": str(tmp_path / "out")})
    with Client(store=url) as client:
        with pytest.raises(TrainingError, match="there is no data") as raised:
            client.optimize(failing)
        assert (raised.value.code, raised.value.retryable) == ("training", False)
        with pytest.raises(TrainingError, match="unexpected keyword argument 'depth'"):
            client.optimize(job(tmp_path, params={"depth": 3}))
        assert client.attempt(failing).state == "failed"
        assert client.spent_usd >= 0.0


@pytest.mark.slow
@pytest.mark.long
def test_a_budget_ends_a_job_and_refuses_the_next(url: str, tmp_path: Path) -> None:
    with Client(store=url, budget=2e-4) as client:
        with pytest.raises(LimitReachedError):
            client.optimize(job(tmp_path, goal=100_000))
        assert 0.0 < client.spent_usd <= 2.5e-4


@pytest.mark.slow
@pytest.mark.long
def test_a_cancelled_call_stops_its_job(url: str, tmp_path: Path) -> None:
    begun = threading.Event()

    async def body() -> None:
        async with AsyncClient(store=url) as client:
            task = asyncio.ensure_future(
                client.optimize(job(tmp_path, goal=100_000), observer=Epochs(begun.set))
            )
            assert await asyncio.to_thread(begun.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.result("pipeline-code")).state == "interrupted"
            assert client.spent_usd > 0.0

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_stops_the_job_in_order(url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import pipeline_code, scavenger\n"
        "if __name__ == '__main__':\n"
        f"    job = scavenger.Job(pipeline_code.model, data=pipeline_code.data, goal=100000, settings={{'output': "
        f"{str(tmp_path / 'out')!r}}})\n"
        f"    client = scavenger.Client(store={url!r}, progress=True)\n"
        "    client.optimize(job)\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) != 0
    assert rest.rstrip().endswith("KeyboardInterrupt")
    with Store.open(url) as store:
        assert store.job("pipeline-code").state == "interrupted"


def test_a_worker_that_imports_a_script_runs_no_job(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCAVENGER_PROCESS", "tag.w0")
    with Client(store=url) as client, pytest.raises(ConfigurationError, match="__main__"):
        client.optimize(job(tmp_path))


def test_a_client_has_a_store_or_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SCAVENGER_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="not both"):
        Client(store="jobs.db", server="http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="no token is known"):
        Client(server="http://127.0.0.1:1")
    with Client(store=str(tmp_path / "jobs.db")) as client, pytest.raises(NotFoundError):
        client.curve("unknown")
    assert (tmp_path / "jobs.db").is_file()


def test_what_cannot_be_ended_keeps_nothing_else_from_its_end(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, closed = Client(store=url), list[str]()
    first, second = KeptVms("first", 1.0), KeptVms("second", 1.0)
    for kept in (first, second):
        client.keep(kept)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(second, "close", interrupted)
    monkeypatch.setattr(first, "close", lambda: closed.append("first"))
    monkeypatch.setattr(client._warm, "close", lambda: closed.append("warm"))
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert closed == ["first", "warm"]


def test_one_configuration_is_named_in_one_way(url: str, tmp_path: Path) -> None:
    with Client(store=url) as client:
        for options in ({}, {"workers": 1}):
            with pytest.raises(ConfigurationError, match="one configuration"):
                client.run(job(tmp_path), **options)


class TestByAServer:
    @pytest.fixture
    def client(self, url: str) -> Iterator[Client]:
        with Store.open(url) as store:
            store.set_user("ann", "admin")
            token = store.new_token("ann", "test")[1]
            with (
                serving(store, ServerSettings(port=0)) as address,
                Client(server=address, token=token) as client,
            ):
                yield client

    def test_a_job_of_python_is_submitted(self, client: Client, tmp_path: Path) -> None:
        before = set(Path(__file__).parent.iterdir())

        submission = client.submit(job(tmp_path, budget=1))

        assert submission.state == "queued"
        assert "queued" in str(submission)
        assert set(Path(__file__).parent.iterdir()) == before
        with pytest.raises(NotFoundError):
            client.result("unknown")
        assert list(client.models()) == []

    def test_a_job_that_cannot_be_run_is_refused_as_here(self, client: Client, tmp_path: Path) -> None:
        wrong = job(tmp_path).with_settings({"train": "nowhere:model"})
        with pytest.raises(ScavengerError, match=r"nowhere\.py") as refused:
            client.submit(wrong)
        assert (refused.value.code, refused.value.retryable) == ("configuration", False)


def blocks() -> dict[str, str]:
    """The programs of the page, by their names."""
    found = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(found)


def test_a_plan_a_choice_and_a_run_take_ten_lines() -> None:
    lines = [line for line in blocks()["pipeline.py"].splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.slow
@pytest.mark.long
def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    for name, text in blocks().items():
        (tmp_path / name).write_text(text)
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "SCAVENGER_LOCAL_PRICE": "0.1"}

    def ran(name: str) -> str:
        done = subprocess.run(
            [sys.executable, name],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    shown = ran("pipeline.py")
    assert "Chosen: " in shown
    assert "model: " in shown
    assert ran("errors.py").splitlines()[:2] == ["not_found", "False"]
