"""`simulate`: a trace on a pool in virtual time."""

from __future__ import annotations

import gzip
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from scavenger_cli.main import main

from scavenger.control.search.outcome import NOTHING_SEARCHED
from scavenger.domain.document import report_document
from scavenger.domain.report import ReportedJob, RunReport
from scavenger.domain.submission import NewSubmission
from scavenger.store import Store
from tests.golden.documents import PREDICTED
from tests.server.dashboard_samples import curve_of

TRACE = """submit_time,duration,num_gpu,user
0,10,3,ann
1,5,2,bob
2,1,1,ann
3,0,1,bob
4,1e300,1,bob
"""
RATES = "model,slots,rate\nm,1,1.0\nm,2,2.0\nm,4,4.0\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three jobs and two that took no time or ages, as a packed file."""
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(TRACE.encode()))
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    """The document that the command prints."""
    assert main(["simulate", *(str(word) for word in words), "-o", "json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_policies_are_compared_on_one_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, trace, "--nodes", "2x2", "--policy", "fifo", "--policy", "srtf")

    assert (found["jobs"], found["dropped"], found["slots"], found["elastic"]) == (3, 2, 4, False)
    by_name = {row["policy"]: row for row in found["policies"]}  # type: ignore[attr-defined]
    assert list(by_name) == ["fifo", "srtf"]
    assert by_name["fifo"]["mean_s"] == pytest.approx((10.0 + 14.0 + 9.0) / 3)
    assert by_name["srtf"]["mean_s"] < by_name["fifo"]["mean_s"]
    assert by_name["fifo"]["slot_hours"] == pytest.approx((30.0 + 10.0 + 1.0) / 3600.0)


def test_with_rates_jobs_use_idle_slots(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text(RATES)
    rigid = answer(capsys, trace, "--nodes", "1x4", "--policy", "elastic-tiresias")
    elastic = answer(capsys, trace, "--nodes", "1x4", "--policy", "elastic-tiresias", "--rates", rates)

    assert elastic["elastic"] is True
    assert elastic["policies"][0]["makespan_s"] < rigid["policies"][0]["makespan_s"]  # type: ignore[index]


def test_the_table_fits_a_terminal_and_a_picture_is_drawn(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "runs.svg"
    assert main(["simulate", str(trace), "--nodes", "1x4", "--plot", str(picture)]) == 0
    shown = capsys.readouterr()

    assert max(map(len, shown.out.splitlines())) <= 80
    assert "elastic-tiresias" in shown.out
    assert "2 rows left out" in shown.err
    assert "slots in use of 4" in picture.read_text() or picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "4"], "give nodes and the slots of each, such as 64x8"),
        (["--nodes", "1x2"], "asks for 3 slots, and the pool has 2"),
        (["--nodes", "1x4", "--policy", "best"], "there is no policy 'best'"),
        (["--nodes", "1x4", "--plot", "a.txt"], "name a file that ends in .svg"),
        (["--nodes", "1x4", "--spot"], "belong to --vm"),
        (["--nodes", "1x4", "--vm", "g4dn.xlarge"], "give the fewest and the most VMs, such as 0..64"),
        (["--nodes", "5..4", "--vm", "g4dn.xlarge"], "give the fewest and the most VMs"),
        (["--nodes", "0..2", "--vm", "g4dn.xlarge"], "asks for 3 slots, and the pool has 2"),
        (["--nodes", "0..4", "--vm", "g4dn.huge"], "no VM type 'g4dn.huge'"),
        (["--nodes", "0..4", "--vm", "g4dn.xlarge", "--budget", "0.01"], "it pays for no VM"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    words: list[str], told: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(trace), *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_vms_are_rented_for_a_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--vm", "g4dn.xlarge", "--nodes", "0..8", "--policy", "even", "--start", "60", "--idle", "30")
    found = answer(capsys, trace, *words)
    own, even = found["policies"]  # type: ignore[misc]

    assert (own["policy"], even["policy"]) == ("own VMs", "even")
    assert own["mean_s"] == even["mean_s"] == pytest.approx(60.0 + 16.0 / 3)
    assert own["vm_hours"] == pytest.approx((3 * 70.0 + 2 * 65.0 + 61.0) / 3600.0)
    # jobs here take no VMs of others, so that each is idle for its time
    assert even["vm_hours"] - own["vm_hours"] == pytest.approx(6 * 30.0 / 3600.0)
    assert even["usd"] / even["vm_hours"] == pytest.approx(own["usd"] / own["vm_hours"])
    assert main(["simulate", str(trace), *words]) == 0
    shown = capsys.readouterr()
    assert "up to 8 VMs at $0.526 an hour" in shown.err
    assert max(map(len, shown.out.splitlines())) <= 80


def test_a_file_that_is_no_trace_says_which_columns_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit_time,gpus\n0,1\n")
    assert main(["simulate", str(path), "--nodes", "1x4"]) == 2
    assert "there is no column 'duration_s' (or duration)" in " ".join(capsys.readouterr().err.split())


def past_job(store: Store, folder: Path, name: str, *, curve: bool) -> None:
    """A submitted job that was trained with two workers, and has ended."""
    found, choice = curve_of()
    spec = {"name": name, "train": "a:b", "search": {"workers": [1, 2, 4]}, "goal": {"max_epochs": 5}}
    new = NewSubmission(
        name, {"version": 1, **spec}, f"{folder}/{name}.yaml", "ann", socket.gethostname(), os.getuid()
    )
    one = store.submit(new)
    lease = store.start_runner(one.id, "x/1/1", None)
    assert lease is not None
    store.create_job(name, spec=dict(one.job.spec), job_file=one.job.job_file, job_id=one.id)
    store.update_job(one.id, state="running")
    report = RunReport(ReportedJob(one.id, name, "succeeded"), NOTHING_SEARCHED, found, choice, PREDICTED)
    store.finish_job(
        one.id,
        state="succeeded",
        report=report_document(report) if curve else None,
        exit_code=0,
        chosen=replace(choice.point.configuration, workers=2),
    )
    assert store.end_submission(lease.fence, one.id, "done")


def test_the_past_of_a_pool_is_simulated_under_another_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("SCAVENGER_LOCAL_PRICE", "0.5")
    monkeypatch.setenv("SCAVENGER_STORE", url)
    monkeypatch.delenv("SCAVENGER_SERVER", raising=False)
    with Store.open(url) as store:
        past_job(store, tmp_path, "known", curve=True)
        past_job(store, tmp_path, "unknown", curve=False)
    assert main(["simulate", "--history", "30d", "--nodes", "1x4", "--policy", "worth", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    was, worth = found["policies"]

    assert (found["jobs"], found["slots"], found["elastic"]) == (2, 4, True)
    assert (was["policy"], worth["policy"], was["changes"]) == ("as it was", "worth", None)
    for row in (was, worth):
        assert row["usd"] == pytest.approx(0.5 * row["slot_hours"])
    assert main(["simulate", "--history", "30d", "--nodes", "1x4", "--policy", "fifo"]) == 0
    shown = capsys.readouterr()
    assert "1 job with as many slots as it had, since no curve of it is known" in " ".join(shown.err.split())
    assert max(map(len, shown.out.splitlines())) <= 80
    for words, told in (
        (["--history", "30d", "--pool", "none"], "there is no pool 'none'; there are local"),
        (["--history", "soon"], "--history soon"),
        ([], "name a trace, or give --history"),
    ):
        assert main(["simulate", *words]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
