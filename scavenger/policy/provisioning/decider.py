"""The next actions that bring the existing VMs closer to the wanted VMs: values in, actions out.

Decisions are level-triggered: they depend on the current observations, never on earlier decisions, so they can be
repeated after any crash. The action for one intent is the first row that fits:

========================  ==================================================  ================================
state                     seen                                                action
========================  ==================================================  ================================
any, VM not known         a live VM with its token                            Adopt
any                       its VM, gone                                        MarkGone
UP, DELETING              a listing without its VM                            Look: missing is not gone
PLAN, never asked for     not wanted                                          MarkGone
PLAN, UP                  not wanted, replaced, or no money left              Drain
PLAN                      not answered in `register_s`                        Drain
UP                        not joined in `register_s`; joined and silent       Drain
UP                        silent, and the cloud's own checks of it fail       Drain
DELETING, VM known        -                                                   Terminate, again and again
DELETING, VM not known    a listing begun `settle_s` later without it         MarkGone; never there, if listings
                                                                              show all since its launch
PLAN                      wanted                                              Retry, with the same token
UP                        wanted, not silent, nor is the job's process        Renew
========================  ==================================================  ================================

Vacant slots get a `Create`. VMs of this installation without a live intent get a `Sweep`: after `visibility_s` if
their intent has ended, after `quarantine_s` if the store does not know them (the store may be an old copy). A store
that was restored from a backup does not know what began later: then they are put in quarantine, and never swept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from random import Random
from uuid import UUID

from scavenger.domain.intent import (
    Ending,
    FleetSpec,
    Intent,
    IntentHistory,
    PlacementOption,
    RegionSnapshot,
    VmCharges,
)
from scavenger.domain.vm import VmRequest, VmSeen, VmTags
from scavenger.policy.provisioning import actions as act
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.memory import Memory
from scavenger.policy.provisioning.money import Account, money, reserve_usd
from scavenger.policy.provisioning.silence import is_none_heard
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.policy.provisioning.zones import near_first

THROTTLE = ("throttle",)
"""Key of the wait that all calls share: clouds limit the calls of an account, not of a job."""

DENIED = ("denied",)
"""Key of the wait of all launches after one for which the account lacks permission."""

_ORDER: tuple[type, ...] = (
    act.ExtendLife,
    act.MarkGone,
    act.Adopt,
    act.Drain,
    act.Terminate,
    act.Sweep,
    act.PollVm,
    act.Retry,
    act.Create,
    act.Quarantine,
    act.Alarm,
)
"""Order of actions: first those that keep VMs alive, then records, then those that save money, then launches."""

_LAUNCHES = (act.Create, act.Retry)
CALLS = (act.Terminate, act.Sweep, act.PollVm, *_LAUNCHES)
"""Actions that call the cloud."""


def decide(
    situation: RegionSnapshot,
    listing: act.Listing | None,
    memory: Memory,
    config: ProvisioningConfig,
    *,
    owner: str,
    now_s: float,
    rng: Random,
) -> tuple[act.Action, ...]:
    """The next actions, in the order to do them.

    Args:
        situation: Read after `listing` was taken, so that it has the intent of every VM listed.
        listing: None if none was due, or the cloud gave none.
        memory: Has already noted both.
        owner: Tag of this installation.
        now_s: Monotonic time, seconds.
        rng: Random generator for waits and for the ids of new intents.
    """
    return Decider(situation, listing, memory, config, owner, now_s, rng).actions()


def ending_of(intent: Intent, vm: VmSeen | None) -> tuple[Ending, str]:
    """Kind and reason of the end of an intent whose VM is gone: as recorded, else as the cloud reports."""
    if intent.ending:
        return intent.ending, intent.reason
    words = vm.reason if vm is not None and vm.reason else "it no longer exists in the cloud"
    taken = any(sign in words.lower() for sign in ("preempt", "spotinstancetermination", "spot interruption"))
    return ("preempted" if taken else "died"), words


class Decider:
    """One decision; see `decide`."""

    def __init__(
        self,
        situation: RegionSnapshot,
        listing: act.Listing | None,
        memory: Memory,
        config: ProvisioningConfig,
        owner: str,
        now_s: float,
        rng: Random,
    ) -> None:
        self._situation, self._listing, self._memory, self._config = situation, listing, memory, config
        self._owner, self._now_s, self._rng = owner, now_s, rng
        self._specs = {spec.job_id: spec for spec in situation.fleets}
        self._vms = {vm.instance_id: vm for vm in listing.vms} if listing is not None else {}
        self._by_token = {
            vm.tags.token: vm for vm in self._vms.values() if vm.tags.token and vm.state != "gone"
        }
        for vm in self._vms.values():
            if vm.tags.token:
                self._by_token.setdefault(vm.tags.token, vm)
        self._least = {
            spec.job_id: {slot.number: slot.generation for slot in spec.slots} for spec in situation.fleets
        }
        self._accounts = {job_id: Account(situation, job_id, config) for job_id in self._specs}
        self._broke = {key for key, one in self._specs.items() if self._accounts[key].is_over(one)}
        self._none_heard = self._is_silence_ours()

    def actions(self) -> tuple[act.Action, ...]:
        """All actions that are due, within the limits of one look."""
        found: list[act.Action] = []
        for intent in self._situation.intents:
            found += self._of_intent(intent)
        found += self._sweeps()
        found += self._quarantine()
        found += self._creates()
        found += self._alarms()
        found.sort(key=lambda action: _ORDER.index(type(action)))
        return tuple(self._bounded(found))

    def _bounded(self, actions: list[act.Action]) -> Iterator[act.Action]:
        counts: Counter[str] = Counter()
        free = self._memory.is_due(THROTTLE, self._now_s)
        for action in actions:
            if isinstance(action, CALLS):
                launch = isinstance(action, _LAUNCHES)
                if not free or counts["call"] >= self._config.look.calls_max:
                    continue
                if launch and counts["launch"] >= self._config.look.creates_max:
                    continue
                counts["call"] += 1
                counts["launch"] += launch
            yield action

    # ---- one intent ----------------------------------------------------------------------------------------

    def _of_intent(self, intent: Intent) -> Iterator[act.Action]:
        memory, config = self._memory, self._config
        vm = self._vms.get(intent.instance_id) if intent.instance_id else self._by_token.get(intent.id)
        if vm is not None and vm.state == "gone":
            yield act.MarkGone(intent, *ending_of(intent, vm), vm)
            return
        queued = vm is not None and vm.queued and intent.state == "PLAN"
        if vm is not None and not intent.instance_id and not queued:
            yield act.Adopt(intent, vm)
            return
        missing = self._listing is not None and vm is None and intent.instance_id
        if missing and memory.is_due(("look", intent.id), self._now_s):
            yield act.PollVm(intent)
            return
        if intent.state != "DELETING" and vm is not None and vm.state == "stopping":
            yield act.Drain(intent, *ending_of(intent, vm))  # it ends without a request, so it counts as lost
        elif intent.state != "DELETING" and (ending := self._why_not(intent)) is not None:
            if intent.asked:
                yield act.Drain(intent, *ending)
            else:
                yield act.MarkGone(intent, *ending, never=True)
        elif intent.state == "DELETING":
            yield from self._on_deleting(intent)
        elif intent.state == "PLAN":
            if memory.is_due(("launch", intent.id), self._now_s) and memory.is_due(DENIED, self._now_s):
                yield act.Retry(intent)
        elif self._may_live(intent) and memory.is_due(("renew", intent.id), self._now_s):
            yield act.ExtendLife(intent)
        if intent.state == "DELETING" and memory.times(("terminate", intent.id)) >= config.alarm_after:
            yield act.Alarm(
                "undeletable", intent.id, f"{intent} cannot be ended, and may still cost money; still trying"
            )

    def _on_deleting(self, intent: Intent) -> Iterator[act.Action]:
        if intent.instance_id:
            if self._memory.is_due(("terminate", intent.id), self._now_s):
                yield act.Terminate(intent)
        elif self._listing is not None:
            asked_s = self._memory.attended_s - self._memory.age_s("intent", intent.id)
            if self._listing.began_s - asked_s >= self._config.settle_s:
                # what is billed counts from the launch on; longer gaps without a process count as `life_s`
                shown_s = min(self._config.remembers_s, self._config.vm.life_s)
                never = intent.charges.billed_s < shown_s
                yield act.MarkGone(intent, *ending_of(intent, None), never=never)

    def _why_not(self, intent: Intent) -> tuple[Ending, str] | None:
        """Why this VM is to end; None if it is to stay."""
        spec = self._specs.get(intent.job_id)
        if spec is None:
            return "unwanted", "its job has ended"
        least = self._least[intent.job_id].get(intent.slot)
        if least is None:
            return "unwanted", "its slot is not wanted any more"
        if intent.generation < least:
            return "unwanted", "its slot is to have another VM"
        if intent.job_id in self._broke:
            return "budget", f"the budget of {money(spec.budget_usd)} is used up"
        waited_s = self._config.vm.register_s
        if intent.state == "PLAN":
            if self._memory.age_s("intent", intent.id) < waited_s or intent.id in self._memory.queued:
                return None
            return "unanswered", f"its launch was not answered for {waited_s:g} s"
        waited_s = min(waited_s, spec.register_s)
        if not intent.acks and self._memory.age_s("intent", intent.id) >= waited_s:
            return "never_joined", f"it was up for {waited_s:g} s and did not join"
        if (words := self._memory.impaired.get(intent.instance_id)) and self._memory.unheard([intent]):
            return "died", words
        if intent.acks and not self._none_heard and self._is_silent(intent):
            return "silent", f"nothing was heard of it for {self._config.vm.silence_s:g} s"
        return None

    def _is_silent(self, intent: Intent) -> bool:
        return self._memory.age_s("acks", intent.id) >= self._config.vm.silence_s

    def _is_silence_ours(self) -> bool:
        """Whether all VMs are silent at once, so that the fault is probably in Scavenger's own network.

        Not of a VM that is alone: what ran there has ended itself by now (`VmLimits.silence_s`).
        """
        joined = [intent for intent in self._situation.intents if intent.state == "UP" and intent.acks]
        silent = [intent.id for intent in joined if self._is_silent(intent)]
        return len(joined) > 1 and is_none_heard(silent, joined)

    def _is_driven(self, job_id: str) -> bool:
        return self._memory.age_s("pulse", job_id) < self._config.vm.pulse_s

    def _may_live(self, intent: Intent) -> bool:
        return bool(intent.acks) and not self._is_silent(intent) and self._is_driven(intent.job_id)

    # ---- the sweep -----------------------------------------------------------------------------------------

    def _sweeps(self) -> Iterator[act.Action]:
        living = {intent.id: intent for intent in self._situation.intents}
        for vm in self._vms.values():
            if vm.tags.owner != self._owner or vm.state == "gone":
                continue
            if vm.tags.slot == LEADER_SLOT and vm.tags.token not in living:
                continue  # the one that this runs on, which is on the record of the command that has rented it
            age_s, intent = self._memory.age_s("vm", vm.instance_id), living.get(vm.tags.token)
            if intent is not None and intent.instance_id in ("", vm.instance_id):
                continue
            if age_s < self._config.visibility_s:
                continue
            if intent is not None:
                reason = f"intent {intent.id} has another VM, {intent.instance_id}"
            elif vm.tags.token in self._situation.ended:
                reason = f"intent {vm.tags.token} has ended"
            elif self._situation.restored:
                yield act.Alarm(
                    "unknown_vm",
                    vm.instance_id,
                    f"VM {vm.instance_id} in {vm.zone} is in quarantine: the store, which was restored from a backup, "
                    "does not know it; `scavenger gc --quarantined` ends it",
                )
                continue
            elif age_s < self._config.vm.quarantine_s:
                yield act.Alarm(
                    "unknown_vm",
                    vm.instance_id,
                    f"VM {vm.instance_id} in {vm.zone} has the tags of this installation, but the store knows nothing "
                    f"of it; it is ended in {self._config.vm.quarantine_s - age_s:.0f} s, or at once by `scavenger gc`",
                )
                continue
            else:
                reason = "the store knows nothing of it"
            if self._memory.is_due(("terminate", vm.instance_id), self._now_s):
                yield act.Sweep(vm, reason)
            if self._memory.times(("terminate", vm.instance_id)) >= self._config.alarm_after:
                message = (
                    f"VM {vm.instance_id} in {vm.zone} belongs to no job and cannot be ended; still trying"
                )
                yield act.Alarm("undeletable", vm.instance_id, message)

    def _quarantine(self) -> Iterator[act.Action]:
        """The VMs that a restored store does not know, whenever the cloud has listed its VMs."""
        if self._situation.restored and self._listing is not None:
            known = {intent.id for intent in self._situation.intents} | self._situation.ended
            yield act.Quarantine(
                tuple(
                    vm
                    for vm in self._listing.vms
                    if vm.tags.owner == self._owner and vm.state != "gone" and vm.tags.token not in known
                )
            )

    # ---- vacant slots --------------------------------------------------------------------------------------

    def _creates(self) -> Iterator[act.Action]:
        """Launches of all jobs, taken in turn, so that no job waits for all launches of another."""
        jobs = list(self._specs.values())
        self._rng.shuffle(jobs)
        turns = zip_longest(*(list(self._of_job(spec)) for spec in jobs))
        return (action for action in chain.from_iterable(turns) if action is not None)

    def _of_job(self, spec: FleetSpec) -> Iterator[act.Action]:
        job_id, memory = spec.job_id, self._memory
        living = [intent for intent in self._situation.intents if intent.job_id == job_id]
        staying = [intent for intent in living if intent.state != "DELETING"]
        filled = {intent.slot for intent in staying}
        vacant = [slot for slot in spec.slots if slot.number not in filled]
        if not (vacant and spec.launches) or job_id in self._broke or not self._is_driven(job_id):
            return
        if (alarm := self._loop(spec)) is not None:
            yield alarm
            return
        if not all(memory.is_due(key, self._now_s) for key in (("create", job_id), DENIED)):
            return
        past = self._situation.past.get(job_id, IntentHistory())
        if past.drained:  # what ending them gave back would pay for a start and little more
            yield act.Alarm("budget", job_id, f"the budget of {money(spec.budget_usd)} is used up")
            return
        left_usd = spec.budget_usd - self._accounts[job_id].committed_usd
        room = spec.vms_max - len(living)
        reported: set[tuple[PlacementOption, ...]] = set()
        for number, slot in enumerate(vacant):
            options = spec.options_of(slot)
            near = near_first(options, staying)
            option = next((one for one in near if memory.is_open(one, self._now_s)), None)
            # also while one of them is tried again: until a launch succeeds, there is none to be had
            if options not in reported and all(
                memory.bars(one) or memory.is_sold_out(one) for one in options
            ):
                reported.add(options)
                yield self._no_option(job_id, options)
            if option is None or number >= room:  # what is wanted in vain is told in any case
                continue
            intent = self._intent(
                spec, option, slot.number, max(past.generations.get(slot.number, -1) + 1, slot.generation)
            )
            left_usd -= intent.charges.reserved_usd
            if left_usd < self._accounts[job_id].tick_usd(option.usd_per_hour):
                yield act.Alarm(
                    "unaffordable",
                    job_id,
                    f"the rest of the budget of {money(spec.budget_usd)} does not carry another {option} "
                    f"to its end ({money(intent.charges.reserved_usd)})",
                )
                return
            staying.append(intent)
            yield act.Create(intent)

    def _intent(self, spec: FleetSpec, option: PlacementOption, slot: int, generation: int) -> Intent:
        token = str(UUID(int=self._rng.getrandbits(128), version=4))
        request = VmRequest(
            tags=VmTags(self._owner, token, spec.job_id, slot, generation),
            vm=option.vm,
            zone=option.zone,
            spot=option.spot,
            template=spec.template,
            life_s=self._config.vm.life_s,
            usd_per_hour_max=option.price_usd_per_hour if option.spot else None,
        )
        return Intent(
            request=request,
            provider=spec.provider,
            region=spec.region,
            charges=VmCharges(
                option.price_usd_per_hour,
                reserve_usd(option.usd_per_hour, spec.drain_s, self._config),
                extras=option.extras,
            ),
            attempt=spec.attempt,
        )

    def _loop(self, spec: FleetSpec) -> act.Alarm | None:
        """An alarm if so many VMs ended before they joined that further launches would only cost money."""
        health = self._situation.past.get(spec.job_id, IntentHistory()).health[: self._config.crash_loop.vms]
        bad = sum(not joined for joined in health)
        if bad < self._config.crash_loop.deaths_min or bad <= self._config.crash_loop.share_max * len(health):
            return None
        return act.Alarm(
            "loop",
            spec.job_id,
            f"{bad} of the last {len(health)} VMs ended before they joined: no more are started; look at their image "
            "and start-up log, then resume the job",
        )

    def _no_option(self, job_id: str, wanted: Sequence[PlacementOption]) -> act.Alarm:
        barred = [self._memory.bars(option) for option in wanted]
        if all(barred):
            by_quota = all(self._memory.has_no_quota(option) for option in wanted)
            return act.Alarm(
                "no_quota" if by_quota else "no_placement",
                job_id,
                f"no more VMs can be had: {'; '.join(dict.fromkeys(barred))}",
            )
        left = [option for option, bar in zip(wanted, barred, strict=True) if not bar]
        return act.Alarm(
            "sold_out",
            job_id,
            f"sold out, to be tried again later: {_in_zones(left)}; what may help: {_instead(left)}",
        )

    # ---- what a person should know -------------------------------------------------------------------------

    def _alarms(self) -> Iterator[act.Alarm]:
        memory = self._memory
        for job_id, spec in self._specs.items():
            if spec.slots and self._has_living(job_id) and self._accounts[job_id].is_near(spec):
                yield act.Alarm(
                    "budget",
                    job_id,
                    f"the budget of {money(spec.budget_usd)} is about to be used up: its VMs end in "
                    f"{spec.drain_s:g} s",
                )
        for barred, words in memory.barred.items():
            about = " ".join(str(part) for part in barred[1:])
            yield act.Alarm("quota" if barred[0] == "quota" else "refused", about, words)
        for what, words in memory.denied.items():
            yield act.Alarm("credentials", what, words)
        if memory.times(("list",)) >= self._config.alarm_after:
            yield act.Alarm(
                "blind", self._owner, "the cloud does not list its VMs: what runs there cannot be seen"
            )
        if self._none_heard:
            yield act.Alarm(
                "silence",
                self._owner,
                "all VMs fell silent at once; those that cannot be reached end themselves",
            )

    def _has_living(self, job_id: str) -> bool:
        return any(intent.job_id == job_id for intent in self._situation.intents)


def _in_zones(options: Sequence[PlacementOption]) -> str:
    """Placement options in a few words: the zones of each VM type."""
    zones: dict[str, list[str]] = {}
    for option in options:
        zones.setdefault(f"{option.vm}{' (spot)' if option.spot else ''}", []).append(option.zone)
    return "; ".join(f"{kind} in {', '.join(names)}" for kind, names in zones.items())


def _instead(options: Sequence[PlacementOption]) -> str:
    """What a user can change in the job file to get VMs when all of these are sold out."""
    ways = ["other VM types (resources.any_of)"]
    if all(option.spot for option in options):
        ways.append("on-demand VMs (spot: auto)")
    if len({option.zone for option in options}) == 1:
        ways.append("other zones (infra without a zone)")
    return f"{', '.join(ways)}, or another region (infra)"
