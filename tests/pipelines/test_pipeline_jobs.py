"""Jobs in Python as values: what they say is what a job file says, and what cannot be imported is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pipeline_code
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger import Client, Job
from scavenger.control.job_file.load import load_job, parse_job
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, JobFileError
from scavenger.masking import mask
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.process_configurations import ProcessConfigurations
from scavenger.train.transport.messages.values import ProcessConfiguration

HERE = Path(__file__).parent


def job(**options: Any) -> Job:
    return Job(pipeline_code.model, **{"data": pipeline_code.data, "goal": 5, **options})


def test_a_job_in_python_is_the_one_that_its_file_says(tmp_path: Path) -> None:
    made = job(
        goal={"metric": "val_loss", "target": 0.1, "max_epochs": 50},
        workers=range(1, 4),
        batch_size=[32, 64],
        objective="cost",
        budget=20,
        deadline="8h",
        params={"width": 8},
        settings={"profile.steps": 7},
    )
    file = tmp_path / "job.yaml"
    file.write_text(made.to_yaml())

    assert load_job(file) == made.spec
    assert parse_job(
        "{version: 1, name: pipeline-code, train: 'pipeline_code:model', data: 'pipeline_code:data',"
        " goal: {metric: val_loss, target: 0.1, max_epochs: 50}, search: {workers: [1, 2, 3], batch_size: [32, 64]},"
        " objective: cost, constraints: {budget: $20, deadline: 8h}, params: {width: 8}, profile: {steps: 7}}",
        path="job.yaml",
    ) == made.spec  # fmt: skip
    assert made.path.parent == HERE
    assert not made.is_file


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: job(worker=2), "Job has no argument worker; did you mean workers?"),
        (lambda: job(infra="aws"), "and other keys of a job file go into settings"),
        (lambda: Client(budgt="$20"), "Client has no argument budgt; did you mean budget?"),
        (
            lambda: Client().study("a", budgets=4),
            "Client.study has no argument budgets; did you mean budget?",
        ),
        (lambda: Client().plan("job.yaml"), r"this is str: write scavenger.Job.from_yaml('job.yaml')"),  # type: ignore[arg-type]
        (lambda: Client().plan("net.py"), "write scavenger.Job('net.py')"),  # type: ignore[arg-type]
        (lambda: Client().optimize(Path("job.yaml")), "write scavenger.Job.from_yaml('job.yaml')"),  # type: ignore[arg-type]
        (lambda: Client().run({}, workers=1, batch_size=8), "this is dict: write scavenger.Job(...)"),  # type: ignore[arg-type]
        (lambda: Client().submit(3), "this is int: write scavenger.Job(...)"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_with_what_was_meant(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        call()


def test_a_closed_client_answers_nothing_more(tmp_path: Path) -> None:
    client = Client(store=str(tmp_path / "a.sqlite"))
    client.close()
    client.close()

    asked: list[Callable[[], object]] = [lambda run=run: run(job()) for run in (client.plan, client.optimize)]
    asked += [
        lambda: client.submit(job()),
        lambda: client.run(job(), workers=1, batch_size=32),
        client.models,
    ]
    keyed = (
        client.result,
        client.curve,
        client.model,
        client.wait,
        client.running,
        client.resume,
        client.records,
    )
    asked += [lambda one=one: one("digits") for one in keyed]
    for ask in asked:
        with pytest.raises(ConfigurationError, match=r"^this client was closed; make another one$"):
            ask()


@pytest.mark.slow
def test_a_script_is_the_job_that_the_command_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "my_net.py").write_text(
        "import sys, keras, numpy as np\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(np.ones((40, 4)), np.ones(40), batch_size=8, epochs=int((*sys.argv, 4)[1]))\n"
        "raise SystemExit('what follows fit was run')\n"
    )
    made = Job("my_net.py 3", folder=tmp_path)

    file = tmp_path / "my_net.job.yaml"
    assert (made.name, made.path, made.is_file) == ("my-net", file, True)
    assert made.spec == load_job(file)
    assert (made.spec.goal.max_epochs, made.spec.search.batch_size) == (3, (8,))

    file.write_text(file.read_text() + "constraints: {budget: $7}\n")
    again = Job(
        tmp_path / "my_net.py", goal={"max_epochs": 5}, settings={"train": "my_net.py 4"}, name="other"
    )
    assert (again.name, again.spec.goal.max_epochs, again.spec.constraints.budget) == ("other", 5, 7.0)
    assert not again.is_file


def test_what_does_not_go_with_a_script_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    script, module = tmp_path / "net.py", tmp_path / "train.py"
    script.write_text("raise SystemExit('it was run')\nmodel.fit(x, epochs=3)")
    module.write_text("def job(): ...")
    (tmp_path / "digits.yaml").write_text("version: 1\ntrain: train:job\n")
    for options, words in (
        ({"params": {"rate": 0.1}}, "params does not go with a script, net.py; it stands behind the script"),
        ({"data": "net:data"}, "data does not go with a script, net.py; leave it out"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            Job("net.py", folder=tmp_path, **options)
    with pytest.raises(
        ConfigurationError, match=r"train.py calls no fit: it is the module of digits.yaml; give"
    ):
        Job("train.py", folder=tmp_path)
    with pytest.raises(ConfigurationError, match=r"a job has a goal; write goal=20"):
        Job("train:job", folder=tmp_path)
    with pytest.raises(ConfigurationError, match=r"job.yaml is a job file; write scavenger.Job.from_yaml"):
        Job("job.yaml", goal=3)
    assert not (tmp_path / "net.job.yaml").exists()


def test_a_job_of_a_file_is_that_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("{version: 1, name: a, train: 'train:job', goal: {max_epochs: 3}}")

    made = Job.from_yaml(file)

    assert (made.name, made.path, made.is_file) == ("a", file, True)
    with pytest.raises(JobFileError, match="no such file"):
        Job.from_yaml(tmp_path / "other.yaml")


def test_arguments_are_added_and_make_another_job_with_a_place_of_its_own() -> None:
    first = job(params={"width": 8})

    second = first.with_params(learning_rate=np.float64(0.5), sizes=(np.int64(1), 2))

    assert second.params == {"width": 8, "learning_rate": 0.5, "sizes": [1, 2]}
    assert first.params == {"width": 8}
    assert second.path != first.path
    assert second.path.parent == first.path.parent
    assert second.with_params() is second
    assert first.with_params(learning_rate=0.5, sizes=[1, 2]) == second
    assert first.with_settings({"search.workers": 2}).path == first.path


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.lists(st.integers(0, 9), max_size=3)
)


@given(st.dictionaries(st.sampled_from(["width", "learning_rate", "x_1", "_"]), VALUES))
def test_arguments_reach_the_workers_as_they_are(params: dict[str, Any]) -> None:
    spec = JobSpec.model_validate(msgspec.json.decode(msgspec.json.encode(job(params=params).spec.written())))
    source = JobSource("train:job", HERE, 0, 1, params=spec.params)
    sent = ProcessConfigurations(source, hub="hub", server_key=b"key").of("worker", "w0")
    read = msgspec.json.decode(msgspec.json.encode(sent), type=ProcessConfiguration)
    assert read.params == params
    other = ProcessConfigurations(source, hub="hub", server_key=b"key").of("aggregator", "a0")
    assert (other.params, other.train) == ({}, "")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"class": 1}, "must be a name that a Python function can have"),
        ({"a-b": 1}, "must be a name that a Python function can have"),
        ({"a": float("nan")}, "must be a number, a text"),
        ({"a": object()}, "must be a number, a text"),
        ({"a": "x" * 70_000}, "must be shorter than 65536 bytes"),
    ],
)
def test_arguments_that_a_job_file_cannot_have_are_refused(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        job(params=params)


class TestCodeThatCannotBeImported:
    def test_a_function_of_a_notebook(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cell: dict[str, Any] = {"__name__": "__main__"}
        exec("def model(): ...", cell)
        monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))

        with pytest.raises(
            ConfigurationError, match=r"model is defined in a notebook.*%%writefile train\.py"
        ) as found:
            Job(cell["model"], goal=5)
        assert found.value.code == "configuration"
        assert not found.value.retryable

    def test_a_function_of_a_script_is_imported_by_the_name_of_the_script(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        script = ModuleType("__main__")
        script.__file__ = str(tmp_path / "search.py")
        cell: dict[str, Any] = {"__name__": "__main__"}
        exec("def model(): ...", cell)
        monkeypatch.setitem(sys.modules, "__main__", script)

        made = Job(cell["model"], goal=5)
        assert str(made.spec.train) == "search:model"
        assert made.path.parent == tmp_path.resolve()

        script.__file__ = str(tmp_path / "my-search.py")
        with pytest.raises(ConfigurationError, match=r"my-search\.py cannot be imported"):
            Job(cell["model"], goal=5)

    def test_functions_inside_others(self) -> None:
        def inner() -> None: ...

        for code in (inner, lambda: None, print.__call__):
            with pytest.raises(ConfigurationError, match="must be a function of a module"):
                Job(code, goal=5)

    def test_a_function_of_a_package_is_named_from_above_it(self) -> None:
        made = Job(mask, goal=5)
        assert str(made.spec.train) == "scavenger.masking:mask"
        assert (made.path.parent / "scavenger" / "masking.py").is_file()

    def test_data_of_another_folder(self) -> None:
        with pytest.raises(ConfigurationError, match="put both into one folder"):
            Job(pipeline_code.model, data=mask, goal=5)  # type: ignore[arg-type]
