"""`Job`: what is to be trained, written in Python or read from a job file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scavenger.control.job_file.load import job_of, load_job, override_job
from scavenger.domain.job import JobSpec
from scavenger.domain.script import Script
from scavenger.errors import ConfigurationError
from scavenger.pipelines.arguments import named
from scavenger.presentation.formatting import clean

__all__ = ["Job"]

Sizes = int | str | Iterable[int] | Mapping[str, int]
"""Numbers of workers, or batch sizes: one, several, or as a job file has them (`1..4`, `{min: 32, max: 128}`)."""
Code = Callable[..., Any] | str | os.PathLike[str]
"""A function of a module file, or its place there, as `module:function`; or a script that calls `fit`."""
_MODULE_HINT = (
    "worker processes import it, so it must be in a module file: in a notebook, begin its cell with `%%writefile "
    "train.py`, and use `from train import ...` in the next one"
)


def check_is_job(job: object) -> None:
    """Check what a client is given to run.

    Raises:
        ConfigurationError: If it is not a `Job`, but the path of a job file, say.
    """
    if not isinstance(job, Job):
        hint = "scavenger.Job(...)"
        if isinstance(job, str | os.PathLike):
            hint = f"scavenger.Job{'' if _script_in(job) else '.from_yaml'}({str(job)!r})"
        raise ConfigurationError(
            f"a client runs jobs, and this is {type(job).__name__}: write {hint}", key="job"
        )


@dataclass(frozen=True, slots=True, init=False)
class Job:
    """A training job: the code, its data, the goal, and the ranges that are searched. A value: methods return another.

    Attributes:
        spec: The job as a job file has it.
        path: Where its job file is, or would be: next to the module of the code.
        is_file: Whether that file is there and has this content.
    """

    spec: JobSpec
    path: Path
    is_file: bool

    @named
    def __init__(
        self,
        train: Code | None = None,
        *,
        run: str | Mapping[str, Any] | None = None,
        goal: Mapping[str, Any] | int | None = None,
        data: Callable[[], Mapping[str, Any]] | str | None = None,
        name: str | None = None,
        workers: Sizes | None = None,
        batch_size: Sizes | None = None,
        objective: str | Mapping[str, Any] | None = None,
        budget: str | float | None = None,
        deadline: str | float | None = None,
        params: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        """A job in Python.

        Args:
            train: A function that returns a `scavenger.sdk.KerasJob`, or with `data`, a compiled model. It is imported
                by worker processes, so it is one of a module file, neither of a notebook nor inside another function;
                or `module:function`, of a module in `folder`; or a script there that calls `fit`, with its arguments,
                as `train.py --epochs 20`. The script is run as far as that, and its job file is written beside it and
                used, as by `scavenger optimize train.py`.
            run: Instead of `train`, a command that trains, in any framework, as in a job file; it runs in `folder`.
            goal: As in a job file, as `{"metric": "val_accuracy", "target": 0.97, "max_epochs": 60}`; a number is
                `max_epochs` alone. A script has one of its own: the epochs of its `fit`.
            data: A function of the same folder that returns the arguments of `KerasJob` besides the model, as
                `{"train": (x, y), "validation": (x_val, y_val)}`.
            name: Lower-case letters, digits and hyphens; by default made from the module's name.
            workers: Numbers of workers to consider.
            batch_size: Global batch sizes to consider, samples.
            objective: `time`, `cost`, `knee` or a utility.
            budget: US dollars that the job may cost at most, as `$20` or a number.
            deadline: Its longest time, as `8h` or seconds.
            params: Arguments by name for `train`: numbers, texts, and lists and mappings of them.
            settings: Other keys of a job file, as `{"infra": "aws/us-east-1", "profile.steps": 10}`.
            folder: Where modules are that are named by text; by default the present folder.

        Raises:
            ConfigurationError: If the function cannot be imported by other processes, or a value is not valid.
            TrainingCodeError: If the script fails before it calls `fit`.
        """
        named = Path(folder or "").absolute()
        changes: dict[str, Any] = {
            "search.workers": _sizes(workers),
            "search.batch_size": _sizes(batch_size),
            "objective": dict(objective) if isinstance(objective, Mapping) else objective,
            "constraints.budget": _money(budget),
            "constraints.deadline": deadline,
            **dict(settings or {}),
        }
        if (script := _script_in(train)) is not None:
            _refuse_beside_script(script, run=run, data=data, params=params)
            aims = {"max_epochs": goal} if isinstance(goal, int) else dict(goal or {})
            changes |= {"name": name, **{f"goal.{key}": value for key, value in aims.items()}}
            found = _job_of_script(script, named).with_settings(changes)
            self._set(found.spec, found.path, is_file=found.is_file)
            return
        if goal is None:
            raise ConfigurationError(
                "a job has a goal; write goal=20 for epochs, or goal={'metric': 'val_accuracy', 'target': 0.95, "
                "'max_epochs': 60}",
                key="goal",
            )
        if (train is None) == (run is None):
            raise ConfigurationError("a job has either train, a function, or run, a command", key="train")
        place, entry = (named, "") if train is None else _place_of(train, "train", named)
        document: dict[str, Any] = {
            "version": 1,
            "name": name or _name_of(entry if run is None else named.name),
            **({"train": entry} if run is None else {"run": run if isinstance(run, str) else dict(run)}),
            "goal": {"max_epochs": goal} if isinstance(goal, int) else dict(goal),
            **({"params": _plain(dict(params))} if params else {}),
        }
        if data is not None:
            document["data"] = _entry_beside(data, place, named)
        spec = override_job(job_of(document), changes)
        self._set(spec, place / f"{spec.name}.yaml", is_file=False)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Job:
        """A job of a job file.

        Raises:
            JobFileError: It cannot be read or is invalid; one line with path, line, column and what to write.
        """
        file = Path(path)
        return cls._of(load_job(file), file.absolute(), is_file=True)

    @classmethod
    def _of(cls, spec: JobSpec, path: Path, *, is_file: bool) -> Job:
        job = object.__new__(cls)
        job._set(spec, path, is_file=is_file)
        return job

    def _set(self, spec: JobSpec, path: Path, *, is_file: bool) -> None:
        for name, value in (("spec", spec), ("path", path), ("is_file", is_file)):
            object.__setattr__(self, name, value)  # frozen

    @property
    def name(self) -> str:
        """The job's name."""
        return self.spec.name

    @property
    def params(self) -> Mapping[str, Any]:
        """Arguments of the function that `train` names."""
        return dict(self.spec.params)

    def with_params(self, **params: Any) -> Job:
        """The same job with other arguments for its function; those that are not named stay.

        Raises:
            ConfigurationError: If a value is none that a job file can have.
        """
        spec = override_job(self.spec, {"params": {**self.spec.params, **_plain(params)}})
        return self if spec == self.spec else self._of(spec, _path_of(spec, self.path.parent), is_file=False)

    def with_settings(self, settings: Mapping[str, Any]) -> Job:
        """The same job with other values of keys of the job file, as `{"search.workers": [1, 2]}`.

        Raises:
            ConfigurationError: If the result is not a valid job.
        """
        spec = override_job(self.spec, settings)
        return self if spec == self.spec else self._of(spec, self.path, is_file=False)

    def to_yaml(self) -> str:
        """The job as the text of a job file."""
        # JSON is YAML, and the reader of job files takes it
        return json.dumps(self.spec.written(), indent=2, ensure_ascii=False) + "\n"


