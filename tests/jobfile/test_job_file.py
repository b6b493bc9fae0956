"""The job file: what is read, what is refused, and in which words."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.control.job_file.load import job_schema, load_job, override_job, parse_job
from scavenger.control.job_file.script_text import read_script
from scavenger.control.job_file.yaml_loader import BYTES_MAX
from scavenger.domain.job import Amount, EntryPoint, Infra, Utility
from scavenger.errors import ConfigurationError, JobFileError

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.yaml"))
SMALLEST = "version: 1\nname: digits\ntrain: train:job\ngoal: {max_epochs: 3}\n"
FULL = """\
version: 1
name: digits-cnn
train: train:job
infra: gcp/us-central1-a
resources: {any_of: [e2-standard-4, {vm: e2-standard-8}]}
spot: auto
search: {strategy: partial, workers: 1..4, batch_size: {min: 64, max: 512}}
objective: {utility: -time_s}
constraints: {deadline: 1h30m, budget: $20}
goal: {metric: val_accuracy, target: 0.97, max_epochs: 60, epochs_hint: 12, mode: max}
profile: {steps: 30, max_cost: $0.50, max_time: 15m}
elastic: {min: 2, max: 8, straggler: replace, lr_scaling: linear}
checkpoint: {path: ./checkpoints, every: 250ms}
seed: 7
output: ./out
limits: {start: 5m, step: 90s, evaluation: 10m}
"""
SECONDS_MAX = 5.0
"""A hostile file must not hold the command up; the slowest one known takes a tenth of this."""


def refusal(text: str) -> JobFileError:
    with pytest.raises(JobFileError) as caught:
        parse_job(text, path="job.yaml")
    return caught.value


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_bad_file_is_refused_with_its_place_and_what_to_write(path: Path) -> None:
    expected = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# expect ")
    place, _, words = expected.partition(" ")

    with pytest.raises(JobFileError) as caught:
        load_job(path)

    assert words
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert words in caught.value.reason
    assert caught.value.exit_code == 2


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) > 80


def test_the_smallest_file_gets_the_documented_defaults() -> None:
    job = parse_job(SMALLEST, path="job.yaml")

    assert (job.version, job.name, job.train) == (1, "digits", EntryPoint("train", "job"))
    assert job.infra == Infra("local", "")
    assert job.resources is None
    assert (job.spot, job.objective, job.search.strategy) == ("never", "knee", "auto")
    assert job.worker_counts == (1, 2, 3, 4)
    assert job.batch_sizes == (32, 64, 128, 256)
    assert (job.constraints.deadline, job.constraints.budget) == (None, None)
    assert (job.goal.metric, job.goal.target, job.goal.max_epochs) == (None, None, 3)
    assert job.profile.steps == 20
    assert job.elastic_range == (1, 4)
    elastic = job.elastic
    assert (elastic.policy, elastic.efficiency, elastic.every_steps, elastic.add) == ("model", 0.1, 10, 1)
    assert (elastic.batch, elastic.batch_max, elastic.straggler) == ("strong", None, "none")
    assert (elastic.failures.per_host, elastic.failures.give_up) == (3, 5)
    assert (elastic.failures.window, elastic.failures.cooldown) == (600.0, 1800.0)
    assert (job.seed, job.output) == (0, "./.scavenger")
    assert (job.limits.start, job.limits.step, job.limits.evaluation) == (180.0, 60.0, None)


@pytest.mark.parametrize(
    ("sections", "compared", "reference"),
    [
        ("", True, 32),
        ("search: {batch_size: [8, 32, 64]}\n", True, 32),
        ("search: {batch_size: [64, 128]}\n", True, 64),
        ("search: {batch_size: 128}\n", False, 128),
    ],
)
def test_without_a_target_batch_sizes_are_compared_at_the_progress_of_the_jobs_own(
    sections: str, compared: bool, reference: int
) -> None:
    job = parse_job(SMALLEST + sections, path="job.yaml")
    assert (job.at_equal_progress, job.reference_batch_size) == (compared, reference)
    fixed = SMALLEST.replace("max_epochs: 3", "max_epochs: 3, epochs_fixed: true") + sections
    assert not parse_job(fixed, path="job.yaml").at_equal_progress
    goal = "goal: {metric: val_loss, target: 0.5, max_epochs: 3}"
    aimed = parse_job((SMALLEST + sections).replace("goal: {max_epochs: 3}", goal), path="job.yaml")
    assert not aimed.at_equal_progress
    with pytest.raises(JobFileError, match="goals without a target"):
        parse_job(SMALLEST.replace("{max_epochs: 3}", goal[6:-1] + ", epochs_fixed: true}"), path="job.yaml")


def test_every_form_of_a_full_file_is_understood() -> None:
    job = parse_job(FULL, path="job.yaml")

    assert job.infra == Infra("gcp", "us-central1-a")
    assert job.resources is not None
    assert job.resources.vms == ("e2-standard-4", "e2-standard-8")
    assert job.objective == Utility(utility="-time_s")
    assert (job.constraints.deadline, job.constraints.budget) == (5400.0, 20.0)
    assert (job.profile.max_cost, job.profile.max_time) == (0.5, 900.0)
    assert job.worker_counts == (2, 3, 4)
    assert job.batch_sizes == (64, 128, 256, 512)
    assert job.elastic_range == (2, 8)
    assert job.checkpoint is not None
    assert job.checkpoint.every == 0.25
    assert job.configuration_count == 3 * 4 * 2


def test_sizes_may_be_exact_or_least() -> None:
    job = parse_job(SMALLEST + "resources: {cpus: 4+, memory: 15.5}", path="job.yaml")

    assert job.resources is not None
    assert (job.resources.cpus, job.resources.memory) == (Amount(4, or_more=True), Amount(15.5))


@pytest.mark.parametrize("text", [SMALLEST, FULL])
def test_line_ends_and_a_byte_order_mark_change_nothing(text: str) -> None:
    job = parse_job(text, path="job.yaml")

    for variant in ("\ufeff" + text, text.replace("\n", "\r\n"), text.replace("\n", "\r"), "---\n" + text):
        assert parse_job(variant, path="job.yaml") == job


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_places_hold_for_every_kind_of_line_end_and_behind_a_byte_order_mark(end: str) -> None:
    error = refusal("\ufeff" + (SMALLEST + "spot: maybe\n").replace("\n", end))

    assert (error.line, error.column) == (5, 7)


def test_scalars_are_those_of_yaml_1_2() -> None:
    assert parse_job(SMALLEST + "seed: 010", path="job.yaml").seed == 10
    assert parse_job(SMALLEST + "seed: 0o10", path="job.yaml").seed == 8
    assert parse_job(SMALLEST + "output: on", path="job.yaml").output == "on"
    assert parse_job(SMALLEST + "output: 12:30:45", path="job.yaml").output == "12:30:45"


def test_control_characters_of_the_path_do_not_reach_the_terminal() -> None:
    with pytest.raises(JobFileError) as caught:
        parse_job("", path="a\x1b[31m\nb.yaml")

    assert str(caught.value) == "a\\x1b[31m\\nb.yaml:1:1: the file is empty; begin with version: 1"


def test_the_first_of_several_faults_is_reported_and_the_others_are_counted() -> None:
    error = refusal(SMALLEST + "spot: maybe\nseed: -1\nlimits: {step: 0}\nconstraints:\n")

    assert (error.line, error.column) == (5, 7)
    assert error.reason.endswith("(and 3 more)")


def test_a_missing_file_and_what_is_no_file_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "none.yaml", "there is no such file"),
        (tmp_path, "this is a folder; name its job file, as .*/job.yaml"),
        (tmp_path / "pipe", "this is not a regular file"),
        (Path("/dev/null"), "this is not a regular file"),
        (tmp_path / "x\0y", "the file cannot be read"),
    ):
        with pytest.raises(JobFileError, match=words):
            load_job(path)


def test_a_file_of_exactly_the_bound_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = SMALLEST + "#" * (BYTES_MAX - len(SMALLEST))
    path.write_text(text)
    assert load_job(path).name == "digits"

    path.write_text(text + "#")
    with pytest.raises(JobFileError, match="larger than 65536 bytes"):
        load_job(path)
    assert "65537 bytes" in refusal(text + "#").reason


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes("name: é\r\noutput: é".encode() + b"\xff")

    with pytest.raises(JobFileError, match="not UTF-8") as caught:
        load_job(path)

    assert (caught.value.line, caught.value.column) == (2, 10)


def test_an_override_changes_its_value_alone() -> None:
    job = parse_job(SMALLEST, path="job.yaml")

    changed = override_job(job, {"constraints.budget": "$5", "objective": "cost", "search.strategy": None})

    assert (changed.constraints.budget, changed.objective) == (5.0, "cost")
    assert changed.model_copy(update={"constraints": job.constraints, "objective": "knee"}) == job
    assert job.constraints.budget is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"constraints.budget": "lots"}, "constraints.budget must be US dollars"),
        ({"objective": "kost"}, "did you mean 'cost'?"),
        ({"constraints.deadlin": "8h"}, "did you mean 'deadline'?"),
        ({"seed": "9" * 40}, "too large a number"),
        ({"objective": "cost", "objective.of": 1}, "objective holds no keys"),
        ({"elastic.min": 9}, "elastic.min leaves none of the cluster sizes"),
    ],
)
def test_a_bad_override_is_refused_in_the_words_of_the_job_file(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        override_job(parse_job(SMALLEST, path="job.yaml"), changes)


KEYS = [
    *job_schema()["properties"],
    "workers",
    "batch_size",
    "min",
    "max",
    "step",
    "vm",
    "any_of",
    "<<",
    "x y",
]
SCALAR_TEXTS = """
    1 0 -1 1..4 4..1 1.5 true null ~ .nan .inf 1e999 010 on 12:30:45 $20 8h 4+ local gcp/x train:job '3'
    "\\e" '' val_loss *a &a !x 99999999999999999999 [ } : é \x07
