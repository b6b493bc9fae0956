"""The user's own lines in a traceback, and what is folded of it."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from scavenger.frames import (
    FRAMES_MAX,
    OUTPUT_MAX,
    Frame,
    frames_in,
    frames_of,
    located,
    named_from,
    placed,
    told,
)


def failure(folder: Path, code: str) -> BaseException:
    """What a user's file raises."""
    file = folder / "train.py"
    file.write_text(textwrap.dedent(code))
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "train"})
    assert raised.tb is not None
    return raised.value.with_traceback(raised.tb.tb_next)  # without this function's line


def test_lines_of_libraries_between_the_users_are_folded_and_those_before_the_first_are_left_out(
    tmp_path: Path,
) -> None:
    error = failure(
        tmp_path,
        """
        import json
        def hook(pairs):
            raise ValueError("no such key")
        def read():
            return json.loads('{"a": 1}', object_hook=hook)
        read()
        """,
    )
    frames = frames_of(error, str(tmp_path))

    assert [(one.file, one.line, one.function) for one in frames if one.file] == [
        ("train.py", 7, "<module>"),
        ("train.py", 6, "read"),
        ("train.py", 4, "hook"),
    ]
    (folded,) = (one for one in frames if one.folded)
    assert folded.of == "Python"
    assert frames.index(folded) == 2
    assert told(located(frames, tmp_path), str(tmp_path)) == [
        "your code failed here:",
        '  File "train.py", line 7, in <module>',
        "    read()",
        '  File "train.py", line 6, in read',
        "    return json.loads('{\"a\": 1}', object_hook=hook)",
        f"  ... {folded.folded} frames of Python",
        '  File "train.py", line 4, in hook',
        '    raise ValueError("no such key")',
    ]


def test_an_error_within_a_library_ends_with_its_folded_lines(tmp_path: Path) -> None:
    frames = frames_of(failure(tmp_path, "import numpy\nnumpy.linalg.inv([1])\n"), str(tmp_path))

    assert [one.file for one in frames] == ["train.py", ""]
    assert frames[-1].of == "numpy"


def test_of_a_recursion_the_last_lines_are_told(tmp_path: Path) -> None:
    frames = frames_of(failure(tmp_path, "def f(n):\n    f(n + 1)\nf(0)\n"), str(tmp_path))

    assert frames[0].folded > 500
    assert frames[0].of == "your code"
    assert sum(bool(one.file) for one in frames) == FRAMES_MAX


def test_the_cause_has_the_users_lines_where_the_error_itself_has_none(tmp_path: Path) -> None:
    cause = failure(tmp_path, "raise KeyError('a')\n")
    error = RuntimeError("the callback failed")
    error.__cause__ = cause

    assert [one.line for one in frames_of(error, str(tmp_path))] == [1]
    assert frames_of(RuntimeError("nobody's"), str(tmp_path)) == ()


def test_a_file_that_does_not_parse_is_named(tmp_path: Path) -> None:
    (frame,) = frames_of(failure(tmp_path, "x = 1\nif x\n"), str(tmp_path))

    assert (frame.file, frame.line, frame.code) == ("train.py", 2, "if x")


def test_of_what_tensorflow_traced_the_message_names_the_lines(tmp_path: Path) -> None:
    message = textwrap.dedent(f"""
        in user code:

            File "{sys.prefix}/lib/python3.11/site-packages/keras/src/trainer.py", line 9, in one_step  *
                return self.train_step(data)
            File "{tmp_path}/train.py", line 18, in train_step  *
                x, y, z = data

            ValueError: not enough values to unpack
        """)
    frames = frames_of(ValueError(message), str(tmp_path))

    assert frames == (Frame("train.py", 18, "train_step", "x, y, z = data"),)


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_the_last_traceback_in_the_output_of_a_program_is_found(tmp_path: Path, prefix: str) -> None:
    output = [
        "step 1",
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/old.py", line 1, in <module>',
        "ValueError: an older one",
        f"{prefix}Traceback (most recent call last):",
        f'{prefix}  File "{tmp_path}/train.py", line 8, in main',
        f"{prefix}    step()",
        f"{prefix}    ^^^^^^",
        f'{prefix}  File "/usr/lib/python3/dist-packages/torch/nn.py", line 1, in call',
        f"{prefix}    deeper()",
        f"{prefix}RuntimeError: out of paper",
        "the launcher ends",
    ]
    frames, error = frames_in(output, str(tmp_path))

    assert frames == (Frame("train.py", 8, "main", "step()"), Frame(folded=1, of="torch"))
    assert error == "RuntimeError: out of paper"


def test_without_a_traceback_the_last_lines_are_told() -> None:
    frames, error = frames_in([str(number) for number in range(100)] + [""], "/job")

    assert [one.code for one in frames] == [str(number) for number in range(100 - OUTPUT_MAX, 100)]
    assert error == ""
    assert told(frames)[:2] == ["the last lines that your program wrote:", f"  | {100 - OUTPUT_MAX}"]


@pytest.mark.parametrize(
    ("file", "here", "named"),
    [
        ("/home/u/proj/train.py", "/home/u/proj", "train.py"),
        ("/home/u/proj/train.py", "/home/u", "proj/train.py"),
        ("/home/u/proj/train.py", "/home/u/other", "../proj/train.py"),
        ("/srv/train.py", "/home/u/proj", "/srv/train.py"),
        ("train.py", "/home/u", "train.py"),
    ],
)
def test_a_file_is_named_from_where_the_user_is(file: str, here: str, named: str) -> None:
    assert named_from(file, here) == named


def test_a_place_in_a_message_is_named_from_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "train.py").touch()
    monkeypatch.chdir(tmp_path)

    assert placed("train.py:31: fit(x): no", tmp_path / "proj") == "proj/train.py:31: fit(x): no"
    assert placed("the callback A: train.py:2: b", tmp_path / "proj") == "the callback A: proj/train.py:2: b"
    assert placed("train.py: never calls fit", tmp_path / "proj") == "proj/train.py: never calls fit"
    assert placed("other.py:31: no", tmp_path / "proj") == "other.py:31: no"


def test_frames_are_json() -> None:
    import msgspec

    frames = (Frame("/a/train.py", 1, "f", "x"), Frame(folded=3, of="keras"))
    written = json.loads(msgspec.json.encode(frames))

    assert msgspec.convert(written, tuple[Frame, ...]) == frames
