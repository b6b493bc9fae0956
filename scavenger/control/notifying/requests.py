"""Requests that deliver notifications: their form, signature and address.

They are signed as Standard Webhooks says [1]_, so that receivers can check them with a library of their language.

References:
    .. [1] Standard Webhooks, https://www.standardwebhooks.com.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from scavenger.domain.document import without_nonfinite
from scavenger.domain.notification import Notification
from scavenger.domain.notify_settings import Webhook
from scavenger.errors import ConfigurationError
from scavenger.masking import mask
from scavenger.version import __version__

_TIMEOUT = urllib3.Timeout(connect=5.0, read=10.0)
_QUICK = Retry(
    total=2,
    redirect=0,
    backoff_factor=0.5,
    backoff_jitter=0.5,
    status_forcelist=(408, 425, 502, 503, 504),
    allowed_methods=None,
    respect_retry_after_header=False,
    raise_on_status=False,
)
"""Repetitions at once, for what passes in a second; the queue waits for the rest."""
_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of a secret is none
_PORTS = {"https": 443, "http": 80}


class NotAllowedError(ConfigurationError):
    """The address of a webhook is one that must not be asked."""


@dataclass(frozen=True, slots=True)
class PostResult:
    """What came of a request.

    Attributes:
        status: Of the HTTP answer; None if there was none.
        reason: Why there was none.
        retry_after_s: How long the receiver asked to wait; 0 if it did not.
    """

    status: int | None
    reason: str = ""
    retry_after_s: float = 0.0


def url_of(webhook: Webhook, environ: Mapping[str, str]) -> str:
    """The address of a webhook.

    Raises:
        ConfigurationError: The variable that holds it is not set.
    """
    return webhook.url or _variable(webhook.url_from, environ)


def secret_of(webhook: Webhook, environ: Mapping[str, str]) -> bytes | None:
    """The secret that notifications are signed with; None if they are not.

    Raises:
        ConfigurationError: The variable that holds it is not set, or what follows `whsec_` is not Base64.
    """
    if not webhook.secret_from:
        return None
    text = _variable(webhook.secret_from, environ)
    if not text.startswith(_SECRET_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ConfigurationError(f"what follows whsec_ in {webhook.secret_from} is not Base64") from None


def _variable(name: str, environ: Mapping[str, str]) -> str:
    text = environ.get(name, "").strip()
    if not text:
        raise ConfigurationError(f"the variable {name} is not set")
    return text


def body_of(notification: Notification, webhook: Webhook) -> bytes:
    """The body of the request, JSON."""
    if webhook.format == "slack":
        return msgspec.json.encode(_slack(notification))
    return msgspec.json.encode(
        {
            "type": notification.kind,
            "timestamp": notification.at.isoformat(),
            "text": notification.text,
            "data": without_nonfinite(notification.data),
        }
    )


def _slack(notification: Notification) -> dict[str, Any]:
    """Text for what shows no blocks, such as a phone's banner, and blocks; `&`, `<` and `>` have a meaning there."""
    text = notification.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    context = f"{notification.kind} · {notification.at:%Y-%m-%d %H:%M:%S} UTC"
    if url := str(notification.data.get("url") or ""):
        context += f" · <{url}|dashboard>"
    return {
        "text": text,
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": text}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": context}]},
        ],
    }


def headers_of(message_id: str, body: bytes, secret: bytes | None, at: datetime) -> dict[str, str]:
    """The headers of the request: id and time, and if there is a secret, the signature of both and the body.

    Args:
        message_id: The same for every attempt; receivers leave out what they have.
        secret: Key of the HMAC-SHA256.
        at: Time of the attempt; receivers refuse old ones.
    """
    stamp = str(int(at.timestamp()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"scavenger/{__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": stamp,
    }
    if secret is not None:
        signed = f"{message_id}.{stamp}.".encode() + body
        digest = hmac.new(secret, signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def post(url: str, body: bytes, headers: Mapping[str, str], *, private: bool) -> PostResult:
    """Post a body; redirects are not followed, and no proxy is used.

    The name is resolved once, and the address that was checked is the one that is asked, so a name server cannot lead
    the request to a machine inside.

    Args:
        url: Where to.
        private: Whether addresses of private networks and of this machine are allowed, and there http.

    Raises:
        NotAllowedError: The address is not allowed, or is none.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port
    except ValueError:
        raise NotAllowedError("the address cannot be read") from None
    if scheme not in _PORTS or not host or parts.username is not None:
        raise NotAllowedError("the address is not https://HOST/...")
    number = port or _PORTS[scheme]
    try:
        address = _checked_address(host, number, scheme, private=private)
    except OSError as error:
        return PostResult(None, f"{host} cannot be resolved: {error.strerror or error}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with _pool(scheme, address, number, host) as pool:
        try:
            answer = pool.urlopen(
                "POST",
                target,
                body=body,
                headers={**headers, "Host": parts.netloc},
                retries=_QUICK,
                timeout=_TIMEOUT,
                redirect=False,
                assert_same_host=False,
                preload_content=False,  # only the status counts, and a body may come slowly
            )
        except HTTPError as error:
            return PostResult(None, _cause(error))
        answer.close()
        return PostResult(answer.status, "", _retry_after_s(answer.headers.get("Retry-After", "")))


def _checked_address(host: str, port: int, scheme: str, *, private: bool) -> str:
    """The first address of a host, if all of them are allowed.

    Raises:
        NotAllowedError: One is not.
        OSError: The host has no address.
    """
    found = [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for text in found:
        address = _led_to(text.partition("%")[0])
        if not private and (not address.is_global or address.is_multicast):
            raise NotAllowedError(f"{host} is in a private network: allow it with `private = true`")
        if scheme == "http" and not (private and address.is_loopback):
            raise NotAllowedError("http is for this machine only (`private = true`): use https")
    return found[0]


_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""Addresses that end with an IPv4 address, to which NAT64 or an old tunnel leads [1]_.

.. [1] RFC 6052, "IPv6 Addressing of IPv4/IPv6 Translators", section 2.1; RFC 4291, section 2.5.5.1.
"""
_LOCAL_TRANSLATION = ipaddress.IPv6Network("64:ff9b:1::/48")
"""NAT64 of one network (RFC 8215), whose form only that network knows."""


def _led_to(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address at which a connection to another one may end: the IPv4 address in one of IPv6."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _LOCAL_TRANSLATION:
        return ipaddress.IPv6Address("::1")
    if any(address in network for network in _TRANSLATED) and int(address) > 1:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _pool(scheme: str, address: str, port: int, host: str) -> urllib3.HTTPConnectionPool:
    if scheme == "http":
        return urllib3.HTTPConnectionPool(address, port)
    context = ssl.create_default_context()
    return urllib3.HTTPSConnectionPool(
        address, port, ssl_context=context, server_hostname=host, assert_hostname=host
    )


def _cause(error: BaseException) -> str:
    """Why a request failed, on one line and without the address, which may hold a secret."""
    reason = getattr(error, "reason", None)
    cause = reason if isinstance(reason, BaseException) else error
    words = {
        "ConnectTimeoutError": "no connection within 5 s",
        "ReadTimeoutError": "no answer within 10 s",
        "NewConnectionError": "no connection",
        "ProtocolError": "the connection was broken",
    }
    name = type(cause).__name__
    return words.get(name) or mask(f"{name}: {cause}" if name == "SSLError" else name)[:200]


def _retry_after_s(text: str) -> float:
    """Read the header `Retry-After`, seconds or a date; 0 if it is neither."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
