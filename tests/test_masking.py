"""Secrets do not appear in texts for users, and other words stay."""

from __future__ import annotations

import io
import json
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger import logs, masking
from scavenger.errors import JobFileError, TrainingCodeError
from scavenger.masking import MASK, StreamMask, keep_secret, mask, mask_values


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("denied for AKIAIOSFODNN7EXAMPLE today", "denied for *** today"),
        ("key AIza" + "b" * 35 + "!", "key ***!"),
        ("push with ghp_" + "a1" * 18, "push with ***"),
        ("Incorrect API key provided: sk-proj-abcdefghijklmnop1234", "Incorrect API key provided: ***"),
        ("at postgresql://me:hunter2@db:5432/x", "at postgresql://***@db:5432/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nend", "***\nend"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", "***"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = ***"),
        ('{"password": "hunter2"}', '{"password": "***"}'),
        ("GET /x?token=abcdef123456&y=1", "GET /x?token=***&y=1"),
        ("Authorization: Bearer abcdef.123456", "Authorization: Bearer ***"),
    ],
)
def test_what_has_the_shape_of_a_secret_is_masked(text: str, shown: str) -> None:
    assert mask(text, {}) == shown


def test_values_of_the_environment_are_masked_if_their_name_says_that_they_are_secret() -> None:
    environ = {
        "SERVICE_API_KEY": "plainword1",
        "DB_PASSWORD": "plainword1-and-more",
        "SMTP_PASS": "correcthorse",
        "MYSQL_PWD": "batterystaple",
        "PWD": "/home/me/project",
        "COMPASS_PASSES": "three of them",
        "TOKENIZERS_PARALLELISM": "false",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "HOME_TOWN": "Klagenfurt",
    }

    text = "plainword1 plainword1-and-more false /home/me/key.json Klagenfurt"
    more = "correcthorse batterystaple /home/me/project three of them"

    assert mask(text, environ) == "*** *** false /home/me/key.json Klagenfurt"
    assert mask(more, environ) == "*** *** /home/me/project three of them"


@pytest.mark.parametrize(
    "text",
    [
        "train.py:15: KeyError: 'val_loss'",
        "Unexpected token: identifier_name at line 3",
        "tokenizer=bert, key=layer_normalization_12",
        "checkpoint s3://bucket/folder@2/step-100 of gs://other/x",
        "task-scheduler-with-a-long-name and risk-adjusted-returns-of-much",
        "10:23:45 http://127.0.0.1:8080/path",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert mask(text, {}) == text


def test_every_error_and_every_log_line_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "not-for-others")
    assert str(TrainingCodeError("train.py:3: not-for-others")) == "train.py:3: ***"
    assert str(JobFileError("not-for-others", path="job.yaml", line=2)) == "job.yaml:2: ***"

    for form in ("text", "json"):
        stream = io.StringIO()
        logs.set_up("w0", logs.LogChoice(format=form), stream=stream)
        logger = logging.getLogger("scavenger.masked")
        try:
            raise RuntimeError("not-for-others")
        except RuntimeError:
            logger.exception("failed with %s", "not-for-others")
        logging.getLogger("scavenger").handlers = []
        assert "not-for-others" not in stream.getvalue()
        assert "***" in stream.getvalue()


def test_documents_have_no_secrets_by_shape_or_by_name() -> None:
    job = {
        "params": {
            "hf_token": "whatever",
            "db": "postgresql://ann:hunter2@db/x",
            "tokenizer": "bert-base-uncased",
            "max_tokens": 4096,
            "api_key": "",
            "nested": [{"db-password": "x", "note": "hf_abcdefghijklmnopqrstuvwxyz"}, 3, None],
        },
        "name": "digits",
    }

    shown = mask_values(job)

    assert shown["params"] == {
        "hf_token": MASK,
        "db": f"postgresql://{MASK}@db/x",
        "tokenizer": "bert-base-uncased",
        "max_tokens": 4096,
        "api_key": MASK,
        "nested": [{"db-password": MASK, "note": MASK}, 3, None],
    }
    assert shown["name"] == "digits"
    plain = {"name": "digits", "values": [1.5, "x"]}
    assert mask_values(plain) is plain


SECRETS = ("tell-nobody", "tell-nobody-else", "two\nlines of one", "dy-tell", "quo'te \"d")


@given(
    parts=st.lists(st.one_of(st.sampled_from(SECRETS), st.text(st.sampled_from("tel-nobdy\n "), max_size=8))),
    cuts=st.lists(st.integers(0, 200)),
)
def test_a_stream_is_masked_as_a_whole_text_is_whatever_pieces_it_comes_in(
    parts: list[str], cuts: list[int]
) -> None:
    data = "".join(parts).encode()
    whole, pieces = StreamMask(SECRETS), StreamMask(SECRETS)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    shown = b"".join(pieces.feed(data[at:end]) for at, end in pairwise(places)) + pieces.end()

    assert shown == whole.feed(data) + whole.end()
    for secret in SECRETS:
        assert secret.encode() not in shown


def test_what_cannot_begin_a_secret_is_shown_at_once() -> None:
    stream = StreamMask(["tell-nobody"])
    assert stream.feed(b"epoch 1: tel") == b"epoch 1: "
    assert stream.feed(b"l them") == b"tell them"
    assert StreamMask([]).feed(b"all") == b"all"


def test_a_secret_that_a_process_was_told_of_is_masked_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_kept", set())
    keep_secret(['a"b/c', "first line of a key\nsecond line"])
    for text in ('a"b/c', json.dumps('a"b/c'), "a%22b%2Fc", "> first line of a key", "second line"):
        assert MASK in mask(text)
    assert "b/c" not in mask('x a"b/c y')
