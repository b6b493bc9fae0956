"""Environment variables of a job: what its file gives, settled where the job begins."""

from __future__ import annotations

from collections.abc import Mapping

from scavenger.domain.environment import SECRET_LENGTH_MIN, literal, named, references
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError
from scavenger.masking import names_a_secret


def asked_variables(job: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Those variables of an environment that a job asks for."""
    return {name: environ[name] for name in (*named(job.env), *job.secrets) if name in environ}


def secrets_of(job: JobSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The secrets of a job that an environment has."""
    return {name: environ[name] for name in job.secrets if name in environ}


def check_secrets(job: JobSpec, environ: Mapping[str, str]) -> None:
    """Check that the secrets that a job names can be taken, and can be masked.

    Raises:
        ConfigurationError: If one cannot.
    """
    for name in job.secrets:
        if name not in environ:
            problem = "is not set where the job is begun; set it there"
        elif len(environ[name].strip()) < SECRET_LENGTH_MIN:
            problem = (
                f"is shorter than {SECRET_LENGTH_MIN} characters, and could not be masked; name it under env"
            )
        elif not _is_text(environ[name]):
            problem = "is not UTF-8"
        else:
            continue
        raise ConfigurationError(f"secrets: {name} {problem}", key="secrets")


def settled_variables(job: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """The job with the values of the variables that its `env` names; one that names none comes back as it is.

    Args:
        environ: The environment of who begins or submits it.

    Raises:
        ConfigurationError: A variable is not set, or its value cannot be on record with the job.
    """
    if not named(job.env):
        return job
    for name, value in job.env.items():
        for one in references(value):
            _check(name, one, environ)
    return job.model_copy(update={"env": {name: literal(value, environ) for name, value in job.env.items()}})


def _check(name: str, one: str, environ: Mapping[str, str]) -> None:
    """Check that a variable's value can be taken.

    Raises:
        ConfigurationError: If it cannot.
    """
    if one not in environ:
        raise ConfigurationError(
            f"env.{name}: {one} is not set where the job is begun; set it there, or write its value",
            key=f"env.{name}",
        )
    if names_a_secret(one):
        raise ConfigurationError(
            f"env.{name}: {one} is a secret by its name, and values of env are on record with the job; "
            "name it under secrets",
            key=f"env.{name}",
        )
    if not _is_text(environ[one]):
        raise ConfigurationError(f"env.{name}: the value of {one} is not UTF-8", key=f"env.{name}")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
