"""Programs and job files as strangers write them, run as real jobs; nothing of a job outlives its test."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "e2e_conftest", Path(__file__).parents[1] / "e2e" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

mark, make_job, nothing_left = _fixtures.mark, _fixtures.make_job, _fixtures.nothing_left
