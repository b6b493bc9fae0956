"""How far VMs are on their way, how long that usually takes, and why they do not come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from made_intents import made_intent

from scavenger.domain.intent import Intent, PlacementOption, VmTimes
from scavenger.policy.provisioning.boot_failures import BootFailure, diagnose, last_words, repeated
from scavenger.policy.provisioning.boots import (
    ESTIMATE_S,
    BootEvidence,
    BootSeen,
    UsualBoot,
    phase_of,
    progress_line,
    reaches,
    register_limit_s,
    usual_boot,
)
from scavenger.policy.provisioning.slots import aggregator_slot

HERE = PlacementOption("small", "a", False, 0.1)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
ENDPOINT = "tcp://203.0.113.7:7000"


def intent(slot: int = 0, *, took_s: float | None = None, image: str = "", region: str = "r") -> Intent:
    joined = None if took_s is None else BEGAN + timedelta(seconds=took_s)
    return made_intent(
        {
            "token": f"intent-{slot}",
            "slot": slot,
            "run_max_s": 1e6,
            "user_data": "",
            "image": image,
            "disk_gib": 20,
            "labels": (),
            "life_s": 900.0,
        },
        provider="fake",
        region=region,
        price_usd_per_hour=0.1,
        reserved_usd=0.0,
        times=VmTimes(created_at=BEGAN, joined_at=joined),
    )


def vm(
    slot: int = 0, *, joined: bool = False, age_s: float = 30.0, state: str = "", console: str = ""
) -> BootSeen:
    return BootSeen(intent(slot), joined, age_s, BootEvidence(state, "", console))


class TestUsualBoot:
    def test_without_a_history_it_is_an_estimate(self) -> None:
        usual = usual_boot([intent()], provider="fake", region="r", image="")

        assert usual == UsualBoot(ESTIMATE_S, 0)
        assert str(usual) == "about 3 min"

    def test_it_is_the_median_of_the_latest_with_the_same_image_in_the_same_region(self) -> None:
        history = [intent(took_s=1000.0)] * 5 + [
            intent(took_s=s) for s in (40, 41, 42, 43, 44, 45, 46, 47, 48)
        ]
        others = [intent(took_s=5.0, image="mine"), intent(took_s=5.0, region="other"), intent(took_s=-3.0)]

        usual = usual_boot(history + others, provider="fake", region="r", image="")

        assert usual == UsualBoot(44.5, 8)  # the clock was set back during one of the latest nine
        assert usual_boot(others, provider="fake", region="r", image="mine").seconds == 5.0

    def test_the_user_hears_of_a_late_vm_before_it_has_taken_thrice_the_usual_time(self) -> None:
        assert UsualBoot(60.0, 3).seconds < UsualBoot(60.0, 3).slow_s < 3 * 60.0

    @pytest.mark.parametrize(
        ("usual", "limit_s"),
        [
            (UsualBoot(), 600.0),
            (UsualBoot(50.0, 1), 200.0),
            (UsualBoot(3.0, 9), 120.0),
            (UsualBoot(400.0, 9), 600.0),
        ],
    )
    def test_a_vm_is_given_up_after_some_times_of_what_is_usual(
        self, usual: UsualBoot, limit_s: float
    ) -> None:
        assert register_limit_s(usual, 600.0) == limit_s
        assert register_limit_s(usual, 600.0) > min(usual.slow_s, 599.0)


class TestPhases:
    @pytest.mark.parametrize(
        ("seen", "phase"),
        [
            (vm(), "asked"),
            (vm(state="pending"), "asked"),
            (vm(state="running", console="[ 0.0] Linux version"), "running"),
            (vm(state="running", console="[   31.2] cloud-init[811]: scavenger: booting"), "booting"),
            (vm(console="scavenger: booting\nscavenger: installing scavenger-ml"), "installing"),
            (vm(joined=True), "joined"),
        ],
    )
    def test_what_shows_how_far_a_vm_is(self, seen: BootSeen, phase: str) -> None:
        assert phase_of(seen) == phase

    def test_a_line_has_every_vm_the_furthest_first(self) -> None:
        vms = [vm(0, joined=True, age_s=48.0), vm(2), vm(1, age_s=130.0), vm(3, state="running")]

        assert progress_line(vms, rest=2) == (
            "aggregators joined (48 s), VM 3 running (30 s), VM 1, 2 asked (2 min), 2 more to follow"
        )
        assert progress_line([vm(slot) for slot in range(40)]) == "40 VMs asked (30 s)"

    def test_several_aggregator_vms_are_told_apart(self) -> None:
        second = aggregator_slot(1)
        vms = [vm(0, joined=True, age_s=48.0), vm(second, age_s=50.0), vm(1, age_s=2.0)]

        assert progress_line(vms) == "aggregators 1 joined (48 s), aggregators 2 and VM 1 asked (50 s)"
        assert progress_line([vm(0), vm(second)]) == "aggregators 1, 2 asked (30 s)"
        assert [one.title for one in vms] == ["the aggregators' VM", "aggregator VM 2", "VM 1"]

    def test_one_that_joined_or_reached_its_coordinator_proves_that_others_can(self) -> None:
        assert not reaches([vm(), vm(console="scavenger: no answer from its coordinator at x: timed out")])
        assert reaches([vm(), vm(console="scavenger: reaches its coordinator")])
        assert reaches([vm(joined=True)])


PIP = """scavenger: installing scavenger-ml==9.9
ERROR: Could not find a version that satisfies the requirement scavenger-ml==9.9 (from versions: none)
ERROR: No matching distribution found for scavenger-ml==9.9
scavenger: trying again in 80 s
scavenger: Scavenger cannot be installed; this VM ends
"""


class TestFailures:
    @pytest.mark.parametrize(
        ("reason", "console", "cause", "words"),
        [
            ("", PIP, "package", "No matching distribution found for scavenger-ml==9.9"),
            ("", PIP + "No space left on device", "disk", "could not install"),
            ("", PIP + "Temporary failure in name resolution", "index", "could not install"),
            (
                "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
                "scavenger: booting\nscavenger: no answer from its coordinator at 203.0.113.7:7000: timed out",
                "unreachable",
                "cannot reach this machine at 203.0.113.7:7000 (timed out)",
            ),
            (
                "",
                "scavenger: the coordinator refuses it: it has Scavenger 0.0.1",
                "refused",
                "it has Scavenger 0.0.1",
            ),
            ("", "scavenger: its time limit is not set; this VM ends", "image", "does not run boothooks"),
            ("", "[1.0] Kernel panic - not syncing: VFS", "image", "Kernel panic - not syncing: VFS"),
            (
                "Client.VolumeLimitExceeded: Volume limit exceeded",
                "",
                "VolumeLimitExceeded",
                "limit on the total size of disks",
            ),
            (
                "Server.InternalError: Internal error on launch",
                "",
                "Server.InternalError",
                "fault of its own",
            ),
            (
                "it was up for 600 s and did not join",
                "",
                "silent",
                "nothing to its console (it was up for 600 s",
            ),
            ("", "Debian GNU/Linux 12 login:", "silent", "has not begun"),
            ("it ended", "scavenger: booting", "unknown", "has not joined (it ended)"),
        ],
    )
    def test_a_sign_has_a_cause_and_a_fix(self, reason: str, console: str, cause: str, words: str) -> None:
        failure = diagnose(reason, console, endpoint=ENDPOINT, package="scavenger-ml==9.9")

        assert failure.cause == cause
        assert words in failure.words
        assert failure.fix
        assert "\n" not in failure.words + failure.fix

    def test_an_installation_that_fails_again_and_again_is_a_failure_before_it_is_given_up(self) -> None:
        console = "scavenger: installing x\n"
        for tries in range(1, 4):
            console += f"ERROR: no x\nscavenger: trying again in {5 * tries} s\n"
            assert (diagnose("", console, endpoint=ENDPOINT).cause == "package") == (tries == 3)
        console += "scavenger: the agent was started\n"
        assert diagnose("", console, endpoint=ENDPOINT).cause == "unknown"

    def test_one_that_reached_its_coordinator_later_did_not_fail_for_the_network(self) -> None:
        console = (
            "scavenger: no answer from its coordinator at x: timed out\nscavenger: reaches its coordinator\n"
        )

        assert diagnose("it ended", console, endpoint=ENDPOINT).cause == "unknown"

    def test_the_last_words_are_those_of_a_person(self) -> None:
        console = (
            "\x1b[0;32mOK\x1b[0m\r\n\n[   31.207] cloud-init[811]: scavenger: booting\n" + "y" * 500 + "\n\n"
        )

        assert last_words(console, 3)[:2] == ("OK", "scavenger: booting")
        assert len(last_words(console, 3)[2]) < 200
        assert last_words("\n\n") == ()

    def test_only_failures_by_the_same_cause_are_repeated(self) -> None:
        one, other = BootFailure("package", "x", "y"), BootFailure("image", "x", "y")

        assert repeated([one]) is None
        assert repeated([one, other]) is None
        assert repeated([one, other, one]) == one
