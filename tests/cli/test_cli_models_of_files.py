"""`models backtest`, `models fit` and `curves --from`, on files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scavenger_cli.main import main

from scavenger.domain.fingerprint import Fingerprint
from scavenger.models.backtest import GroupResult
from scavenger.store import Store

STEPS = "workload,cluster,workers,local_batch_size,step_time_s,profiled\n" + "".join(
    f"a,t4,{workers},{batch},{0.02 + 0.001 * batch + 0.002 * (workers - 1)},{int(workers != 4 and batch != 32)}\n"
    for workers in (1, 2, 4, 8)
    for batch in (8, 32, 64)
)
RUNS = "source,workload,global_batch_size,run,epochs\n" + "".join(
    f"{source},{workload},{batch},0,{10.0 * (1.0 + batch / critical)}\n"
    for source, workload, critical in (("s", "a", 512), ("s", "b", 64))
    for batch in (16, 64, 256, 1024)
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("SCAVENGER_STORE", f"sqlite:///{tmp_path / 'store.db'}")
    steps, runs = tmp_path / "steps.csv", tmp_path / "runs.csv"
    steps.write_text(STEPS)
    runs.write_text(RUNS)
    return str(steps), str(runs)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(words) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_back_test_says_for_each_workload_how_far_off_it_was(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    steps, runs = files
    found = answer(capsys, "models", "backtest", "--convergence", runs, "-o", "json")

    assert found["schema_version"] == 1
    assert [(row["source"], row["workload"]) for row in found["workloads"]] == [("s", "a"), ("s", "b")]
    for row in found["workloads"]:
        assert row["profiled"] == ["batch 16", "batch 1024"]
        assert 0.0 <= row["median_ape"] <= row["max_ape"]
        assert 0.0 <= row["coverage90"] <= 1.0
    assert found["median_ape"] < 20.0

    found = answer(capsys, "models", "backtest", "--step-times", steps, "-o", "json")
    (row,) = found["workloads"]
    assert (row["cluster"], row["workers_per_node"], row["workload"]) == ("t4", 1, "a")
    assert len(row["profiled"]) == 6
    assert row["mean_ape"] < 5.0
    assert found["worst_ape"] == row["mean_ape"]
    assert found["search"]["workloads"][0]["profiled"] != row["profiled"]
    assert 0.0 < found["search"]["mean_ape"] < 10.0
    assert 0.0 < found["search"]["half_width90"] < 1.0

    other = answer(capsys, "models", "backtest", "--step-times", steps, "--points", "search", "-o", "json")
    assert other["workloads"] == found["search"]["workloads"]
    assert other["search"] is None


def test_more_points_never_hide_what_is_left_to_predict(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, runs = files
    found = answer(capsys, "models", "backtest", "--convergence", runs, "--points", "4", "-o", "json")

    assert found["workloads"] == []
    assert (found["median_ape"], found["coverage90"]) == (None, None)
    assert all("4 to fit to and one to predict" in row["reason"] for row in found["skipped"])


CURVES = "source,workload,run,step,metric,mode,value\n" + "".join(
    f"s,{workload},{run},{step},loss,min,{1 + (1 + run / 10) * step**-power}\n"
    for workload, power in (("a", 0.5), ("a long name of a workload", 1.0))
    for run in (0, 1)
    for step in range(1, 41)
)


def test_learning_curves_are_forecast_from_their_beginnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = tmp_path / "curves.csv"
    curves.write_text(CURVES)
    words = ["models", "backtest", "--curves", str(curves)]
    found = answer(capsys, *words, "--seen", "0.5,0.75", "-o", "json")

    assert [(row["workload"], row["seen"]) for row in found["workloads"][:2]] == [("a", 0.5), ("a", 0.75)]
    assert len(found["workloads"]) == 4
    for row in found["workloads"]:
        assert row["runs"] == 2
        assert row["median_ape"] <= row["max_ape"] < 50.0
        assert 0.0 <= row["coverage90"] <= 1.0
        assert row["final_ape"] < 5.0
        assert {"last value", "power law", "log-log line", "wrong hint"} < {
            m["method"] for m in row["methods"]
        }
    assert [row["runs"] for row in found["overall"]] == [4, 4]

    assert main(words) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "learning curve" in out


def test_a_back_test_fits_a_screen(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "backtest", "--step-times", files[0], "--convergence", files[1]]) == 0

    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "t4, 1 worker a node" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "give --step-times FILE or --convergence FILE"),
        (["--convergence", "RUNS", "--points", "marked"], "is for step times"),
        (["--convergence", "RUNS", "--points", "search"], "is for step times"),
        (["--convergence", "RUNS", "--points", "1"], "a number from 2 on"),
        (["--convergence", "RUNS", "--points", "some"], "give search, extremes, marked"),
        (["--curves", "RUNS"], "there is no column 'step'"),
        (["--curves", "RUNS", "--points", "3"], "--curves goes without"),
        (["--seen", "0.5"], "give --curves FILE"),
        (["--curves", "RUNS", "--seen", "half"], "numbers between 0 and 1"),
        (["--curves", "RUNS", "--seen", "0.5,1"], "numbers between 0 and 1"),
        (["--convergence", "STEPS"], "there is no column 'global_batch_size'"),
    ],
)
def test_what_cannot_be_tested_is_the_users_error(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    said = [{"STEPS": files[0], "RUNS": files[1]}.get(word, word) for word in words]

    assert main(["models", "backtest", *said]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.splitlines()) == 1


def test_fitted_models_are_drawn_and_chosen_from(
    tmp_path: Path, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    steps, runs = files
    out = str(tmp_path / "models.json")
    fit = ["models", "fit", "--step-times", steps, "--convergence", runs, "--price", "50"]
    assert main([*fit, "--dataset-size", "10000", "--out", out]) == 0
    shown = capsys.readouterr()
    assert "step time, t4" in shown.out
    assert "draw it: scavenger curves --from" in shown.err

    by_file = answer(capsys, "curves", "--from", out, "-o", "json")
    tables = ["--from", runs, "--from", steps, "--price", "50", "--dataset-size", "10000"]
    by_tables = answer(capsys, "curves", *tables, "-o", "json")
    assert by_file["curve"] == by_tables["curve"]
    assert by_file["choice"]["objective"] == "knee"

    rows = by_file["curve"]

    def chosen(*words: str) -> dict[str, Any]:
        choice = answer(capsys, "curves", "--from", out, "--objective", "time", *words, "-o", "json")[
            "choice"
        ]
        place = ("vm", "workers", "global_batch_size")
        return next(row for row in rows if all(row[name] == choice[name] for name in place))

    assert chosen()["time_s"] == min(row["time_s"] for row in rows)
    limit = math.ceil(100 * min(row["cost_usd"] for row in rows)) / 100
    assert chosen("--budget", f"{limit:.2f}")["cost_usd"] <= limit


def test_limits_of_a_curve_are_for_past_measurements_only(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curves", "--objective", "time"]) != 0
    assert "go with --from" in capsys.readouterr().err


def test_models_for_a_job_that_is_not_there_are_refused(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["models", "fit", "--step-times", files[0], "--price", "1", "--dataset-size", "100"]
    assert main([*fit, "--for", "nobody"]) != 0
    assert "nobody" in capsys.readouterr().err


def test_epochs_of_another_data_set_are_not_stored_for_a_job(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = Fingerprint("a" * 64, 1000, "Adam:1", 50_000, 64, "loss<=1", "t4", "machine")
    with Store.open(None) as store:
        record = store.create_job("mine", spec={}, job_file="job.yaml")
        store.update_job(record.id, fingerprint=job)
    fit = ["models", "fit", "--step-times", files[0], "--price", "1", "--for", "mine", "--dataset-size"]

    assert main([*fit, "100"]) == 2
    assert "give --dataset-size 50000" in capsys.readouterr().err
    assert main([*fit, "50000"]) == 0
    assert "stored: model" in capsys.readouterr().err


def test_a_result_knows_its_errors() -> None:
    one = GroupResult("s", None, "a", "law", ("batch 1",), (), 0)
    assert one.errors().size == one.covered().size == 0


def test_a_curve_of_files_covers_the_sizes_that_are_asked_for(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("curves", "--from", files[0], "--price", "0.5", "--dataset-size", "50000", "-o", "json")
    found = answer(capsys, *words, "--workers", "1..16", "--batch-size", "48,100")

    points = found["curve"]
    assert {point["workers"] for point in points} == set(range(1, 17))
    assert {point["global_batch_size"] for point in points} == {48, 100}
    assert main(("curves", "--workers", "1..16")) == 2
    assert "go with --from" in capsys.readouterr().err
