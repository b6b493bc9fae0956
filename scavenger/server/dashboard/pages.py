"""Fills the templates, and holds the files that pages load."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from scavenger.errors import ConfigurationError

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No page has a script of its own, and none comes from elsewhere. Styles are set by plotly as it draws."""

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_OWN = ("dashboard.css", "dashboard.js", "icon.svg")
PLOTLY = "plotly.js"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load: its type, its content compressed by gzip, and a digest that names its version."""

    media_type: str
    compressed: bytes
    version: str


@cache
def asset(name: str) -> Asset | None:
    """A file of the dashboard, or plotly's bundle as its package has it; None if there is no such file.

    Raises:
        ConfigurationError: If plotly is not installed.
    """
    if name == PLOTLY:
        try:
            from plotly.offline import get_plotlyjs
        except ImportError as error:
            raise ConfigurationError(
                "the dashboard's pictures need plotly: pip install 'scavenger-ml[server]'"
            ) from error
        content = get_plotlyjs().encode()
    elif name in _OWN:
        content = files(__package__).joinpath("static", name).read_bytes()
    else:
        return None
    suffix = name[name.rindex(".") :]
    return Asset(_TYPES[suffix], gzip.compress(content, 6, mtime=0), hashlib.sha256(content).hexdigest()[:16])


def _asset_path(name: str) -> str:
    found = asset(name)
    assert found is not None
    return f"/static/{found.version}/{name}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = _asset_path
    return environment


def render(template: str, **values: Any) -> str:
    """A page or a part of one; every value in it is escaped."""
    return _environment().get_template(template).render(**values)
