"""Programs and job files as strangers write them, run as real jobs; nothing of a job outlives its test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_JOBS = Path(__file__).parents[1] / "e2e"
sys.path.insert(0, str(_JOBS))
_spec = importlib.util.spec_from_file_location("e2e_conftest", _JOBS / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

mark, make_job, nothing_left = _fixtures.mark, _fixtures.make_job, _fixtures.nothing_left
