"""`scavenger image`: what makes a VM image, in a folder."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

from cli_fake import Run


def test_a_folder_has_the_wheel_its_versions_and_a_script_that_installs_both(
    scavenger: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "image"

    code, out, _ = scavenger("image", folder, "--extra", "parquet", "-o", "json")

    said = json.loads(out)
    script = (folder / said["script"]).read_text()
    assert code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["constraints.txt", "install.sh", said["wheel"]]
    assert hashlib.sha256((folder / said["wheel"]).read_bytes()).hexdigest() == said["sha256"]
    assert f"--has {said['sha256']} keras parquet" in script
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=10)


def test_an_older_wheel_is_replaced_and_an_extra_that_there_is_not_is_refused(
    scavenger: Run, tmp_path: Path
) -> None:
    (tmp_path / "scavenger_ml-0.0.9-py3-none-any.whl").touch()

    assert scavenger("image", tmp_path)[0] == 0
    assert len(list(tmp_path.glob("*.whl"))) == 1
    code, _, err = scavenger("image", tmp_path, "--extra", "parket")
    assert code == 2
    assert "no extra 'parket'; it has" in err
