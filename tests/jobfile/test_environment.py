"""The forms of `env` in a job file: what is taken as it is written, what names variables, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.control.job_file.load import parse_job
from scavenger.domain.environment import literal, named, plain, references
from scavenger.domain.job import JobSpec
from scavenger.errors import JobFileError

JOB = "version: 1\nname: tiny\ngoal: {max_epochs: 2}\n"
TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


def read(env: str, *, run: str = "") -> JobSpec:
    return parse_job(f"{JOB}{run or 'train: train:job'}\nenv: {env}\n", path="job.yaml")


def test_names_with_values_and_names_alone_are_the_same_when_read_again() -> None:
    mapped, listed = read("{A: 2, B: '1.10', C: '${HOME}/x$$', D: ''}"), read("[HOME, A]")

    assert mapped.env == {"A": "2", "B": "1.10", "C": "${HOME}/x$$", "D": ""}
    assert listed.env == {"HOME": "${HOME}", "A": "${A}"}
    assert named(mapped.env) == ("HOME",)
    assert references("${A}-${B}$${C}") == ("A", "B")
    for job in (mapped, listed):
        assert JobSpec.model_validate(job.written()) == job


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("{A: 1.10}", "env.A must be text or a whole number, not 1.1; put it in quotes"),
        ("{A: true}", "env.A must be text or a whole number, not true; put it in quotes"),
        ("{A: [1]}", "env.A must be text or a whole number, not a list"),
        (
            "{A: $HOME}",
            "env.A must have dollars only as ${NAME}, or as $$ for the dollar itself, not '$HOME'",
        ),
        ("{a b: 1}", "env.a b must be a variable's name"),
        (
            "[A, 'B=1']",
            "env[1] must be a variable's name, of letters, digits and _, as DATA_VERSION, not 'B=1'",
        ),
        ("A", "env must be names with values, such as {DATA_VERSION: 2}, or a list of names, not 'A'"),
        ("{PYTHONPATH: x}", "env.PYTHONPATH is set by Scavenger for each process"),
        ("{SCAVENGER_STORE: x}", "env.SCAVENGER_STORE is set by Scavenger"),
        ("[CUDA_VISIBLE_DEVICES]", "env[0] is set by Scavenger"),
        ("{KERAS_BACKEND: jax}", "env.KERAS_BACKEND is tensorflow for all training code but commands (run)"),
    ],
)
def test_what_is_refused_says_what_to_write(env: str, words: str) -> None:
    with pytest.raises(JobFileError, match=re.escape(words)):
        read(env)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            "secrets: HF_TOKEN",
            "secrets must be a list of names, as [HF_TOKEN]; values stay where they are, not a text",
        ),
        ("secrets: {HF_TOKEN: tell-nobody}", "secrets must be a list of names"),
        ("secrets: [CUDA_VISIBLE_DEVICES]", "secrets[0] is set by Scavenger"),
        ("secrets: [A]\nenv: {A: 1}", "env.A is a secret, too: keep it in one of env and secrets"),
        ("secrets: [KERAS_BACKEND]", "secrets has KERAS_BACKEND, which is no secret"),
    ],
)
def test_secrets_are_names(keys: str, words: str) -> None:
    with pytest.raises(JobFileError, match=re.escape(words)) as caught:
        parse_job(f"{JOB}train: train:job\n{keys}\n", path="job.yaml")
    assert "tell-nobody" not in str(caught.value)
    job = parse_job(f"{JOB}train: train:job\nsecrets: [HF_TOKEN, A, A]\n", path="job.yaml")
    assert job.secrets == ("HF_TOKEN", "A")
    assert JobSpec.model_validate(job.written()) == job


def test_a_command_chooses_its_backend() -> None:
    assert read("{KERAS_BACKEND: jax}", run="run: python train.py").env == {"KERAS_BACKEND": "jax"}


@given(before=TEXT, value=TEXT, after=TEXT)
def test_a_settled_value_is_what_the_process_has_and_names_nothing(
    before: str, value: str, after: str
) -> None:
    written: Any = f"{before.replace('$', '$$')}${{NAME}}{after.replace('$', '$$')}"
    settled = literal(written, {"NAME": value})

    assert plain({"A": settled}) == {"A": before + value + after}
    assert references(settled) == ()
    assert literal(settled, {}) == settled
