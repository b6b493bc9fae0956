"""Every error that Scavenger raises on purpose, and the exit code that each ends a command with.

::

    ScavengerError                      1   a fault of Scavenger itself
    ├── ConfigurationError              2   the user's words cannot be followed
    │   ├── JobFileError                    the job file; carries path, line, column and a suggestion
    │   └── NotSupportedError               asked for something that this version does not do
    ├── TransientError                  3   may succeed when tried again
    │   ├── StoreBusyError                  another process holds the database
    │   ├── ModelNotSavedError              there is no room for the model's file
    │   └── WorkersLostError                every worker died, or more than may be replaced
    ├── NoFeasiblePlanError             4   no configuration meets the constraints
    ├── LimitReachedError               5   stopped by budget or deadline
    ├── TrainingError                   6   the user's training code failed
    │   ├── TrainingCodeError               it raised
    │   ├── NonFiniteError                  it produced NaN or infinity
    │   └── TrainingHungError               it made no progress
    ├── CloudError                      7   a cloud refused, or gave no answer
    │   ├── CredentialsError                it does not know us, or does not let us
    │   ├── QuotaError                      a limit of the account; names quota and region
    │   ├── StockOutError                   the place has no such VM now; another place may
    │   ├── ThrottledError                  asked too often
    │   ├── GoneError                       there is no such VM (any more)
    │   └── CloudUnavailableError           no answer, or its own fault: what was asked may have been done
    ├── MessageError                    1   what a process received is no message; never ends a command
    ├── CleanupError                    8   something may have been left behind
    └── StoreError                      1   the database cannot be used
        ├── StoreTooNewError                written by a newer Scavenger
        ├── StoreReadOnlyError              cannot be written to
        └── StoreUnavailableError           out of service, full, deleted or damaged

An `Interrupted` is no error: it is the user's wish, and ends with 130.
"""

from __future__ import annotations

__all__ = [
    "CleanupError",
    "CloudError",
    "CloudUnavailableError",
    "ConfigurationError",
    "CredentialsError",
    "GoneError",
    "Interrupted",
    "JobFileError",
    "LimitReachedError",
    "MessageError",
    "ModelNotSavedError",
    "NoFeasiblePlanError",
    "NonFiniteError",
    "NotSupportedError",
    "QuotaError",
    "ScavengerError",
    "StockOutError",
    "StoreBusyError",
    "StoreError",
    "StoreReadOnlyError",
    "StoreTooNewError",
    "StoreUnavailableError",
    "ThrottledError",
    "TrainingCodeError",
    "TrainingError",
    "TrainingHungError",
    "TransientError",
    "WorkersLostError",
]


class ScavengerError(Exception):
    """Base of all; the message is one line for a person, with the place and the fix."""

    exit_code = 1


class ConfigurationError(ScavengerError):
    """What the user wrote cannot be followed."""

    exit_code = 2


class JobFileError(ConfigurationError):
    """The job file is malformed, or says something absurd.

    Args:
        message: What is wrong and what would be right, without the place.
        path: The file, as the user named it.
        line: 1-based; None where the fault has no line (a missing file).
        column: 1-based.
    """

    def __init__(
        self, message: str, *, path: str, line: int | None = None, column: int | None = None
    ) -> None:
        place = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{place}: {message}")
        self.path, self.line, self.column, self.reason = path, line, column, message


class NotSupportedError(ConfigurationError):
    """The request is well-formed, but this version does not do it."""


class TransientError(ScavengerError):
    """May succeed when tried again."""

    exit_code = 3


class StoreBusyError(TransientError):
    """Another process holds the database."""


class ModelNotSavedError(TransientError):
    """The trained model's file could not be written; with a checkpoint, the job can be resumed to write it."""


class WorkersLostError(TransientError):
    """Workers died without an error of the training code, and could not be replaced."""


class MessageError(ScavengerError):
    """What arrived from another process is no message, or not a valid one."""


class NoFeasiblePlanError(ScavengerError):
    """No configuration meets the constraints; the message names the nearest one."""

    exit_code = 4


class LimitReachedError(ScavengerError):
    """The run was stopped before it would have crossed its budget or deadline."""

    exit_code = 5


class TrainingError(ScavengerError):
    """The user's training code failed: a user's error, not an infrastructure error."""

    exit_code = 6


class TrainingCodeError(TrainingError):
    """The training code raised; the message names its file and line."""


class NonFiniteError(TrainingError):
    """A gradient or loss was NaN or infinite; it was refused before it was applied."""


class TrainingHungError(TrainingError):
    """A worker made no progress within its time limit; its stack is in the log."""


class CloudError(ScavengerError):
    """A cloud refused what was asked, or gave no answer."""

    exit_code = 7


class CredentialsError(CloudError):
    """The cloud does not know who asks, or does not let them."""


class QuotaError(CloudError):
    """A limit of the account; asking again does not help.

    Args:
        quota: Its name, in the cloud's words.
        region: Where it holds.
    """

    def __init__(self, message: str, *, quota: str, region: str) -> None:
        super().__init__(message)
        self.quota, self.region = quota, region


class StockOutError(CloudError):
    """The place has no such VM now: another zone or type may, or this one later."""


class ThrottledError(CloudError):
    """Asked too often; the same may be asked again after a while."""


class GoneError(CloudError):
    """There is no such VM, or not any more."""


class CloudUnavailableError(CloudError):
    """No answer, or a fault of the cloud's own: what was asked for may have been done all the same."""


class CleanupError(ScavengerError):
    """Something may have been left behind; the message says what and how to remove it."""

    exit_code = 8


class StoreError(ScavengerError):
    """The database cannot be used."""


class StoreTooNewError(StoreError):
    """The database was written by a newer Scavenger."""


class StoreReadOnlyError(StoreError):
    """The database, or the folder it is in, cannot be written to."""


class StoreUnavailableError(StoreError):
    """The database does not serve now: its server is down, its disk is full, or its file is gone or damaged.

    Somebody can put that right, so a running job waits for it.
    """


class Interrupted(BaseException):
    """Ctrl-C."""

    exit_code = 130
