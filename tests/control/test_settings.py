"""The settings file says where VMs are and what they may do; what is wrong in it is refused with its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from scavenger.cloud.aws.identity import AwsIdentity
from scavenger.cloud.gcp.identity import GcpIdentity
from scavenger.control.job_file.load import parse_job
from scavenger.control.provisioning.providers import open_verifier, project_of
from scavenger.control.settings import load_settings, parse_settings, settings_of, settings_path
from scavenger.domain.infra import Infra
from scavenger.domain.vm import VmSettings
from scavenger.domain.vm_settings import AwsSettings, GcpSettings
from scavenger.errors import ConfigurationError, JobFileError

FILE = """\
[aws]
vpc = "vpc-0a1b2c3d"
subnets = ["subnet-0a1b2c3d", "subnet-0e4f5a6b"]
security_groups = ["sg-0a1b2c3d"]
public_address = false
instance_profile = "scavenger-vms"
kms_key = "alias/training"
proxy = "http://proxy.example:3128"

[aws.tags]
team = "vision"

[gcp]
project = "a-project"
network = "training"
subnetwork = "projects/host-project/regions/us-central1/subnetworks/training"
network_tags = ["training"]
public_address = false
service_account = "vms@a-project.iam.gserviceaccount.com"
kms_key = "projects/a-project/locations/us/keyRings/ring/cryptoKeys/key"
labels = {team = "vision"}
"""


def test_every_setting_reaches_the_launch() -> None:
    settings = parse_settings(FILE, path="config.toml")

    assert settings.aws.launch_settings() == VmSettings(
        network="vpc-0a1b2c3d",
        subnets=("subnet-0a1b2c3d", "subnet-0e4f5a6b"),
        firewalls=("sg-0a1b2c3d",),
        public_address=False,
        identity="scavenger-vms",
        kms_key="alias/training",
        proxy="http://proxy.example:3128",
    )
    assert settings.gcp.launch_settings().identity == "vms@a-project.iam.gserviceaccount.com"
    assert settings.aws.vm_tags() == settings.gcp.vm_tags() == (("team", "vision"),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[aws]\nvpc = 'main'\n",
            "config.toml:2:1: aws.vpc must be the id of a VPC such as 'vpc-0a1b2c3d', not 'main'",
        ),
        ("[aws]\nsubnet = 'x'\n", "config.toml:2:1: unknown key 'subnet' in aws; did you mean 'subnets'?"),
        (
            "[kubernetes.pools.big]\nlabels = {pool = 'big'}\nusd_per_hour = 'much'\n",
            "config.toml:3:1: kubernetes.pools.big.usd_per_hour must be US dollars above 0 and at most 1000",
        ),
        (
            "[kubernetes.pools.big]\nlabels = {pool = 'big'}\n",
            "config.toml:1:2: kubernetes.pools.big has no usd_per_hour",
        ),
        (
            "[kubernetes.pools.big]\nlabels = {pool = 'big'}\nusd = 1.0\nusd_per_hour = 1.0\n",
            "config.toml:3:1: unknown key 'usd' in kubernetes.pools.big",
        ),
        ("[azure]\n", "config.toml:1:2: unknown key 'azure'; known are service, notify, pool, aws, gcp"),
        (
            "[aws]\nsubnets = [\n 'subnet-0a1b2c3d',\n 'x']",
            "config.toml:2:1: aws.subnets[1] must be the id of a subnet such as 'subnet-0a1b2c3d', not 'x'",
        ),
        (
            "aws.subnets = ['subnet-0a1b2c3d', 'subnet-0a1b2c3d']",
            "config.toml:1:1: aws.subnets[1] is there twice; remove one",
        ),
        (
            "[gcp]\npublic_address = 'no'",
            "config.toml:2:1: gcp.public_address must be true or false, not 'no'",
        ),
        ("[gcp]\n[gcp.labels]\nteam = 3", "config.toml:3:1: gcp.labels.team must be a text in quotes, not 3"),
        ("[aws]\nproxy = 'http://me:secret@p:1'", "must be the URL of a proxy without a password"),
        ("[aws]\ntags = {scavenger-owner = 'me'}", "must have another key"),
        ("[aws\n", "config.toml:1:5: this is not TOML: Expected ']'"),
        ("[aws]\nvpc = 1\nkms_key = 2\n", "(and 1 more)"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place_and_what_to_write(text: str, told: str) -> None:
    with pytest.raises(JobFileError) as refused:
        parse_settings(text, path="config.toml")

    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value) or "password" in told


def environment(path: Path | None) -> Mapping[str, str]:
    return {} if path is None else {"SCAVENGER_CONFIG": str(path)}


def test_without_a_file_everything_is_the_cloud_s_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    assert settings_path({}) == tmp_path / "scavenger" / "config.toml"
    assert load_settings({}) == parse_settings("", path="config.toml")
    assert settings_of(Infra("aws", "us-east-1"), {}).launch_settings() == VmSettings()
    assert settings_of(Infra(), {}).vm_tags() == ()
    with pytest.raises(JobFileError, match="cannot be read"):
        load_settings(environment(tmp_path / "missing.toml"))


JOB = "version: 1\nname: x\ntrain: train:job\ngoal: {max_epochs: 1}\ninfra:\n"


def test_a_job_s_own_keys_replace_those_of_the_file_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    job = parse_job(
        JOB + "  at: aws/us-east-1a\n  subnets: [subnet-11111111]\n  public_address: true\n", path="job.yaml"
    )

    settings = settings_of(job.infra, environment(path))

    assert (job.infra.provider, job.infra.zone) == ("aws", "us-east-1a")
    assert isinstance(settings, AwsSettings)
    assert settings.subnets == ("subnet-11111111",)
    assert settings.public_address is True
    assert settings.instance_profile == "scavenger-vms"
    assert type(job).model_validate(job.written()) == job, "what was written is read again"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("  subnets: [subnet-11111111]\n", "infra must say where under the key 'at'"),
        (
            "  at: local\n",
            "infra must be at one of aws, gcp, kubernetes, ssh to have settings of VMs, not at local",
        ),
        ("  at: gcp/us-central1\n  vpc: vpc-0a1b2c3d\n", "job.yaml:7:3: unknown key 'vpc'"),
        (
            "  at: aws/us-east-1\n  subnets: [main]\n",
            "job.yaml:7:13: infra.subnets[0] must be the id of a subnet",
        ),
    ],
)
def test_a_job_s_own_keys_are_refused_as_others_of_the_job_file(keys: str, told: str) -> None:
    with pytest.raises(JobFileError) as refused:
        parse_job(JOB + keys, path="job.yaml")

    assert told in str(refused.value)


def test_the_project_is_that_of_the_environment_or_else_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    assert project_of(environment(path)) == "a-project"

    path.write_text("[gcp")
    named = {**environment(path), "GOOGLE_CLOUD_PROJECT": "another"}
    assert project_of(named) == "another", "a fault in the file keeps nobody from ending VMs"
    with pytest.raises(JobFileError):
        project_of(environment(path))
    path.write_text("")
    with pytest.raises(ConfigurationError, match=r"GOOGLE_CLOUD_PROJECT, or gcp\.project in .*config\.toml"):
        project_of(environment(path))


def test_who_verifies_vms_follows_from_the_settings(tmp_path: Path) -> None:
    pytest.importorskip("google.auth")
    aws, gcp = Infra("aws", "us-east-1"), Infra("gcp", "us-central1")
    file = tmp_path / "certificates.json"
    with_account = GcpSettings(project="a-project", service_account="vms@x.iam.gserviceaccount.com")

    assert isinstance(open_verifier(aws, AwsSettings(), {}), AwsIdentity)
    assert open_verifier(gcp, GcpSettings(project="a-project"), {}) is None, "such VMs get no proof"
    assert isinstance(open_verifier(gcp, with_account, {}), GcpIdentity)
    with pytest.raises(ConfigurationError, match="not certificates by key id"):
        open_verifier(gcp, with_account.model_copy(update={"identity_certificates": str(file)}), {})
    with pytest.raises(ConfigurationError, match="is not known"):
        open_verifier(Infra("aws", "xx-north-1"), AwsSettings(), {})
