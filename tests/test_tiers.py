"""What unit tests are held to; this file is one of those that are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest


def test_a_unit_test_starts_no_process() -> None:
    with pytest.raises(RuntimeError, match="starts no process, opens no socket"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(RuntimeError, match="is a unit test"):
        os.fork()


def test_a_unit_test_opens_no_socket() -> None:
    with socket.socket() as one, pytest.raises(RuntimeError, match="mark it slow"):
        one.connect(("127.0.0.1", 9))


def test_a_unit_test_imports_no_tensorflow() -> None:
    with pytest.raises(RuntimeError, match="imports no TensorFlow"):
        sys.audit("import", "tensorflow", None, None, None, None)


@pytest.mark.slow
def test_another_one_may() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
