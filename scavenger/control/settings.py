"""The settings file, which holds what all jobs of a user share: network and identity of rented VMs."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from platformdirs import user_config_path
from pydantic import ValidationError, create_model

from scavenger.domain.infra import Infra
from scavenger.domain.providers import BUILT_IN, find_kind, kinds
from scavenger.domain.vm_settings import CloudSettings, Settings, faults_of, overridden
from scavenger.errors import ConfigurationError, JobFileError

SETTINGS_VARIABLE = "SCAVENGER_CONFIG"
"""Path of a settings file, instead of `config.toml` in the user's configuration folder."""

_BYTES_MAX = 64 << 10
_TABLE = re.compile(r"\s*\[\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""(\s*)((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def settings_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Path of the settings file, whether or not there is one."""
    named = environment.get(SETTINGS_VARIABLE)
    return Path(named).expanduser() if named else user_config_path("scavenger") / "config.toml"


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings file; without one, every setting has its default.

    Raises:
        JobFileError: If it cannot be read or is invalid; one line with path, line, column and what to write.
    """
    path = settings_path(environment)
    try:
        if not path.exists() and not environment.get(SETTINGS_VARIABLE):
            return parse_settings("", path=str(path))
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
        if len(data) > _BYTES_MAX:
            raise JobFileError(f"the settings file is larger than {_BYTES_MAX} bytes", path=str(path))
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8; save it as UTF-8"
        raise JobFileError(f"the settings file cannot be read: {reason}", path=str(path)) from error
    return parse_settings(text, path=str(path))


def parse_settings(text: str, *, path: str) -> Settings:
    """Parse the text of a settings file.

    Raises:
        JobFileError: As `load_settings`; names the first fault and the number of other faults.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.search(str(error))
        line, column = (int(found[1]), int(found[2])) if found and found[1] else (None, None)
        words = _PLACE.sub("", str(error))
        raise JobFileError(f"this is not TOML: {words}", path=path, line=line, column=column) from error
    model = _model()
    if document.keys() - model.model_fields:
        try:
            model = _model(outside=True)
        except ConfigurationError as error:
            raise JobFileError(str(error), path=path) from error
    try:
        return model.model_validate(document)
    except ValidationError as error:
        faults = faults_of(error, model)
    loc, words = faults[0]
    others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    line, column = _place(text, loc)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    message = words if words.startswith("unknown") else f"{name} {words}"
    raise JobFileError(f"{message}{others}", path=path, line=line, column=column)


@cache
def _model(*, outside: bool = False) -> type[Settings]:
    """The settings file with a table for each provider; with `outside`, also for those of other packages.

    Raises:
        ConfigurationError: See `outside_kinds`.
    """
    known = [kind for kind in (kinds() if outside else BUILT_IN) if kind.is_place and kind.capabilities.rents]
    tables: dict[str, Any] = {kind.name: (kind.settings, kind.settings()) for kind in known}
    return create_model("SettingsFile", __base__=Settings, **tables)


def _place(text: str, loc: tuple[str | int, ...]) -> tuple[int | None, int | None]:
    """Line and column of the key at a location, or of the nearest table or key around it; None if there is none."""
    keys = tuple(str(part) for part in loc if isinstance(part, str))
    table: tuple[str, ...] = ()
    best: tuple[int, int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TABLE.match(line):
            table, column = _parts(found[1]), found.start(1) + 1
            here = table
        elif key := _KEY.match(line):
            here, column = table + _parts(key[2]), key.start(2) + 1
        else:
            continue
        if here == keys[: len(here)] and (best is None or len(here) > best[0]):
            best = (len(here), number, column)
    return (best[1], best[2]) if best else (None, None)


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def cloud_settings(provider: str, environment: Mapping[str, str] = os.environ) -> CloudSettings:
    """The settings of one cloud's VMs.

    Raises:
        JobFileError: See `load_settings`.
    """
    settings = getattr(load_settings(environment), provider, None)
    if isinstance(settings, CloudSettings):
        return settings
    kind = find_kind(provider)
    return CloudSettings() if kind is None else kind.settings()


def settings_of(infra: Infra, environment: Mapping[str, str] = os.environ) -> CloudSettings:
    """The settings of a job's VMs: its own keys over those of the settings file.

    Raises:
        JobFileError: See `load_settings`.
    """
    return overridden(cloud_settings(infra.provider, environment), infra.settings)
