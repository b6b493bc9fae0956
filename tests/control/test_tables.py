from __future__ import annotations

import math
from pathlib import Path

import pytest

from scavenger.control.search.tables import number, read_curves, read_placements, read_runs, read_table, whole
from scavenger.errors import ConfigurationError


def table(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_come_by_column_whatever_their_order_and_what_else_is_there(tmp_path: Path) -> None:
    path = table(tmp_path, "\ufeffb, a,other\r\n2,1,x\r\n\r\n4,3\r\n")

    assert read_table(path, ["a", "b"], optional=["c"]) == [
        {"a": "1", "b": "2", "c": ""},
        {"a": "3", "b": "4", "c": ""},
    ]


def test_short_rows_have_empty_cells(tmp_path: Path) -> None:
    assert read_table(table(tmp_path, "a,b\n1\n"), ["a", "b"]) == [{"a": "1", "b": ""}]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "empty; the first line must name the columns"),
        ("a,epochs\n", "no row below"),
        ("a,epoch\n1,2\n", "did you mean 'epoch'"),
        ("a,epochs,epochs\n1,2,3\n", "'epochs' occurs twice"),
        (b"a,epochs\n\xff\xfe\n", "not a text in UTF-8"),
        ('a,epochs\n"1,2\n' + "x" * 200_000, "not CSV"),
    ],
)
def test_files_that_are_no_table_are_refused_with_the_place(
    tmp_path: Path, content: str | bytes, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        read_table(table(tmp_path, content), ["a", "epochs"])

    assert "table.csv" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.csv: No such file"):
        read_table(tmp_path / "none.csv", ["a"])


def test_cells_that_are_no_numbers_are_told_as_such() -> None:
    assert number("1e3") == 1000.0
    assert math.isnan(number("fast"))
    assert math.isnan(number(""))
    assert [whole(cell) for cell in ("64", "64.0", "6.5", "", "inf", "1e300")] == [64, 64, 0, 0, 0, 0]


def test_runs_and_placements_are_read_with_what_is_not_there_filled_in(tmp_path: Path) -> None:
    runs = read_runs(table(tmp_path, "workload,run,global_batch_size,epochs\na,0,64,12.5\na,1,64,oops\n"))
    assert (runs[0].source, runs[0].global_batch_size, runs[0].epochs) == ("", 64.0, 12.5)
    assert math.isnan(runs[1].epochs)

    text = "workload,workers,local_batch_size,step_time_s,profiled\na,4,32,0.25,1\n"
    (placement,) = read_placements(table(tmp_path, text))
    assert (placement.global_batch_size, placement.workers_per_node, placement.marked) == (128.0, 1, True)
    assert math.isnan(placement.sync_time_s)

    text = "workload,workers,global_batch_size,step_time_s\na,4,128,0.25\na,0,128,0.25\n"
    placements = read_placements(table(tmp_path, text))
    assert placements[0].local_batch_size == 32.0
    assert (placements[1].workers, math.isnan(placements[1].local_batch_size)) == (0, True)


def test_step_times_without_any_batch_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no column 'local_batch_size'"):
        read_placements(table(tmp_path, "workload,workers,step_time_s\na,4,0.25\n"))


def test_learning_curves_are_sorted_and_their_odd_rows_counted(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text(
        "workload,run,step,metric,mode,value,learning_rate\n"
        "a,1,20,loss,min,2,0.1\na,1,10,loss,min,3,0.1\na,1,30,loss,min,nan,0.1\na,1,0,loss,min,4,0.1\n"
        "a,2,10,loss,min,3,\na,1,10,accuracy,max,0.5,0.1\n"
    )
    first, second, other = read_curves(path)

    assert (first.steps.tolist(), first.values.tolist(), first.dropped) == ([10.0, 20.0], [3.0, 2.0], 2)
    assert first.learning_rates is not None
    assert second.learning_rates is None
    assert (other.mode, other.values.tolist()) == ("max", [0.5])


@pytest.mark.parametrize("modes", ["up,min", "min,max"])
def test_a_curve_has_one_mode_that_is_min_or_max(tmp_path: Path, modes: str) -> None:
    path = tmp_path / "curves.csv"
    first, second = modes.split(",")
    path.write_text(f"workload,run,step,metric,mode,value\na,1,1,loss,{first},2\na,1,2,loss,{second},2\n")

    with pytest.raises(ConfigurationError, match="give min or max"):
        read_curves(path)
