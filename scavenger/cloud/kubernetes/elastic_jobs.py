"""ElasticJobs, their pods and what belongs to them, as the API server has them.

Nothing here decides. A write can be repeated: what is there already, or gone already, is as wanted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import requests
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from scavenger.cloud.kubernetes.errors import translated_errors
from scavenger.cloud.kubernetes.pods import CONTAINER
from scavenger.domain.elastic_job import GROUP, JOB_LABEL, LEADER, PLURAL, ROLE_LABEL, VERSION
from scavenger.errors import CloudUnavailableError, GoneError, ScavengerError

Json = dict[str, Any]

LEADERS = f"{JOB_LABEL},{ROLE_LABEL}={LEADER}"
"""Label selector of the leaders' pods of all ElasticJobs."""
_TIMEOUT_S = (5.0, 20.0)
_WATCH_S = 60
_AGAIN_S = 1.0
_PAGE = 500
_PIECE = 1 << 16
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


def api_client(environment: Mapping[str, str] = os.environ, *, context: str = "") -> Any:
    """A client of the API server: by the kubeconfig, or of the cluster that this process runs in.

    Raises:
        ConfigurationError: There is neither.
    """
    with translated_errors("looking for the cluster", region=context or "cluster"):
        file = environment.get("KUBECONFIG") or None
        if not context and file is None and environment.get(_IN_CLUSTER):
            inside = client.Configuration()
            config.load_incluster_config(client_configuration=inside)
            return client.ApiClient(inside)
        return config.new_client_from_config(file, context=context or None)