"""
SCALARS = SCALAR_TEXTS.split()


def rendered(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {rendered(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(rendered, value)) + "]"
    return str(value)


structures = st.recursive(
    st.sampled_from(SCALARS),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.sampled_from(KEYS), children, max_size=4)
    ),
    max_leaves=12,
)
edits = st.lists(
    st.tuples(
        st.integers(0, len(FULL)),
        st.integers(0, 12),
        st.sampled_from(SCALARS)
        | st.sampled_from(["\n", "\t", "  ", "\r", "{", "]", '"', "- ", "? ", "---\n", "\0"]),
    ),
    min_size=1,
    max_size=3,
)


def accepted_or_refused_in_one_line(text: str) -> None:
    started = time.process_time()
    refused = None
    try:
        parse_job(text, path="job.yaml")
    except JobFileError as error:
        refused = error
    assert time.process_time() - started < SECONDS_MAX
    if refused is not None:
        message = str(refused)
        assert message.isprintable()
        assert len(message) < 500
        assert "Input should" not in message
        assert refused.line is not None
        assert refused.column is not None
        lines = re.split(r"\r\n|\r|\n", text)
        assert 1 <= refused.line <= len(lines)
        assert 1 <= refused.column <= len(lines[refused.line - 1]) + 1


@examples(60)
@given(st.text(max_size=300) | st.text(alphabet="a:-?[]{}&*!|>'\"%@`#,\n\t \\<.0\x1b\u2028é", max_size=120))
def test_any_text_is_accepted_or_refused_in_one_line(text: str) -> None:
    accepted_or_refused_in_one_line(text)


@examples(60)
@given(st.dictionaries(st.sampled_from(KEYS), structures, max_size=6))
def test_any_structure_is_accepted_or_refused_in_one_line(document: dict[str, object]) -> None:
    required = {"version": 1, "name": "digits", "train": "train:job", "goal": {"max_epochs": 3}}
    merged = {**required, **document}
    accepted_or_refused_in_one_line("\n".join(f"{key}: {rendered(value)}" for key, value in merged.items()))


@examples(60)
@given(edits)
def test_any_damage_to_a_good_file_is_accepted_or_refused_in_one_line(
    damage: list[tuple[int, int, str]],
) -> None:
    text = FULL
    for position, length, replacement in damage:
        text = text[:position] + replacement + text[position + length :]
    accepted_or_refused_in_one_line(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 65_000,
        "[[[[\n" * 13_000,
        "{a: 1," * 10_000,
        "- " * 32_000,
        "a: {\n" * 13_000,
        "? " * 32_000,
        "a: [" + "1," * 32_000 + "]",
        "\n".join(f"k{i}: 1" for i in range(6_500)),
        "a: " + "x" * 65_000,
        "x" * 65_000 + ": 1",
        "a: '" + "\n x" * 21_000,
        'a: "' + "\\x41" * 16_000 + '"',
        "a: |\n" + " x\n" * 21_000,
        "a: " + "9" * 65_000,
        SMALLEST + "search: {workers: [" + ",".join(map(str, range(1, 12_000))) + "]}",
        SMALLEST + "train: " + "a." * 30_000,
        SMALLEST + "limits: {step: " + "1" * 60_000 + "}",
    ],
    ids=lambda text: f"{text[:8]!r}",
)
def test_files_made_to_exhaust_the_parser_are_refused_soon(text: str) -> None:
    started = time.process_time()
    refusal(text)

    assert time.process_time() - started < SECONDS_MAX


SKY = "resources: {accelerators: 'A100:8'}\nsetup: pip install torch\nrun: |\n  cd code\n  python train.py\n"
DSTACK = "type: task\ncommands:\n  - pip install torch\n  - python train.py\nenv:\n  - A=${{ secrets.a }}\n"
GOOD = "version: 1\nname: a\ntrain: train:job\ngoal: {max_epochs: 3}\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "job.yaml",
            SKY,
            "1:1: this looks like a file of SkyPilot, not a job file: .* docs/coming-from.md says",
        ),
        ("job.yaml", DSTACK, "1:1: this looks like a file of dstack"),
        (
            "job.yaml",
            GOOD.replace("train: train:job", "run: |\n  a\n  b"),
            "3:6: holds several lines; write one",
        ),
        (
            "job.yaml",
            GOOD.replace("train:job", "train.ipynb"),
            "3:8: train must be .* or a script such as train.py",
        ),
        ("job.yaml", "", "1:1: the file is empty; begin with version: 1"),
        ("job.yaml", GOOD.replace("{", "\n\t{"), "a tab can neither indent nor begin a value; use spaces"),
        ("jobb.yaml", None, "there is no such file; did you mean job.yaml"),
        ("other.yaml", None, "there is no such file; `scavenger init` writes one"),
        ("train.ipynb", "{}", "this is a notebook; `jupyter nbconvert --to script .*` writes .*train.py"),
    ],
)
def test_a_first_input_that_is_no_job_file_is_told_in_one_line_with_what_to_do(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    path = tmp_path / name
    if content is None:
        (tmp_path / "job.yaml").write_text(GOOD)
    else:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=words) as refused:
        load_job(path)
    assert str(refused.value).startswith(str(path))
    assert len(str(refused.value).splitlines()) == 1


def test_line_ends_of_windows_and_a_mark_of_the_byte_order_change_nothing(tmp_path: Path) -> None:
    plain, windows = tmp_path / "plain.yaml", tmp_path / "windows.yaml"
    plain.write_text(GOOD)
    windows.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_job(windows) == load_job(plain)
    windows.write_bytes(GOOD.replace("version", "vresion").replace("\n", "\r\n").encode())
    with pytest.raises(
        JobFileError, match=r"windows.yaml:1:1: unknown key 'vresion'; did you mean 'version'"
    ):
        load_job(windows)


def test_a_script_that_is_none_is_told_in_one_line_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("# nothing yet\n")
    (tmp_path / "code.py").mkdir()
    for name, words in (
        ("train.py", "the script is empty"),
        ("tran.py", "there is no such file; did you mean train.py"),
        ("code.py", "this is a folder; name the script in it"),
        ("train.ipynb", "this is a notebook"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            read_script(tmp_path / name)
