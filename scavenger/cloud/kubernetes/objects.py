"""Single calls for the pods and secrets of one namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kubernetes.client.exceptions import ApiException

from scavenger.cloud.kubernetes.errors import is_reason
from scavenger.cloud.kubernetes.pods import LAUNCHED
from scavenger.errors import CloudUnavailableError

TIMEOUT_S = (5.0, 20.0)
_PAGE = 500


class NamespaceObjects:
    """Pods and secrets of one namespace. Errors are those of the client library.

    Args:
        core: Its `CoreV1Api`.
    """

    def __init__(self, core: Any, namespace: str) -> None:
        self._core, self._namespace = core, namespace

    def found(self, name: str) -> Any:
        """The pod of a name; None if there is none."""
        try:
            return self._core.read_namespaced_pod(name, self._namespace, _request_timeout=TIMEOUT_S)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    def secret(self, name: str, body: Mapping[str, Any]) -> Any:
        """Make the secret of a launch, or find the one that was made before."""
        try:
            return self._core.create_namespaced_secret(self._namespace, body, _request_timeout=TIMEOUT_S)
        except ApiException as error:
            if not is_reason(error, "AlreadyExists"):
                raise
        return self._core.read_namespaced_secret(name, self._namespace, _request_timeout=TIMEOUT_S)

    def created(self, body: Mapping[str, Any]) -> Any:
        """Make a pod, or find the one of its name that was made before."""
        name = body["metadata"]["name"]
        try:
            return self._core.create_namespaced_pod(self._namespace, body, _request_timeout=TIMEOUT_S)
        except ApiException as error:
            if not is_reason(error, "AlreadyExists"):
                raise
        pod = self.found(name)
        if pod is None:
            raise CloudUnavailableError(f"{name} came and went while it was started")
        return pod

    def mark(self, name: str) -> None:
        """Note that there is or was a pod of this name; nothing if its secret is gone."""
        try:
            self._core.patch_namespaced_secret(
                name,
                self._namespace,
                {"metadata": {"annotations": {LAUNCHED: "true"}}},
                _request_timeout=TIMEOUT_S,
            )
        except ApiException as error:
            if error.status != 404:
                raise

    def delete(self, name: str, **options: Any) -> None:
        """Delete a pod; nothing if it is gone."""
        try:
            self._core.delete_namespaced_pod(name, self._namespace, _request_timeout=TIMEOUT_S, **options)
        except ApiException as error:
            if error.status != 404:
                raise

    def forget(self, name: str) -> None:
        """Delete a secret, and with it the pod that it owns; nothing if it is gone."""
        try:
            self._core.delete_namespaced_secret(
                name, self._namespace, propagation_policy="Background", _request_timeout=TIMEOUT_S
            )
        except ApiException as error:
            if error.status != 404:
                raise

    def selected(self, selector: str) -> Iterator[Any]:
        """The pods with some labels."""
        return self.pages(self._core.list_namespaced_pod, self._namespace, label_selector=selector)

    @staticmethod
    def pages(ask: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
        """All that a call lists, page by page."""
        further: dict[str, str] = {}
        while True:
            page = ask(*arguments, limit=_PAGE, _request_timeout=TIMEOUT_S, **options, **further)
            yield from page.items
            if not (token := page.metadata._continue):
                return
            further = {"_continue": token}
