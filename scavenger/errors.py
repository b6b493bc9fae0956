"""Scavenger's exceptions, and the exit code of a command that ends with each.

::

    ScavengerError                      1   an error in Scavenger itself
    ├── ConfigurationError              2   the user's input is invalid
    │   ├── JobFileError                    the job file; carries path, line, column and a suggestion
    │   ├── NotFoundError                   there is no such job, model or user
    │   ├── ForbiddenError                  the user may not do that
    │   └── NotSupportedError               the request needs something that this version cannot do
    ├── TransientError                  3   may succeed if tried again
    │   ├── StoreBusyError                  another process holds the database
    │   ├── ModelNotSavedError              the model's file could not be written
    │   └── WorkersLostError                every worker died, or too many to replace
    ├── NoFeasiblePlanError             4   no configuration meets the constraints
    ├── LimitReachedError               5   stopped by budget or deadline
    ├── TrainingError                   6   the user's training code failed
    │   ├── TrainingCodeError               it raised an exception
    │   ├── NonFiniteError                  it produced NaN or infinity
    │   └── TrainingHungError               it made no progress
    ├── CloudError                      7   a cloud refused, or gave no answer
    │   ├── CredentialsError                the credentials are invalid or lack a permission
    │   ├── QuotaError                      a limit of the account; names quota and region
    │   ├── StockOutError                   no such VM available in this zone now; another zone may have one
    │   ├── ThrottledError                  too many requests
    │   ├── GoneError                       the VM does not exist (any more)
    │   └── CloudUnavailableError           no answer, or an internal error: the request may have been executed
    ├── MessageError                    1   a process received an invalid message; never ends a command
    ├── CleanupError                    8   something may have been left behind
    └── StoreError                      9   the database cannot be used
        ├── StoreTooNewError                written by a newer Scavenger
        ├── StoreTooOldError                written before the first release
        ├── StoreReadOnlyError              cannot be written to
        ├── LeaseLostError                  another process has taken over what this one was doing
        └── StoreUnavailableError           not available, full, deleted or damaged

`Interrupted` is not an error but the user's request, and ends with 130.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from scavenger.frames import Frame, told
from scavenger.masking import mask

__all__ = [
    "CleanupError",
    "CloudError",
    "CloudUnavailableError",
    "ConfigurationError",
    "CredentialsError",
    "ForbiddenError",
    "GoneError",
    "Interrupted",
    "JobFileError",
    "LeaseLostError",
    "LimitReachedError",
    "MessageError",
    "ModelNotSavedError",
    "NoFeasiblePlanError",
    "NonFiniteError",
    "NotFoundError",
    "NotSupportedError",
    "QuotaError",
    "ScavengerError",
    "StockOutError",
    "StoreBusyError",
    "StoreError",
    "StoreReadOnlyError",
    "StoreTooNewError",
    "StoreTooOldError",
    "StoreUnavailableError",
    "ThrottledError",
    "TrainingCodeError",
    "TrainingError",
    "TrainingHungError",
    "TransientError",
    "WorkersLostError",
    "error_code",
]


class ScavengerError(Exception):
    """Base of all errors; the message is one line for the user that names the location and the remedy.

    Secrets in it are masked, wherever it is shown or stored.

    Attributes:
        exit_code: Exit code of a command that ends with it.
        retryable: Whether the same may succeed if tried again later.
        usual_fix: What helps if the message does not say.
    """

    exit_code = 1
    retryable = False
    usual_fix = "report it, with the log"
    _told: tuple[str, str] | None = None

    def __str__(self) -> str:
        return mask(super().__str__())

    @property
    def code(self) -> str:
        """The kind of error in one word, such as `no_feasible_plan`, which does not change between versions."""
        return error_code(type(self)) if self._told is None else self._told[0]

    @property
    def fix(self) -> str:
        """What to do about it: the end of the message, which names the remedy last, or what usually helps."""
        if self._told is not None:
            return self._told[1]
        _, split, remedy = str(self).partition("; ")
        return remedy if split else self.usual_fix

    def as_told(self, code: str, fix: str, *, retryable: bool) -> Self:
        """Take over what a server has told of the error; returns this error."""
        self._told, self.retryable = (code, mask(fix)), retryable
        return self


class ConfigurationError(ScavengerError):
    """The user's input is invalid.

    Args:
        message: As of `ScavengerError`.
        key: The dotted key of the job file that is at fault, as `search.workers`; empty if none is.
    """

    exit_code = 2
    usual_fix = "change what the message names"

    def __init__(self, message: str = "", *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class JobFileError(ConfigurationError):
    """The job file is malformed, or has an invalid value.

    Args:
        message: What is wrong and what would be right, without the location.
        path: The file, as the user named it.
        line: 1-based; None if the fault has no line (a missing file).
        column: 1-based.
    """

    usual_fix = "correct the job file"

    def __init__(
        self, message: str, *, path: str, line: int | None = None, column: int | None = None
    ) -> None:
        place = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{place}: {message}")
        self.path, self.line, self.column, self.reason = path, line, column, message


class NotFoundError(ConfigurationError):
    """There is no such job, model, operation or user."""

    usual_fix = "list what there is"


class ForbiddenError(ConfigurationError):
    """The user may not do that."""


class NotSupportedError(ConfigurationError):
    """The request is valid, but this version does not support it."""

    usual_fix = "use a version that supports it"


class TransientError(ScavengerError):
    """The operation may succeed if tried again."""

    exit_code = 3
    retryable = True
    usual_fix = "try again"


class StoreBusyError(TransientError):
    """Another process holds the database."""


class ModelNotSavedError(TransientError):
    """The trained model's file could not be written; with a checkpoint, the job can be resumed to write it."""

    usual_fix = "free some space, and resume the job"


