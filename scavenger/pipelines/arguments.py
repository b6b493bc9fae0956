"""Refuses misspelt arguments of the SDK with the one that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from scavenger.errors import ConfigurationError

__all__ = ["named"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def named(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wrap a method so that an argument by a name that it does not have is a `ConfigurationError` with the fix."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    place = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(of: S, /, *args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in names:
                close = get_close_matches(name, names, n=1)
                more = ", and other keys of a job file go into settings" if "settings" in names else ""
                hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}{more}"
                raise ConfigurationError(f"{place} has no argument {name}; {hint}", key=name)
        return function(of, *args, **given)

    return checked
