"""`scavenger api`: what it tells of the server, and the unit that it writes."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_fake import Run
from scavenger_cli.commands.systemd import unit

from scavenger.errors import ConfigurationError
from scavenger.policy.notifying import ping
from scavenger.store import Store


def test_info_tells_what_became_of_notifications(
    scavenger: Run, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[notify.team]\nurl = "https://chat.example/x"\nsecret_from = "NAME"\n[notify.new]\nurl_from = "X"\n'
    )
    monkeypatch.setenv("SCAVENGER_CONFIG", str(file))
    with Store.open(store_url) as store:
        store.queue_notifications({"team": [ping("team", datetime.now(UTC))]})
        taken = store.take_notification("team", for_s=60)
        assert taken is not None
        store.settle_notification(taken.number, "waiting", "no connection", wait_s=60)
    code, out, _ = scavenger("api", "info", "-o", "json")
    told = json.loads(out)
    assert (code, told["store"], told["servers"]) == (0, str(tmp_path / "store.db"), [])
    team, new = told["webhooks"]
    assert (team["name"], team["signed"], team["error"]) == ("team", True, "no connection")
    assert (team["waiting"], team["delivered"], new["waiting"]) == (1, 0, 0)
    _, out, _ = scavenger("api", "info")
    assert "No API is served" in out
    assert "no connection" in out


def test_a_token_and_sessions_are_ended(scavenger: Run, store_url: str) -> None:
    with Store.open(store_url) as store:
        store.set_user("ann", "user")
        token, text = store.new_token("ann", "laptop")
        store.new_token("ann", "session", made_with=token, is_session=True)
    _, out, _ = scavenger("api", "info")
    assert "laptop" in out

    code, out, _ = scavenger("api", "revoke", "--sessions", "ann", "-o", "json")
    assert (code, [one["label"] for one in json.loads(out)["tokens"]]) == (0, ["session"])
    assert "no session" in scavenger("api", "revoke", "--sessions", "ann")[1]
    code, out, _ = scavenger("api", "revoke", str(token.id))
    assert code == 0
    assert "laptop" in out

    with Store.open(store_url) as store:
        assert store.caller(text) is None
    assert scavenger("api", "revoke", str(token.id))[0] == 2
    assert scavenger("api", "revoke", "--sessions", "nobody")[0] == 2
    assert scavenger("api", "revoke")[0] == 2


def test_a_restore_is_told_what_becomes_of_tokens(scavenger: Run, store_url: str, tmp_path: Path) -> None:
    with Store.open(store_url) as store:
        store.set_user("ann", "user")
        _, text = store.new_token("ann", "laptop")
    file, url = str(tmp_path / "backup"), f"sqlite:///{tmp_path}/again.db"
    assert scavenger("store", "backup", file)[0] == 0

    code, _, err = scavenger("store", "restore", file, "--store", url)
    assert code == 2
    assert "--keep-tokens" in err
    code, out, _ = scavenger("store", "restore", file, "--store", url, "--revoke-tokens")
    assert code == 0
    assert "no token is valid" in out
    with Store.open(url) as store:
        assert store.caller(text) is None


class TestUnit:
    SETTINGS = Path("/home/ann b/.config/scavenger/config.toml")

    def test_jobs_outlive_a_restart_and_the_server_has_few_rights(self) -> None:
        text = unit("ann", Path("/opt/my env/100%/bin/scavenger"), self.SETTINGS)
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read_string(text)
        service = parser["Service"]
        assert (service["User"], service["KillMode"], service["NoNewPrivileges"]) == ("ann", "process", "yes")
        assert service["ExecStart"] == '"/opt/my env/100%%/bin/scavenger" serve'
        assert service["CapabilityBoundingSet"] == ""
        assert int(service["LimitNOFILE"]) >= 65_536

    def test_a_password_does_not_come_into_the_unit(self) -> None:
        with pytest.raises(ConfigurationError, match="can be read by everybody") as refused:
            unit("ann", Path("/bin/true"), self.SETTINGS, store="postgresql://ann:hunter2@db/x")
        assert "hunter2" not in str(refused.value)
        with pytest.raises(ConfigurationError, match="line break"):
            unit("ann\nExecStartPre=/bin/sh", Path("/bin/true"), self.SETTINGS)

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
    def test_systemd_finds_nothing_wrong_in_what_the_command_prints(
        self, scavenger: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "with space"
        folder.mkdir()
        monkeypatch.setenv("SCAVENGER_CONFIG", str(folder / "config.toml"))
        code, out, _ = scavenger("api", "systemd", "--account", "root", "--store", "sqlite:////var/lib/s.db")
        assert code == 0
        written = tmp_path / "scavenger.service"
        written.write_text(out)
        command = ["systemd-analyze", "verify", "--man=no", str(written)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        about = [line for line in found.stderr.splitlines() if "scavenger" in line]
        # KillMode=process is advised against, and here on purpose
        assert [line for line in about if "KillMode" not in line] == []
        assert found.returncode == 0
