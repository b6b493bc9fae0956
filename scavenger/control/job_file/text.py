"""The text of a job file with other values; its comments stay."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from scavenger.control.job_file.yaml_loader import read_scalar


def changed_text(text: str, changes: Mapping[str, object], *, without: Iterable[str] = ()) -> str:
    """Set values in the text of a job file.

    Args:
        text: A job file that can be read.
        changes: By dotted key, as `override_job` takes them.
        without: Dotted keys that are removed first.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    yaml = YAML()
    yaml.width = 110
    document = yaml.load(text)
    for key in without:
        *parents, leaf = key.split(".")
        section = document
        for parent in parents:
            section = section.get(parent, {})
        section.pop(leaf, None)
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        target = document
        for parent in parents:
            if parent not in target:
                section = CommentedMap()
                section.fa.set_flow_style()
                target.insert(list(target).index("goal"), parent, section)
            target = target[parent]
        if isinstance(value, list):
            value = CommentedSeq(value)
            value.fa.set_flow_style()
        target[leaf] = read_scalar(value) if isinstance(value, str) else value
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()
