"""`scavenger curves --why K B` and `explain`: where predictions come from, of files and of stored jobs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli_fake import Run

from scavenger.control.search.outcome import NOTHING_SEARCHED
from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.document import report_document
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.measurement import Measurement, Profile
from scavenger.domain.report import ReportedJob, RunReport
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve
from scavenger.store import Store

OFFER = Offer("local", "", "local-1", 0.1, "notional", cpus=1, memory_bytes=2**30, shared_cpus=2)
SPACE = SearchSpace((OFFER,), (1, 2, 4), (64, 256, 1024))
FINGERPRINT = Fingerprint("a" * 64, 1000, "Adam:1", 10_000, 784, "val_accuracy>=0.97", "local-1", "cpu")
STEPS = "workload,cluster,workers,local_batch_size,step_time_s\n" + "".join(
    f"a,t4,{workers},{batch},{0.02 + 0.001 * batch + 0.002 * (workers - 1)}\n"
    for workers in (1, 2, 8)
    for batch in (8, 32, 64)
)


def measurement(workers: int, batch: int) -> Measurement:
    compute_s, sync_s = 0.02 + 0.001 * batch / workers, 0.01 * (workers > 1)
    step_s = compute_s + sync_s
    at = Configuration("local-1", workers, batch)
    return Measurement(at, 20, step_s, 0.02 * step_s, compute_s, sync_s, None, 300.0, 2**20)


MODEL = JobModel.fit(
    Profile(tuple(measurement(*place) for place in ((1, 64), (1, 1024), (2, 64))), dataset_size=10_000),
    space=SPACE,
    epochs_hint=10.0,
    max_epochs=50,
)


@pytest.fixture
def job(store_url: str) -> str:
    """A job with a curve, and without a model yet."""
    curve = build_curve(MODEL, SPACE)
    with Store.open(store_url) as store:
        made = store.create_job("digits", spec={}, job_file="job.yaml").id
        report = RunReport(
            ReportedJob(made, "digits", "succeeded"), NOTHING_SEARCHED, curve, choose(curve, "knee")
        )
        store.finish_job(made, state="succeeded", report=report_document(report), exit_code=0)
    return made


def save(store_url: str, model: dict[str, Any], job: str) -> str:
    with Store.open(store_url) as store:
        return store.save_model(
            FINGERPRINT, model, job_id=job, schema_version=SCHEMA_VERSION, measurements=3, runs=0
        ).id


def test_a_job_is_explained_by_the_model_that_it_stored(job: str, store_url: str, scavenger: Run) -> None:
    model = save(store_url, MODEL.to_dict(), job)
    code, out, _ = scavenger("curves", job, "--why", 4, 256, "-o", "json")
    document = json.loads(out)
    (why,) = document["predictions"]

    assert code == 0
    assert document["job"]["id"] == job
    assert document["model"] == {"id": model, "job_id": job}
    assert (why["vm"], why["workers"], why["global_batch_size"]) == ("local-1", 4, 256)
    assert why["step_time_s"] == pytest.approx(why["point"]["step_time_s"])
    assert why["relative_only"] is False
    low_s, high_s = why["point"]["interval"]["time_s"]
    assert 2.0 * why["half_width"] == pytest.approx(math.log(high_s / low_s))
    assert {(p["workers"], p["global_batch_size"]) for p in why["points"]} == {(1, 64), (1, 1024), (2, 64)}
    assert why["probes"][0]["step_half_width"] < why["step_half_width"]


def test_the_explanation_fits_a_screen(job: str, store_url: str, scavenger: Run) -> None:
    save(store_url, MODEL.to_dict(), job)
    code, out, _ = scavenger("curves", "--why", 4, 256)  # of the latest job with a curve

    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for words in (
        "4 x local-1, batch 256",
        "not measured",
        "law: overlap 100%; computing",
        "1  1024",
        "the law of step times, of few points",
        "the machine's pace, which drifts",
        "narrowed most by measuring",
        "itself",
    ):
        assert words in out


def test_a_plan_is_explained_with_its_doubts_in_sentences(job: str, store_url: str, scavenger: Run) -> None:
    save(store_url, MODEL.to_dict(), job)
    code, out, _ = scavenger("explain")  # the latest job with a curve

    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for words in (
        "Predicted for 9 configurations",
        "Chosen: ",
        "How sure: nine of ten such runs of ",
        "the doubt comes from: ",
    ):
        assert words in out
    assert f"scavenger curves {job[:8]} --why" in out


def test_a_plan_whose_model_is_gone_is_told_without_its_doubts(job: str, scavenger: Run) -> None:
    code, out, _ = scavenger("explain", job)

    assert code == 0
    assert "Chosen: " in out
    assert "what is uncertain cannot be told" in out


def test_measured_points_are_marked_and_told(job: str, store_url: str, scavenger: Run) -> None:
    save(store_url, MODEL.to_dict(), job)
    _, curve, _ = scavenger("curves", job)
    _, why, _ = scavenger("curves", job, "--why", 1, 64, "-o", "json")
    _, rows, _ = scavenger("curves", job, "-o", "json")

    assert "m measured" in curve
    assert "capital letter: measured" in curve
    assert {(r["workers"], r["global_batch_size"]) for r in json.loads(rows)["curve"] if r["measured"]} == {
        (1, 64),
        (1, 1024),
        (2, 64),
    }
    (explained,) = json.loads(why)["predictions"]
    assert explained["measured"]
    assert explained["shares"]["measurement"] > 0.0


def test_a_job_whose_model_is_gone_says_so(job: str, scavenger: Run) -> None:
    code, _, error = scavenger("curves", job, "--why", 4, 256)

    assert code != 0
    assert "has no stored model" in error
    assert "scavenger plan" in error


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--why", 4, 2), "1 <= K <= B"),
        (("--why", 4, 256, "-f", "csv"), "--why is text or JSON, not csv"),
        (("--why", 4, 256, "--pricing", "size"), "leave out --pricing"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    words: tuple[object, ...], refusal: str, job: str, store_url: str, scavenger: Run
) -> None:
    save(store_url, MODEL.to_dict(), job)
    code, _, error = scavenger("curves", job, *words)

    assert code != 0
    assert refusal in error


def test_past_measurements_are_explained(tmp_path: Path, scavenger: Run) -> None:
    steps, out = tmp_path / "steps.csv", tmp_path / "why.json"
    steps.write_text(STEPS)
    asked = ("curves", "--from", steps, "--price", "0.5", "--dataset-size", "10000", "--why", 4, 256)

    assert scavenger(*asked, "--out", out)[0] == 0
    document = json.loads(out.read_text("utf-8"))
    code, text, _ = scavenger(*asked)

    assert code == 0
    assert document["model"] is None
    assert document["predictions"][0]["relative_only"] is True
    assert document["predictions"][0]["point"] is None  # 4 workers were not measured
    assert max(map(len, text.splitlines())) <= 80
    assert "not a configuration of this curve" in text
