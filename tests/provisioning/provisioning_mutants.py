"""Known ways to provision badly, each with the complaint that it has to cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioning_world import CONFIG

from scavenger.control.provisioning.ports import Steps, ask
from scavenger.control.provisioning.reconciler import Reconciler
from scavenger.domain.intent import Intent
from scavenger.domain.vm import VmSeen
from scavenger.errors import CloudError, CloudUnavailableError
from scavenger.policy.provisioning.actions import Action, PollVm, Sweep
from scavenger.policy.provisioning.config import ProvisioningConfig


@dataclass(frozen=True, slots=True)
class Mutant:
    """Arguments of the world, and what the world says of it: a pattern."""

    complaint: str
    world: Mapping[str, Any] = field(default_factory=dict)


class CreateThenRecord(Reconciler):
    """Writes an intent once its VM is there."""

    def _create(self, intent: Intent) -> Steps[None]:
        fence = self._held()
        try:
            vm = yield from self._cloud("launch", lambda: self._provider.launch(intent.request))
        except CloudError:
            return
        if (yield from ask(lambda: self._store.write_intent(fence, intent))):
            yield from self._up(intent, vm)


class NotListedMeansGone(Reconciler):
    """Believes a listing."""

    def _do(self, action: Action) -> Steps[None]:
        if isinstance(action, PollVm):
            yield from self._gone(action.intent, "died", "not listed", None)
        else:
            yield from super()._do(action)


class NoSweep(Reconciler):
    """Trusts that every VM has an intent."""

    def _do(self, action: Action) -> Steps[None]:
        if not isinstance(action, Sweep):
            yield from super()._do(action)


class NoAnswerMeansNo(Reconciler):
    """Takes a launch that was not answered for one that was not done."""

    def _launch(self, intent: Intent, *, first: bool) -> Steps[None]:
        try:
            vm = yield from self._cloud("launch", lambda: self._provider.launch(intent.request))
        except CloudUnavailableError as error:
            yield from self._gone(intent, "refused", str(error), None, never=True)
        except CloudError:
            return
        else:
            yield from self._up(intent, vm)


class RefusedNowMeansNever(Reconciler):
    """Takes a refused launch for the word on an earlier one, which was not answered."""

    def _launch(self, intent: Intent, *, first: bool) -> Steps[None]:
        yield from super()._launch(intent, first=True)


class AskedMeansGone(Reconciler):
    """Takes a VM that was asked to end for one that has ended."""

    def _terminate(self, key: str, instance_id: str, zone: str) -> Steps[None]:
        yield from super()._terminate(key, instance_id, zone)
        intent = next((one for one in self._store.intents(living=True) if one.id == key), None)
        if intent is not None:
            yield from self._gone(intent, "unwanted", "it was asked to end", None)


class EndThenRecord(Reconciler):
    """Ends a VM, then writes that it is to end."""

    def _drain(self, intent: Intent, ending: Any, reason: str) -> Steps[None]:
        if intent.instance_id:
            yield from self._terminate(intent.id, intent.instance_id, intent.request.zone)
        yield from super()._drain(intent, ending, reason)


class ForgetsTheId(Reconciler):
    """Never writes down which VM an intent has, but that it is up."""

    def _up(self, intent: Intent, vm: VmSeen) -> Steps[None]:
        if vm.state == "gone":
            yield from super()._up(intent, vm)

    def _drain(self, intent: Intent, ending: Any, reason: str) -> Steps[None]:
        yield from self._gone(intent, ending, reason, None)


class ATokenUsedUpMeansGone(Reconciler):
    """Takes a VM for gone whose token cannot be used any more, though it may still be stopping."""

    def _drain(self, intent: Intent, ending: Any, reason: str) -> Steps[None]:
        if ending == "died":
            yield from self._gone(intent, ending, reason, None)
        else:
            yield from super()._drain(intent, ending, reason)


class NothingReserved(ProvisioningConfig):
    """Sets nothing aside for what it takes to end a VM."""

    def reserved_s(self, drain_s: float) -> float:
        return 0.0


_CONFIG = {name: getattr(CONFIG, name) for name in ProvisioningConfig.__dataclass_fields__}

MUTANTS: dict[str, Mutant] = {
    "create, then record": Mutant("nothing is written", {"reconciler": CreateThenRecord}),
    "not listed means gone": Mutant("its intent was ended", {"reconciler": NotListedMeansGone}),
    "no sweep": Mutant("was left behind", {"reconciler": NoSweep}),
    "no token": Mutant("two VMs of one slot", {"idempotent": False}),
    "no fencing": Mutant("lost its lease wrote", {"fenced": False}),
    "no answer means no": Mutant("its intent was ended", {"reconciler": NoAnswerMeansNo}),
    "refused now means never": Mutant("its intent was ended", {"reconciler": RefusedNowMeansNever}),
    "asked to end means gone": Mutant("its intent was ended", {"reconciler": AskedMeansGone}),
    "end, then record": Mutant("was ended, and its intent says", {"reconciler": EndThenRecord}),
    "the id is forgotten": Mutant("its intent was ended", {"reconciler": ForgetsTheId}),
    "a token used up means gone": Mutant("its intent was ended", {"reconciler": ATokenUsedUpMeansGone}),
    "nothing is reserved": Mutant("spent", {"config": NothingReserved(**_CONFIG)}),
}
