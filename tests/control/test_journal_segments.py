"""A journal whose file is full continues in a new one, and is read as one, whatever happens in between."""

from __future__ import annotations

import errno
import gzip
from pathlib import Path
from typing import Any

import pytest
from audits import AUDIT_FILE, verify_audit
from hypothesis import given
from hypothesis import strategies as st

from scavenger.control.training import journal as journals
from scavenger.control.training.journal import Journal, read_history
from scavenger.control.training.segments import compress_segments, lines_of

SMALL = 1500
SAMPLES, BATCH = 100, 10


def record_of(step: int) -> dict[str, Any]:
    """One of ten steps of an epoch."""
    epoch, place = divmod(step - 1, SAMPLES // BATCH)
    pieces = [["w0", place * BATCH, place * BATCH + 5], ["w1", place * BATCH + 5, (place + 1) * BATCH]]
    fields = {"global_batch_size": BATCH, "samples": BATCH, "at_s": float(step)}
    return {"step": step, "view": 1, "epoch": epoch, "pieces": pieces, **fields}


def write(path: Path, begin: int, end: int, *, resumed_step: int | None = None) -> None:
    journal = Journal(path, resumed_step=resumed_step, job_id="j")
    for step in range(begin, end):
        journal.add("step", record_of(step))
    journal.close()
    assert not journal.problem


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SEGMENT_BYTES", SMALL)


@pytest.mark.usefixtures("small")
def test_a_long_journal_is_a_row_of_compressed_files_and_one_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / AUDIT_FILE
    write(path, 1, 101)

    names = sorted(file.name for file in tmp_path.iterdir())
    segments = [name for name in names if name != AUDIT_FILE]
    assert len(segments) > 5
    assert segments == sorted(f"{AUDIT_FILE}.{number + 1}.gz" for number in range(len(segments)))
    assert path.stat().st_size < SMALL
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    assert verify_audit(path, SAMPLES) == []


@pytest.mark.usefixtures("small")
def test_a_resumed_job_undoes_steps_of_earlier_files_too(tmp_path: Path) -> None:
    path = tmp_path / AUDIT_FILE
    write(path, 1, 61)
    write(path, 31, 101, resumed_step=30)

    assert verify_audit(path, SAMPLES) == []
    history = read_history(path, 100)
    assert (dict(history.samples_by_batch), history.elapsed_s) == ({BATCH: 1000}, 100.0)
    assert dict(read_history(path, 45).samples_by_batch) == {BATCH: 450}


@pytest.mark.slow
@given(bytes_max=st.integers(200, 5000), resumed=st.integers(0, 40))
def test_where_files_end_makes_no_difference(
    tmp_path_factory: pytest.TempPathFactory, bytes_max: int, resumed: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    found = []
    for number, limit in enumerate((bytes_max, 1 << 30)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journals, "SEGMENT_BYTES", limit)
            write(folder / f"{number}", 1, 41)
            write(folder / f"{number}", resumed + 1, 51, resumed_step=resumed)
        found.append(list(lines_of(folder / f"{number}")))

    assert found[0] == found[1]


def unpacked(folder: Path) -> tuple[Path, Path]:
    """The last segment, and beside it what it was before it was compressed."""
    last = max(folder.glob("*.gz"), key=lambda file: int(file.name.split(".")[2]))
    plain = last.with_suffix("")
    plain.write_bytes(gzip.decompress(last.read_bytes()))
    return last, plain


@pytest.mark.usefixtures("small")
def test_a_kill_between_two_files_or_while_one_is_compressed_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / AUDIT_FILE
    write(path, 1, 51)
    expected = list(lines_of(path))
    # killed while the last segment was compressed, and after the file was renamed
    last, plain = unpacked(tmp_path)
    last.write_bytes(last.read_bytes()[:50])
    plain.with_name(plain.name + ".partial").write_bytes(b"cut off")
    number = int(plain.name.split(".")[2])
    path.rename(tmp_path / f"{AUDIT_FILE}.{number + 1}")

    assert list(lines_of(path)) == expected
    write(path, 51, 101, resumed_step=50)
    compress_segments(path)
    assert verify_audit(path, SAMPLES) == []
    assert [file.name for file in tmp_path.iterdir() if file.suffix not in (".gz", ".jsonl")] == []


@pytest.mark.usefixtures("small")
def test_a_segment_that_is_compressed_while_the_journal_is_read_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / AUDIT_FILE
    write(path, 1, 51)
    expected = list(lines_of(path))
    packed, _ = unpacked(tmp_path)
    packed.unlink()

    reading = lines_of(path)
    found = [next(reading)]  # which files there are is known now
    compress_segments(path)
    assert [*found, *reading] == expected


@pytest.mark.usefixtures("small")
def test_without_room_for_another_file_the_full_one_goes_on_growing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / AUDIT_FILE
    journal = Journal(path, job_id="j")

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        for step in range(1, 51):
            journal.add("step", record_of(step))
        assert "No space left" in journal.problem
    for step in range(51, 101):
        journal.add("step", record_of(step))
    journal.close()

    assert not journal.problem
    assert verify_audit(path, SAMPLES) == []


def test_a_journal_that_is_not_there_is_an_error_of_the_audit_but_not_of_a_resumed_job(
    tmp_path: Path,
) -> None:
    with pytest.raises(OSError, match="No such file"):
        verify_audit(tmp_path / AUDIT_FILE, SAMPLES)
    assert read_history(tmp_path / AUDIT_FILE, 5).samples_by_batch == ()
