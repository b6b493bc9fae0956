"""Masks secrets in texts for users: errors, warnings and log lines, which are shown, stored and sent around.

An exception of the training code may contain a key, for instance a URL with a password. All such texts pass `mask`:
the text of every `ScavengerError`, every log record, every reported exception and warning. What a job was given, which
others may see, passes `mask_values`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

MASK = "***"

_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?:^|_)(?:PASS|PWD)(?:_|$)", re.IGNORECASE
)
_SECRET_KEY = re.compile(
    r"(?:^|[_-])(?:token|secret|passw(?:or)?d|passwd|passphrase|pass|pwd|credentials?"
    r"|(?:api|access|secret|private|account|auth)[_-]?key(?:[_-]id)?)$",
    re.IGNORECASE,
)
"""Name of a value in a document that is a secret whatever it looks like; `tokenizer` and `max_tokens` name none."""
_VALUE_LENGTH_MIN = 8
"""Shorter values, such as `true`, occur in other words too."""
_PATH = re.compile(r"^[~./]*/")
"""A variable such as GOOGLE_APPLICATION_CREDENTIALS names a file, which is no secret and helps to find it."""

_SHAPES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)",
        r"(?<=://)[^\s/@]{0,200}:[^\s/@]{1,200}(?=@)",  # user and password in a URL
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS
        r"\bAIza[\w-]{35}",  # Google
        r"\bya29\.[\w-]{20,}",
        r"\bgh[pousr]_\w{20,}",  # GitHub
        r"\bgithub_pat_\w{20,}",
        r"(?<![\w-])sk-[\w-]{16,}",  # OpenAI, Anthropic
        r"\bscv_[\w-]{20,}",  # of Scavenger's own server
        r"\bhf_\w{20,}",  # Hugging Face
        r"\bxox[a-z]-[\w-]{10,}",  # Slack
        r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}",  # JSON web tokens
        r"(?<=[Bb]earer )[\w.~+/-]{8,}=*",
        # an assignment, as in `aws_secret_access_key = ...`, `"password": "..."` or `?token=...`
        r"(?i:(?:secret|token|passw(?:or)?d|passphrase|api_?key|access_?key|credential)[\w-]{0,30}"
        r"(?:\s?=\s?|[\"']\s?[:=]\s?)[\"']?)(?P<value>[^\s\"',;&)]{6,})",
    )
)


_kept: set[str] = set()
"""Forms of the secrets that this process was told of."""


def keep_secret(values: Collection[str]) -> None:
    """Have `mask` replace these values, too, whatever they look like, as long as this process runs."""
    _kept.update(form for value in values for form in _forms(value))


def _forms(value: str) -> set[str]:
    """What a secret looks like where it is shown: as it is, in JSON, in a URL, and each long line of several."""
    written = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    lines = {line.strip() for line in value.splitlines()}
    return written | {quote(value, safe="")} | {line for line in lines if len(line) >= _VALUE_LENGTH_MIN}


class StreamMask:
    """Masks secrets in what a process prints, piece by piece, whatever pieces it comes in.

    Args:
        secrets: The values; `mask` finds others by their names and shapes when a log is shown.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        forms = {form.encode(errors="surrogateescape") for value in secrets for form in _forms(value)} - {b""}
        self._forms = sorted(forms, key=len, reverse=True)  # one may begin another
        self._pattern = re.compile(b"|".join(map(re.escape, self._forms)) or b"(?!)")
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown of the stream until now; the beginning of what may be a secret is held back."""
        data = self._held + data
        hold = self._held_from(data)
        shown, at = [], 0
        for found in self._pattern.finditer(data):
            if found.start() >= hold:
                break
            shown += [data[at : found.start()], MASK.encode()]
            at = found.end()
        hold = max(hold, at)
        self._held = data[hold:]
        return b"".join([*shown, data[at:hold]])

    def end(self) -> bytes:
        """The rest of the stream."""
        data, self._held = self._held, b""
        return self._pattern.sub(MASK.encode(), data)

    def _held_from(self, data: bytes) -> int:
        """Where the longest end of the data begins that begins a secret."""
        longest = len(self._forms[0]) - 1 if self._forms else 0
        for at in range(max(0, len(data) - longest), len(data)):
            end = data[at:]
            if any(form.startswith(end) and form != end for form in self._forms):
                return at
        return len(data)


def mask(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Replace secrets in a text by `MASK`.

    Args:
        text: Any text.
        environ: Variables of the environment. A value of at least 8 characters is a secret if the variable's name
            says so (it contains KEY, TOKEN, SECRET, PASSWORD, PASS, PWD, CREDENTIAL or the like) and it is not a path.

    Returns:
        The text without these values and those of `keep_secret`, and without what has the usual shape of a secret: keys
        of clouds and services,
        private keys, URLs with a password, assignments to a name such as `password`.
    """
    values = {
        value
        for name, value in environ.items()
        if len(value) >= _VALUE_LENGTH_MIN and _SECRET_NAME.search(name) and not _PATH.match(value)
    } | _kept
    for value in sorted(values, key=len, reverse=True):  # one may contain another
        text = text.replace(value, MASK)
    for shape in _SHAPES:
        text = shape.sub(_masked, text)
    return text


def mask_values(value: Any) -> Any:
    """A document of JSON values without secrets: texts as of `mask`, and every text under a name such as `hf_token`.

    Names of values are kept, numbers too. What has no secret comes back as it is.
    """
    texts: list[str] = []
    if not _collect(value, texts):
        together = "\n".join(
            texts
        )  # one look at all is several times faster, and most documents have no secret
        if mask(together) == together:
            return value
    return _without_secrets(value)


def names_a_secret(name: str) -> bool:
    """Whether the value of this name is a secret, as that of `HF_TOKEN`, whatever it looks like."""
    return _SECRET_KEY.search(name) is not None


def _collect(value: Any, texts: list[str]) -> bool:
    """Gather the texts of a document, until one has the name of a secret; returns whether one has."""
    if isinstance(value, str):
        texts.append(value)
        return False
    if isinstance(value, Mapping):
        named = any(isinstance(item, str) and names_a_secret(str(name)) for name, item in value.items())
        return any(_collect(item, texts) for item in value.values()) or named
    return isinstance(value, list | tuple) and any(_collect(item, texts) for item in value)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {
            name: MASK if isinstance(item, str) and names_a_secret(str(name)) else _without_secrets(item)
            for name, item in value.items()
        }
    return [_without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def _masked(match: re.Match[str]) -> str:
    """Keep the name in an assignment."""
    if "value" in match.re.groupindex:
        return match[0][: match.start("value") - match.start()] + MASK
    return MASK
