"""The cache of the control plane: a build that was killed leaves nothing there that the next one does not remove."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import binaries

ROOT = Path(__file__).parents[2]
_BUILD = """
import sys, tempfile
from pathlib import Path
from tests.cluster import binaries
cache = Path(sys.argv[1])
with binaries.building_alone(cache), tempfile.TemporaryDirectory(prefix=binaries._WORK, dir=cache) as made:
    (Path(made) / "large").write_text("x")
    print(made, flush=True)
    sys.stdin.read()
"""


def test_the_next_build_removes_what_a_killed_one_has_left_and_waits_for_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kube-apiserver").write_text("built")
    build = subprocess.Popen(
        [sys.executable, "-c", _BUILD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert build.stdout is not None
    left = Path(build.stdout.readline().strip())
    with monkeypatch.context() as at_once:
        at_once.setattr(binaries, "_until", lambda: 0.0)
        with pytest.raises(TimeoutError), binaries.building_alone(tmp_path):
            raise AssertionError("another builds")
    assert (left / "large").is_file(), "the folder of a build that runs stays"
    build.kill()
    build.communicate()
    assert (left / "large").is_file()

    with binaries.building_alone(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["building.lock", "kube-apiserver"]