def _path_of(spec: JobSpec, folder: Path) -> Path:
    """Where the file of a job with other arguments would be: not where another is, as a file runs once at a time."""
    digest = hashlib.sha256(json.dumps(spec.written(), sort_keys=True).encode()).hexdigest()
    return folder / f"{spec.name}.{digest[:8]}.yaml"


def _script_in(code: object) -> Script | None:
    """The script that is named by a text or path; None if none is, as by `train:job`."""
    if isinstance(code, os.PathLike):
        path = str(code)
        return Script(path) if path.endswith(".py") else None
    return Script.find(code) if isinstance(code, str) else None


def _entry_beside(data: Code, place: Path, folder: Path) -> str:
    """The `module:function` of the function that reads the data, which stands where the one of the model does.

    Raises:
        ConfigurationError: If it stands elsewhere, or no other process can import it.
    """
    data_place, entry = _place_of(data, "data", folder)
    if data_place != place:
        raise ConfigurationError(f"data is of {data_place}, and train of {place}; put both into one folder")
    return entry


def _refuse_beside_script(script: Script, **given: object) -> None:
    """Refuse arguments that do not go with a script, with what to do instead.

    Raises:
        ConfigurationError: If one is given.
    """
    for key in (key for key, value in given.items() if value is not None):
        fix = "it stands behind the script, as 'train.py --rate 0.1'" if key == "params" else "leave it out"
        raise ConfigurationError(f"{key} does not go with a script, {script.path}; {fix}", key=key)


def _job_of_script(script: Script, folder: Path) -> Job:
    """The job of the file that is written beside a script; what was found is told on terminals.

    Raises:
        ConfigurationError: If there is no such script, or its `fit` cannot be a job.
        TrainingCodeError: If the script fails.
    """
    from scavenger.control.jobs.script_job import job_file_of_script

    def tell(line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"{clean(line)}\n")

    return Job.from_yaml(job_file_of_script(folder / script.path, script.arguments, tell=tell))


def _place_of(code: Code, key: str, folder: Path) -> tuple[Path, str]:
    """The folder and the `module:function` of a function, or of what a text names in a folder.

    Raises:
        ConfigurationError: If no other process can import it.
    """
    if isinstance(code, str | os.PathLike):
        if str(code).endswith((".yaml", ".yml")):
            raise ConfigurationError(
                f"{code} is a job file; write scavenger.Job.from_yaml({str(code)!r})", key=key
            )
        return folder, str(code)
    name, module_name = getattr(code, "__qualname__", ""), getattr(code, "__module__", None)
    if not name.isidentifier():
        raise ConfigurationError(
            f"{key} must be a function of a module, not {name or type(code).__name__}: {_MODULE_HINT}",
            key=key,
        )
    module = sys.modules.get(module_name or "")
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None)
    if file is None or not str(file).endswith(".py"):
        where = (
            "a notebook or an interactive session" if module_name == "__main__" else f"module {module_name}"
        )
        raise ConfigurationError(f"{key}: {name} is defined in {where}; {_MODULE_HINT}", key=key)
    path = Path(file).resolve()
    dotted = (path.stem if spec is None else spec.name) if module_name == "__main__" else str(module_name)
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise ConfigurationError(
            f"{key}: {path.name} cannot be imported as a module; give it a name as train.py", key=key
        )
    up = dotted.count(".") + (path.stem == "__init__")
    return path.parents[up], f"{dotted}:{name}"


def _name_of(entry: str) -> str:
    words = entry.partition(":")[0].rpartition(".")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:63] or "job"


def _sizes(given: Sizes | None) -> object:
    if given is None or isinstance(given, (int, str)):
        return given
    return dict(given) if isinstance(given, Mapping) else [int(size) for size in given]


def _money(given: str | float | None) -> object:
    return f"${given}" if isinstance(given, str) and not given.startswith("$") else given


def _plain(value: Any) -> Any:
    """Values without NumPy's types, which searches over hyperparameters often give."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value
