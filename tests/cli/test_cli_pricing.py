"""`scavenger curves --pricing`: one curve under two ways of pricing."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_fake import Run
from cli_samples import make_report

from scavenger.domain.document import report_document
from scavenger.store import Store

SIZE = ("--rates", "cpu=0.0219,gib=0.003", "--cpus", "4", "--memory", "2+0.05")


@pytest.fixture
def job(store_url: str) -> str:
    report = make_report()
    with Store.open(store_url) as store:
        made = store.create_job(report.job.name, spec={}, job_file="job.yaml").id
        store.finish_job(made, state="succeeded", report=report_document(report), exit_code=0)
    return made


def test_both_ways_have_the_same_times_and_costs_by_their_formulas(job: str, scavenger: Run) -> None:
    code, out, _ = scavenger(
        "curves", job, "--pricing", "both", "--price", "0.134", *SIZE, "--format", "json"
    )
    document = json.loads(out)
    by_vm, by_size = (document["pricing"][kind]["curve"] for kind in ("vm", "size"))

    assert code == 0
    for one, other in zip(by_vm, by_size, strict=True):
        hours = one["time_s"] / 3600 * one["workers"]
        memory = 2 + 0.05 * one["global_batch_size"] / one["workers"]
        assert one["cost_usd"] == pytest.approx(hours * 0.134)
        assert other["cost_usd"] == pytest.approx(hours * (4 * 0.0219 + 0.003 * memory))
        assert other["time_s"] == one["time_s"]
    for kind in ("vm", "size"):
        assert document["pricing"][kind]["choice"]
        assert any(point["on_front"] for point in document["pricing"][kind]["curve"])
    assert "2 + 0.05 GiB per sample (given)" in document["pricing"]["size"]["curve_info"]["notes"][-1]


def test_memory_is_taken_from_the_jobs_own_measurements(job: str, scavenger: Run) -> None:
    code, out, _ = scavenger("curves", job, "--pricing", "size", "--cpus", "4", "-o", "json")

    assert code == 0
    notes = json.loads(out)["pricing"]["size"]["curve_info"]["notes"]
    assert "0.5859 + 0 GiB per sample (measured)" in notes[-1]  # 600 MiB at every batch
    assert "e2 in gcp/us-central1" in notes[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vm", "size", "both"])
def test_every_form_can_be_had(job: str, scavenger: Run, kind: str, tmp_path: Path) -> None:
    panels = 2 if kind == "both" else 1
    asked = ("curves", job, "--pricing", kind, *(SIZE if kind != "vm" else ()))
    for form in ("svg", "html", "csv"):
        out = tmp_path / f"curve.{form}"
        assert scavenger(*asked, "--out", out)[0] == 0
        text = out.read_text("utf-8")
        if form == "svg":
            ET.fromstring(text)
        elif form == "html":
            assert text.count("<table>") == panels
        else:
            assert len({row["pricing"] for row in csv.DictReader(io.StringIO(text))}) == panels
    code, shown, _ = scavenger(*asked)

    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("cost (US dollars)\n") == panels


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rates", "e2"), "go with --pricing"),
        (("--pricing", "size", "--rates", "cpu=1"), "write cpu="),
        (("--pricing", "size", "--rates", "e9"), "no known rates"),
        (("--pricing", "size", "--memory", "much"), "write the GiB"),
        (("--pricing", "size", "--cpus", "0"), "the number of vCPUs is above 0"),
        (("--pricing", "vm", "--price", "nan"), "above 0"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(
    job: str, scavenger: Run, options: tuple[str, ...], words: str
) -> None:
    code, _, err = scavenger("curves", job, *options)

    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1
