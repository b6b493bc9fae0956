"""Models from files of past measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scavenger.control.search.imported import (
    AXIS_MAX,
    DESIGN_POINTS_MAX,
    Imported,
    ImportOptions,
    parse_sizes,
    read_sources,
)
from scavenger.errors import ConfigurationError
from scavenger.search.curve import build_curve

PRICE = 0.5
STEPS = "\n".join(
    (
        "workload,cluster,workers_per_node,workers,local_batch_size,step_time_s,sync_time_s",
        *(
            f"a,{cluster},{per_node},{workers},{batch},"
            f"{0.02 + 0.001 * batch + 0.005 * (workers - 1)},{0.005 * (workers - 1)}"
            for cluster, per_node in (("small", 1), ("large", 4))
            for workers in (4, 8, 16)
            for batch in (8, 64)
        ),
    )
)
RUNS = "workload,global_batch_size,epochs\n" + "".join(
    f"a,{batch},{10.0 * (1.0 + batch / 512) * factor}\n"
    for batch in (64, 256, 1024)
    for factor in (0.98, 1.02)
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    steps, runs = tmp_path / "steps.csv", tmp_path / "runs.csv"
    steps.write_text(STEPS)
    runs.write_text(RUNS)
    return steps, runs


def test_a_node_costs_its_price_however_many_workers_it_holds(files: tuple[Path, Path]) -> None:
    imported = read_sources(files, ImportOptions(PRICE, dataset_size=50_000))
    curve = build_curve(imported.model, imported.space)

    for point in curve:
        per_node = 4 if point.configuration.vm == "large with 4" else 1
        nodes = -(-point.configuration.workers // per_node)
        assert point.cost_usd == pytest.approx(point.time_s * nodes * PRICE / 3600.0)


def test_time_is_what_the_files_say_where_they_say_it(files: tuple[Path, Path]) -> None:
    imported = read_sources(files, ImportOptions(PRICE, dataset_size=50_000))
    curve = build_curve(imported.model, imported.space)
    point = next(p for p in curve if p.measured and p.configuration.global_batch_size == 256)

    steps = -(-50_000 // 256)
    step_s = 0.02 + 0.001 * point.configuration.local_batch_size + 0.005 * (point.configuration.workers - 1)
    assert point.time_s == pytest.approx(15.0 * steps * step_s, rel=0.05)
    assert not curve.relative_only


def test_samples_to_the_target_need_no_size_of_the_data_set(tmp_path: Path, files: tuple[Path, Path]) -> None:
    samples = tmp_path / "samples.csv"
    samples.write_text(
        "workload,global_batch_size,epochs\n"
        + "".join(f"a,{batch},{500_000 * (1.0 + batch / 512)}\n" for batch in (64, 256, 1024))
    )
    by_samples = read_sources((files[0], samples), ImportOptions(PRICE))
    by_epochs = read_sources(files, ImportOptions(PRICE, dataset_size=50_000))

    times = [build_curve(one.model, one.space).time_s for one in (by_samples, by_epochs)]
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_without_runs_only_ratios_mean_something(files: tuple[Path, Path]) -> None:
    imported = read_sources(files[:1], ImportOptions(PRICE, dataset_size=50_000))

    assert build_curve(imported.model, imported.space).relative_only


def test_what_is_written_is_read_back(tmp_path: Path, files: tuple[Path, Path]) -> None:
    imported = read_sources(files, ImportOptions(PRICE, dataset_size=50_000))
    path = tmp_path / "models.json"
    path.write_text(json.dumps(imported.to_dict(), allow_nan=False))
    back = read_sources((path,), ImportOptions(None))

    assert back.space == imported.space
    one, other = (build_curve(i.model, i.space) for i in (imported, back))
    assert np.array_equal(one.time_s, other.time_s)
    assert np.array_equal(one.cost_interval_usd.high, other.cost_interval_usd.high)
    assert Imported.from_dict(back.to_dict()).to_dict() == imported.to_dict()


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        (ImportOptions(None, dataset_size=50_000), "give --price"),
        (ImportOptions(-1.0, dataset_size=50_000), "a price is 0 or more"),
        (ImportOptions(float("nan"), dataset_size=50_000), "a price is 0 or more"),
        (ImportOptions(PRICE), "give --dataset-size"),
        (ImportOptions(PRICE, dataset_size=0), "at least one sample"),
        (ImportOptions(PRICE, workload="b", dataset_size=1), "no step times of workload 'b'; there are: a"),
    ],
)
def test_what_the_files_do_not_say_must_be_said(
    files: tuple[Path, Path], terms: ImportOptions, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read_sources(files, terms)


def test_several_workloads_ask_for_one(tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    steps.write_text(STEPS + "\nb,small,1,4,8,0.1,0.01\n")

    with pytest.raises(ConfigurationError, match="give --workload, one of a, b"):
        read_sources((steps,), ImportOptions(PRICE, dataset_size=100))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("x.csv", "a,b\n1,2\n", "neither a table of step times"),
        ("x.json", "[]", "not a file of models"),
        ("x.json", "{", "not a file of models"),
        ("x.json", '{"kind": "scavenger-models", "schema_version": 1}', "not a file of models"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(content)

    with pytest.raises(ConfigurationError, match=complaint) as refused:
        read_sources((path,), ImportOptions(PRICE))
    assert "\n" not in str(refused.value)


def test_bad_rows_are_left_out_and_a_workload_without_good_ones_is_refused(tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    steps.write_text(STEPS + "\na,small,1,4,8,nan,0\na,small,1,0,8,0.1,0\na,small,1,4,8,-1,0\n")
    assert read_sources((steps,), ImportOptions(PRICE, dataset_size=100)).space.workers == (4, 8, 16)

    steps.write_text("workload,workers,local_batch_size,step_time_s\na,4,8,0\n")
    with pytest.raises(ConfigurationError, match="no usable step time of a"):
        read_sources((steps,), ImportOptions(PRICE, dataset_size=100))


@pytest.mark.slow
def test_of_very_many_measured_places_even_parts_are_fitted_to_and_predicted(tmp_path: Path) -> None:
    steps, runs = tmp_path / "steps.csv", tmp_path / "runs.csv"
    places = [(k, b) for k in range(1, 41) for b in range(1, 41)]
    steps.write_text(
        "workload,workers,local_batch_size,step_time_s\n"
        + "".join(f"a,{k},{b},{0.02 + 0.001 * b + 0.002 * k}\n" for k, b in places)
    )
    runs.write_text(
        "workload,global_batch_size,epochs\n"
        + "".join(f"a,{batch},{10.0 * (1.0 + batch / 512)}\n" for batch in range(40, 1600))
    )
    imported = read_sources([steps, runs], ImportOptions(PRICE, dataset_size=50_000))

    assert len(imported.model.vms[0].parallel.measured) == DESIGN_POINTS_MAX
    assert len(imported.space.global_batch_sizes) <= AXIS_MAX
    assert (imported.space.global_batch_sizes[0], imported.space.global_batch_sizes[-1]) == (40, 1599)
    assert sum("fitted to" in note for note in imported.model.notes) == 2


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("offers", 0, "price_usd_per_hour"), -5.0),
        (("offers", 0, "price_usd_per_hour"), float("nan")),
        (("offers", 0, "cpus"), 0),
        (("workers",), [10**30]),
        (("global_batch_sizes",), list(range(16, 10_000))),
    ],
)
def test_a_file_of_models_that_was_tampered_with_is_refused(
    tmp_path: Path, files: tuple[Path, Path], where: tuple[str | int, ...], value: object
) -> None:
    document = read_sources(files, ImportOptions(PRICE, dataset_size=50_000)).to_dict()
    place: Any = document["space"]
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    path = tmp_path / "models.json"
    path.write_text(json.dumps(document))

    with pytest.raises(ConfigurationError, match="not a file of models"):
        read_sources([path], ImportOptions(None))


def test_sizes_that_no_row_has_are_predicted(tmp_path: Path, files: tuple[Path, Path]) -> None:
    options = ImportOptions(PRICE, dataset_size=50_000, workers=(3, 32), global_batch_sizes=(100, 4096))
    imported = read_sources(files, options)
    stored = tmp_path / "models.json"
    stored.write_text(json.dumps(read_sources(files, ImportOptions(PRICE, dataset_size=50_000)).to_dict()))

    for one in (imported, read_sources([stored], options)):
        curve = build_curve(one.model, one.space)
        assert {(p.configuration.workers, p.configuration.global_batch_size) for p in curve} == {
            (3, 100),
            (3, 4096),
            (32, 100),
            (32, 4096),
        }
        assert not any(point.measured for point in curve)
        # The files go from 4 to 16 workers: 3 and 32 lie outside.
        assert all(point.extrapolated for point in curve)
    with pytest.raises(ConfigurationError, match="gives every worker a sample"):
        read_sources(files, replace(options, workers=(8192,)))


def test_sizes_are_numbers_and_ranges() -> None:
    assert parse_sizes("4, 1..3,2") == (1, 2, 3, 4)
    many = parse_sizes("1..100000")
    assert (many[0], many[-1]) == (1, 100_000)
    assert len(many) <= AXIS_MAX
    for text in ("", "0", "3..1", "a", "1...3", "-4", "1.5", "1..2..3", "1e400"):
        with pytest.raises(ConfigurationError, match="positive whole numbers"):
            parse_sizes(text)


def test_rows_with_fewer_samples_than_workers_are_left_out_and_said(tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    rows = "a,small,1,64,0.25,0.1,0.0\na,small,1,4,8,-1,0.0\n"
    steps.write_text(f"{STEPS}\n{rows}")
    imported = read_sources([steps], ImportOptions(PRICE, dataset_size=50_000))

    assert any("1 with fewer samples than workers" in note for note in imported.model.notes)
    assert any("1 without plausible positive numbers" in note for note in imported.model.notes)
    steps.write_text(f"{STEPS.splitlines()[0]}\n{rows}")
    with pytest.raises(ConfigurationError, match=r"no usable step time of a; .*fewer samples than workers"):
        read_sources([steps], ImportOptions(PRICE, dataset_size=50_000))
