"""Laws of the id of an installation, which does not follow the name of its host."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from scavenger.domain.submission import NewSubmission
from scavenger.errors import ConfigurationError
from scavenger.store import Store
from scavenger.store.installation import INSTALLATION_VARIABLE, installation_in


def test_of_many_who_ask_first_all_get_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ThreadPoolExecutor(8) as pool:
        found = {
            one.result() for one in [pool.submit(installation_in, folder, shared=False) for _ in range(40)]
        }

    assert len(found) == 1
    assert [path.name for path in folder.iterdir()] == ["installation"]
    assert installation_in(tmp_path / "other", shared=False) not in found


def test_machines_that_share_a_folder_have_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = installation_in(tmp_path, shared=True)
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")

    assert installation_in(tmp_path, shared=True) != first
    assert installation_in(tmp_path, shared=False) == installation_in(tmp_path, shared=False)


@pytest.mark.parametrize("text", ["a/b", "two words", "x" * 65, "-x"])
def test_what_is_no_id_is_refused_with_its_place(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installation").write_text(text)
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/installation has no id.*delete it"):
        installation_in(tmp_path, shared=False)
    monkeypatch.setenv(INSTALLATION_VARIABLE, text)
    with pytest.raises(ConfigurationError, match="SCAVENGER_INSTALLATION="):
        installation_in(tmp_path, shared=False)
    monkeypatch.setenv(INSTALLATION_VARIABLE, "node-7.rack_2")
    assert installation_in(tmp_path, shared=False) == "node-7.rack_2"


def test_jobs_of_a_renamed_machine_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/scavenger.db"
    with Store.open(url) as store:
        new = NewSubmission("tiny", {}, "/job.yaml", "ann", socket.gethostname(), os.getuid())
        one, job = store.submit(new), store.create_job("tiny", spec={}, job_file="/job.yaml")
        store.update_job(job.id, checkpoint="/saved")

    monkeypatch.setattr("socket.gethostname", lambda: "renamed")
    with Store.open(url) as store:
        assert [found.id for found in store.backlog("renamed", os.getuid(), None).queued] == [one.id]
        assert job.owner.is_same_account(store.me())
        assert store.is_alive(job)  # its process is this one, whatever the host is called
        assert store.reap_dead_jobs() == ()
    monkeypatch.setenv(INSTALLATION_VARIABLE, "another")
    with Store.open(url) as store:
        assert store.backlog(socket.gethostname(), os.getuid(), None).queued == ()
        assert not job.owner.is_same_account(store.me())
        assert job.owner.is_same_account(replace(store.me(), installation="", host=job.owner.host))