class Cluster:
    """The calls by which an operator or a leader reads and writes; values are JSON, as the API has them.

    Args:
        api: Client of the API server.
        namespace: The only one that is looked at; empty for all.

    Every method raises the errors of `translated_errors`.
    """

    def __init__(self, api: Any, namespace: str = "") -> None:
        self.namespace = namespace
        self._settings = api.configuration
        self._local = threading.local()
        self._policies: tuple[str, ...] = ("v1", "v1beta1")  # until it is known which one the cluster has

    def _call(self, method: str, path: str, body: Json | None = None, **query: object) -> Json:
        with translated_errors(f"{method} {path}", region="cluster"):
            return dict(self._asked(method, path, body, query).json())

    def _asked(
        self, method: str, path: str, body: Json | None, query: Mapping[str, object], *, watch: bool = False
    ) -> requests.Response:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        told = {one["key"]: one["value"] for one in self._settings.auth_settings().values() if one["value"]}
        answer = self._session().request(
            method,
            self._settings.host + path,
            params={key: str(value) for key, value in query.items() if value not in (None, "")},
            headers={"Accept": "application/json", "Content-Type": kind, **told},
            json=body,
            timeout=(_TIMEOUT_S[0], _WATCH_S + 10.0) if watch else _TIMEOUT_S,
            stream=watch,
        )
        if answer.status_code >= 400:
            error = ApiException(status=answer.status_code, reason=answer.reason)
            error.body = answer.text
            raise error
        return answer

    def _session(self) -> requests.Session:
        """One for each thread."""
        found: requests.Session | None = getattr(self._local, "session", None)
        if found is None:
            found = self._local.session = requests.Session()
            settings = self._settings
            found.verify = (settings.ssl_ca_cert or True) if settings.verify_ssl else False
            found.cert = (settings.cert_file, settings.key_file) if settings.cert_file else None
            found.trust_env = bool(settings.proxy)
            if settings.proxy:
                found.proxies = {"https": settings.proxy, "http": settings.proxy}
        return found

    # ---- ElasticJobs ----------------------------------------------------------------------------------------

    def _jobs_path(self, namespace: str = "") -> str:
        place = namespace or self.namespace
        return f"/apis/{GROUP}/{VERSION}" + (f"/namespaces/{place}" if place else "") + f"/{PLURAL}"

    def jobs(self) -> tuple[list[Json], str]:
        """All ElasticJobs, and the version from which a watch goes on."""
        return self._listed(self._jobs_path())

    def job(self, namespace: str, name: str) -> Json | None:
        """One of them; None if there is none."""
        return self._if_there("GET", f"{self._jobs_path(namespace)}/{name}")

    def patch_job(self, namespace: str, name: str, changes: Json, *, status: bool = False) -> Json | None:
        """Change keys of one; None if there is none any more.

        Args:
            changes: As a merge patch; with `metadata.resourceVersion`, for this version only.
            status: Whether `status` is changed, and nothing else.
        """
        path = f"{self._jobs_path(namespace)}/{name}" + ("/status" if status else "")
        return self._if_there("PATCH", path, changes)

    # ---- pods -----------------------------------------------------------------------------------------------

    def _pods_path(self, namespace: str = "") -> str:
        place = namespace or self.namespace
        return "/api/v1" + (f"/namespaces/{place}" if place else "") + "/pods"

    def leaders(self) -> tuple[list[Json], str]:
        """The leaders' pods, and the version from which a watch goes on."""
        return self._listed(self._pods_path(), labelSelector=LEADERS)

    def nodes(self) -> list[Json]:
        """The nodes of the cluster."""
        return self._listed("/api/v1/nodes")[0]

    def pods(self, selector: str = "") -> list[Json]:
        """Pods by their labels."""
        return self._listed(self._pods_path(), labelSelector=selector)[0]

    def pod(self, namespace: str, name: str) -> Json | None:
        """A pod; None if there is none."""
        return self._if_there("GET", f"{self._pods_path(namespace)}/{name}")

    def create_pod(self, body: Json) -> bool:
        """Create a pod, unless there is one of its name; returns whether it was created."""
        return self._created(self._pods_path(body["metadata"]["namespace"]), body)

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete this pod, and no other one of its name."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            self._if_there("DELETE", f"{self._pods_path(namespace)}/{name}", body)
        except CloudUnavailableError as error:
            if _status_of(error) != 409:  # it is another pod by now
                raise

    # ---- budgets and events ---------------------------------------------------------------------------------

    def keep_available(
        self,
        namespace: str,
        name: str,
        selector: Mapping[str, str],
        owner: Json,
        pods: int,
        *,
        first: bool = False,
    ) -> None:
        """Let evictions leave so many of the pods with these labels.

        Args:
            first: Whether there is most likely no budget of this name yet, which saves a call then.
        """
        spec = {"minAvailable": pods, "selector": {"matchLabels": dict(selector)}}
        for version in self._policies:
            path = f"/apis/policy/{version}/namespaces/{namespace}/poddisruptionbudgets"
            body = {
                "apiVersion": f"policy/{version}",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "ownerReferences": [owner]},
                "spec": spec,
            }
            with contextlib.suppress(GoneError):  # the cluster has not this version of the API
                done = first and self._created(path, body)
                if not done and self._if_there("PATCH", f"{path}/{name}", {"spec": spec}) is None:
                    self._created(path, body)
                self._policies = (version,)
                return

    def tell(self, job: Json, reason: str, message: str, *, warning: bool = False, by: str) -> None:
        """Tell an event of a job. The same event of the same generation is told once, however often this is called."""
        meta = job["metadata"]
        words = f"{meta['uid']}/{meta.get('generation')}/{reason}/{message}"
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {
            **{key: job.get(key) for key in ("apiVersion", "kind")},
            **{key: meta.get(key) for key in ("name", "namespace", "uid", "resourceVersion")},
        }
        body: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name'][:200]}.{digest}", "namespace": meta["namespace"]},
            "involvedObject": about,
            "reason": reason,
            "message": message[:1000],
            "type": "Warning" if warning else "Normal",
            "source": {"component": by},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._created(f"/api/v1/namespaces/{meta['namespace']}/events", body)

    # ---- leases ---------------------------------------------------------------------------------------------

    def lease(self, namespace: str, name: str) -> Json | None:
        """A lease; None if there is none."""
        return self._if_there("GET", f"{_LEASES.format(namespace)}/{name}")

    def leases_in(self, namespace: str) -> list[Json]:
        """The leases of a namespace."""
        return self._listed(_LEASES.format(namespace))[0]

    def write_lease(self, body: Json, *, fresh: bool) -> bool:
        """Create a lease, or replace the version that was read; returns whether nobody was faster."""
        path = _LEASES.format(body["metadata"]["namespace"])
        if fresh:
            return self._created(path, body)
        try:
            return self._if_there("PUT", f"{path}/{body['metadata']['name']}", body) is not None
        except CloudUnavailableError as error:
            if _status_of(error) != 409:
                raise
            return False

    # ---- watches --------------------------------------------------------------------------------------------

    def watch_job(self, namespace: str, name: str, seen: Callable[[Json | None], None]) -> None:
        """Pass on each version of one ElasticJob, and None when it is gone, for ever; an outage is waited for.

        What was missed does not matter: after each interruption, the present version comes first.
        """
        path, only = self._jobs_path(namespace), f"metadata.name={name}"
        while True:
            try:
                found, version = self._listed(path, fieldSelector=only)
                seen(found[0] if found else None)
                for kind, one in self._events(path, version, fieldSelector=only):
                    seen(None if kind == "DELETED" else one)
            except (ScavengerError, ApiException, OSError):
                time.sleep(_AGAIN_S)

    def _events(self, path: str, version: str, **query: str) -> Iterator[tuple[str, Json]]:
        """What changes from a version on, until the API server ends the watch, or does not know the version."""
        asked = {**query, "watch": "true", "resourceVersion": version, "timeoutSeconds": _WATCH_S}
        with self._asked("GET", path, None, asked, watch=True) as answer:
            for line in answer.iter_lines(chunk_size=_PIECE):
                event = json.loads(line) if line else {}
                if event.get("type") == "ERROR":
                    return
                if event:
                    yield event["type"], event["object"]

    # ---- single calls ---------------------------------------------------------------------------------------

    def _listed(self, path: str, **query: str) -> tuple[list[Json], str]:
        items: list[Json] = []
        further = ""
        while True:
            asked: dict[str, Any] = {**query, "limit": _PAGE, "continue": further}
            page = self._call("GET", path, **asked)
            items += page.get("items") or []
            meta = page.get("metadata") or {}
            if not (further := meta.get("continue") or ""):
                return items, str(meta.get("resourceVersion") or "")

    def _if_there(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """The answer to a call; None if what it is about is not there."""
        try:
            return self._call(method, path, body)
        except GoneError:
            return None

    def _created(self, path: str, body: Json) -> bool:
        try:
            self._call("POST", path, body)
        except CloudUnavailableError as error:
            if _status_of(error) != 409:
                raise
            return False
        return True


def _status_of(error: Exception) -> int:
    cause = error.__cause__
    return int(cause.status or 0) if isinstance(cause, ApiException) else 0


def leader_why(pod: Json) -> str:
    """Why a pod does not run, in the cluster's words; empty if it does."""
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        if one.get("name") == CONTAINER and (waiting := state.get("waiting")):
            return ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
        if one.get("name") == CONTAINER and (ended := state.get("terminated")):
            said = " ".join(str(ended.get("message") or "").split())[-200:]
            return f"it ended with {ended.get('exitCode')}" + (f": {said}" if said else "")
    words = [str(status[key]) for key in ("reason", "message") if status.get(key)]
    if words or status.get("phase") != "Pending":
        return ": ".join(words)
    waits = [
        one.get("message") or ""
        for one in status.get("conditions") or ()
        if one.get("type") == "PodScheduled"
    ]
    return str(waits[0]) if waits else ""