class WorkersLostError(TransientError):
    """Workers died without an error of the training code, and could not be replaced."""

    usual_fix = "resume the job"


class MessageError(ScavengerError):
    """Data received from another process is not a valid message."""


class NoFeasiblePlanError(ScavengerError):
    """No configuration meets the constraints; the message names the nearest one."""

    exit_code = 4
    usual_fix = "loosen deadline or budget"


class LimitReachedError(ScavengerError):
    """The run was stopped before it would have crossed its budget or deadline.

    Args:
        message: As of `ScavengerError`.
        limit: Which of a job's own limits it was; empty if it was none of these.
    """

    exit_code = 5
    usual_fix = "raise deadline or budget"

    def __init__(self, message: str = "", *, limit: Literal["", "budget", "deadline"] = "") -> None:
        super().__init__(message)
        self.limit: Literal["", "budget", "deadline"] = limit


class TrainingError(ScavengerError):
    """The user's training code failed: a user's error, not an infrastructure error."""

    exit_code = 6
    usual_fix = "correct the training code"


class TrainingCodeError(TrainingError):
    """The training code raised; the message names its file and line.

    Args:
        message: As of `ScavengerError`.
        frames: Where in the user's code.
    """

    def __init__(self, message: str = "", *, frames: tuple[Frame, ...] = ()) -> None:
        super().__init__(message)
        self.frames = frames
        if frames:  # where Python itself shows the error
            self.add_note("\n".join(told(frames)))


class NonFiniteError(TrainingError):
    """A gradient or loss was NaN or infinite; it was refused before it was applied."""


class TrainingHungError(TrainingError):
    """A worker made no progress within its time limit; its stack is in the log."""


class CloudError(ScavengerError):
    """A cloud refused a request, or gave no answer."""

    exit_code = 7
    usual_fix = "see `scavenger doctor`"


class CredentialsError(CloudError):
    """The credentials are invalid, or lack a permission."""

    usual_fix = "renew the credentials"


class QuotaError(CloudError):
    """A limit of the account is reached; repeating the request does not help.

    Args:
        quota: The cloud's name of the limit.
        region: The region that it applies to.
    """

    usual_fix = "ask the cloud for a higher quota"

    def __init__(self, message: str, *, quota: str, region: str) -> None:
        super().__init__(message)
        self.quota, self.region = quota, region


class StockOutError(CloudError):
    """The zone has no such VM available now; another zone or type may, or this one later."""

    retryable = True
    usual_fix = "try another zone or VM type, or later"


class ThrottledError(CloudError):
    """Too many requests; the request may be repeated after a while."""

    retryable = True
    usual_fix = "try again"


class GoneError(CloudError):
    """The VM does not exist, or no longer exists."""

    usual_fix = ""


class CloudUnavailableError(CloudError):
    """No answer, or an internal error of the cloud; the request may have been executed all the same."""

    retryable = True
    usual_fix = "try again"


class CleanupError(ScavengerError):
    """Something may have been left behind; the message says what and how to remove it."""

    exit_code = 8
    usual_fix = "run `scavenger gc`"


class StoreError(ScavengerError):
    """The database cannot be used."""

    exit_code = 9
    usual_fix = "see the log"


class StoreTooNewError(StoreError):
    """The database was written by a newer Scavenger."""

    usual_fix = "upgrade Scavenger"


class StoreTooOldError(StoreError):
    """The database was written by a version before the first release, whose tables are not migrated."""

    usual_fix = "export its models with the version that wrote it, and import them into a new store"


class StoreReadOnlyError(StoreError):
    """The database, or the folder it is in, cannot be written to."""

    usual_fix = "make the store writable"


class LeaseLostError(StoreError):
    """Another process has taken the lease under which this one writes; nothing was written."""


class StoreUnavailableError(StoreError):
    """The database is not available: its server is down, its disk is full, or its file is missing or damaged.

    An administrator can repair that, so a running job waits for it.
    """

    retryable = True
    usual_fix = "repair the database"


class Interrupted(BaseException):
    """The user interrupted the command with Ctrl-C."""

    exit_code = 130


def error_code(kind: type[BaseException]) -> str:
    """The name of a class of errors in documents: `StoreBusyError` is `store_busy`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).lower()
