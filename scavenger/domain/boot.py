"""How far a VM is on its way to its job, and the lines on its console by which the coordinator learns it.

A VM that cannot reach its coordinator cannot report anything to it. Its console can be read through the cloud, so what
the boot script and the agent do is written there, in lines that contain these words.
"""

from __future__ import annotations

from typing import Literal, get_args

BootPhase = Literal["asked", "running", "booting", "installing", "joined"]
"""`asked`: requested from the cloud; `running`: the cloud has started it; `booting`: its boot script runs;
`installing`: it installs Scavenger; `joined`: its agent has been admitted."""

BOOT_PHASES: tuple[BootPhase, ...] = get_args(BootPhase)

MARK = "scavenger: "
"""Beginning of the boot script's lines; cloud-init and the journal may write something before it."""

NODE = "SCAVENGER_NODE"
"""Environment variable that tells a VM on which machine it is, where several may be on it one after the other."""

BOOTING = "booting"
REACHED = "reaches its coordinator"
NO_ANSWER = "no answer from its coordinator"
INSTALLING = "installing"
RETRYING = "trying again in"
NOT_INSTALLED = "Scavenger cannot be installed"
STARTED = "the agent was started"
NO_TIME_LIMIT = "its time limit is not set"
REFUSED = "the coordinator refuses it"
