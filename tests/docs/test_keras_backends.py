"""Keras on PyTorch or JAX: the script of the documentation trains as a command on the backend of the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

PAGE = (ROOT / "docs" / "keras.md").read_text().partition("## Backend")[2]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_fit_on_another_backend_is_a_job_as_it_is(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    (script,) = re.findall(r"```python\n(# fit\.py\n.*?)```", PAGE, re.DOTALL)
    (job,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "fit.py").write_text(script)
    (tmp_path / "job.yaml").write_text(job)
    env = {**os.environ, "KERAS_BACKEND": backend, "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "scavenger_cli", "optimize", "job.yaml", "--yes"]
    ran = subprocess.run(
        [*command, "--store", f"sqlite:///{tmp_path}/jobs.db"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    assert "succeeded after" in ran.stdout
    logs = [path.read_text() for path in (tmp_path / ".scavenger").rglob("*.log")]
    assert any(f"backend: {backend}" in text for text in logs)
