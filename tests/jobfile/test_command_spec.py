"""The `run:` of a job file: its forms, its placeholders, its log patterns, and what is refused with the place."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.control.job_file.load import parse_job
from scavenger.domain.command import PLACEHOLDERS, fill
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, JobFileError
from scavenger.pipelines.job import Job

_BASE = {"version": 1, "name": "x", "goal": {"max_epochs": 3}}
_TEXT = st.characters(blacklist_categories=("Cs", "Cc"))


def _job(**sections: Any) -> JobSpec:
    return parse_job(json.dumps({**_BASE, **sections}), path="job.yaml")


@given(
    words=st.lists(st.text(_TEXT, min_size=1), min_size=1, max_size=5),
    names=st.lists(st.sampled_from(sorted(PLACEHOLDERS)), max_size=4),
    value=st.text(_TEXT),
)
def test_each_word_stays_one_argument_whatever_a_value_holds(
    words: list[str], names: list[str], value: str
) -> None:
    """Braces of the command itself are doubled; no value, with blanks or quotes, makes two arguments."""
    quoted = [shlex.quote(word.replace("{", "{{").replace("}", "}}")) for word in words]
    command = " ".join([*quoted, *(f"--{name}={{{name}}}" for name in names)])
    expected = (*words, *(f"--{name}={value}" for name in names))

    assert fill(command, dict.fromkeys(PLACEHOLDERS, value)) == expected


def test_a_command_is_written_as_text_or_with_its_keys_and_is_the_same_when_read_again() -> None:
    text, pattern = "python train.py --batch {local_batch_size} --lr {rate}", r"step (?P<step>\d+)"
    keys = {"command": text, "samples": 5, "log": pattern, "grace": "10s"}
    short, long = _job(run=text, params={"rate": 0.1}), _job(run=keys, params={"rate": 1})

    assert short.run is not None
    assert long.run is not None
    assert (short.run.command, short.run.grace) == (text, 30.0)
    assert (long.run.samples, long.run.grace, long.run.log) == (5, 10.0, (pattern,))
    for job in (short, long):
        assert JobSpec.model_validate(job.written()) == job


def test_a_command_is_a_job_in_python_too() -> None:
    job = Job(run="python train.py {epochs}", goal=3, name="x", workers="1..2")

    assert job.spec.run == _job(run="python train.py {epochs}").run
    with pytest.raises(ConfigurationError, match="either train"):
        Job(goal=3)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"run": "a {workes}"}, "run has the unknown placeholder {workes}; did you mean 'workers'?"),
        ({"run": "a {x}"}, "unknown placeholder {x}; known are local_batch_size"),
        ({"run": "a {workers"}, "run.command cannot be read"),
        ({"run": "a {workers!r}"}, "{workers} is no name"),
        ({"run": "a 'b"}, "run.command cannot be read: No closing quotation"),
        ({"run": " "}, "run.command must be a program"),
        ({"run": "a {rank}", "params": {"rank": 1}}, "params.rank is a placeholder of every command"),
        ({"run": "a", "train": "train:job"}, "run is for jobs without train"),
        ({}, "train is missing; add train: train:job, or run:"),
        ({"run": {"command": "a", "log": "("}}, "run.log[0] is no regular expression"),
        ({"run": {"command": "a", "log": "loss"}}, "run.log[0] must have a group"),
        (
            {"run": {"command": "a", "log": r"(?P<step>{numbr})"}},
            "run.log[0] has the unknown shorthand {numbr}",
        ),
        ({"run": {"command": "a", "log": r"(?P<epoch>\d+)"}}, "run.log must have a pattern with the group"),
        ({"run": {"command": "a", "log": r"(?P<step>\d+)"}}, "run.samples is missing"),
        ({"run": {"comand": "a"}}, "unknown key 'comand' in run; did you mean 'command'?"),
    ],
)
def test_what_is_wrong_with_a_command_is_one_line(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(JobFileError) as caught:
        _job(**sections)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
