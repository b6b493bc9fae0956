"""Limits of the shell, such as `ulimit -v`, are named as the cause of what they cause, and only then."""

from __future__ import annotations

import errno
import resource

import pytest
import zmq

from scavenger.errors import TrainingCodeError, TransientError
from scavenger.train import failure
from scavenger.train.engines.base import Exit
from scavenger.train.failure import describe_failure, describe_limit, error_of

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("error", "limit", "option"),
    [
        (MemoryError(), resource.RLIMIT_AS, "ulimit -v"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), resource.RLIMIT_AS, "ulimit -v"),
        (OSError(errno.EFBIG, "File too large"), resource.RLIMIT_FSIZE, "ulimit -f"),
        (OSError(errno.EMFILE, "Too many open files"), resource.RLIMIT_NOFILE, "ulimit -n"),
        (zmq.ZMQError(errno.EMFILE), resource.RLIMIT_NOFILE, "ulimit -n"),
    ],
)
def test_a_limit_is_named_where_it_is_in_force(error: Exception, limit: int, option: str) -> None:
    text = describe_limit(
        error, lambda of: (2_000_000_000, UNLIMITED) if of == limit else (UNLIMITED, UNLIMITED)
    )

    assert option in text
    assert ("2 GB" in text) == (limit != resource.RLIMIT_NOFILE)
    assert describe_limit(error, lambda _: (UNLIMITED, UNLIMITED)) == ""


def test_other_errors_are_not_due_to_a_limit() -> None:
    for error in (ValueError("no"), OSError(errno.ENOSPC, "full"), None):
        assert describe_limit(error, lambda _: (1, 1)) == ""


def test_a_limit_is_not_blamed_on_the_training_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    try:
        raise RuntimeError("while saving") from MemoryError("no room for the array")
    except RuntimeError as error:
        monkeypatch.setattr(
            failure, "describe_limit", lambda error: describe_limit(error, lambda _: (10**9, 10**9))
        )
        kind, message = describe_failure(error, "/")
    ended = error_of(kind, message, process="w0", log=Path("w0.log"))

    assert isinstance(ended, TransientError)
    assert not isinstance(ended, TrainingCodeError)
    assert "no room for the array" in str(ended)


def test_a_process_that_a_limit_killed_says_so() -> None:
    assert Exit("w0", -25).cause == "was killed by SIGXFSZ: the limit on file sizes (ulimit -f)"
    assert Exit("w0", -24).cause == "was killed by SIGXCPU: the limit on processor time (ulimit -t)"
