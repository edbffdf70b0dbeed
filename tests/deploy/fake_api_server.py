"""As much of a Kubernetes API as helm asks for when templates look objects up: versions, kinds, single objects.

    with FakeApiServer({("configmaps", "kube-root-ca.crt"): {}, ("secrets", "token"): {"token": "..."}}) as address:
        helm template ... --dry-run=server --kube-apiserver=address
"""

import http.server
import json
import threading

_KINDS = {"configmaps": "ConfigMap", "secrets": "Secret", "persistentvolumeclaims": "PersistentVolumeClaim", "services": "Service"}
# What the chart makes beside them, by group and version.
_GROUPS = {"apps": {"statefulsets": "StatefulSet"}, "batch": {"jobs": "Job"}, "networking.k8s.io": {"networkpolicies": "NetworkPolicy"},
           "policy": {"poddisruptionbudgets": "PodDisruptionBudget"}}


class FakeApiServer:
    """objects: data by (plural kind, name), or where a spec is among them spec and metadata; all in whatever namespace is asked."""

    def __init__(self, objects):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, answer = answer_to(self.path.partition("?")[0].strip("/").split("/"), objects)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def resources(version, kinds):
    return {"kind": "APIResourceList", "groupVersion": version, "resources": [
        {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
        for plural, kind in kinds.items()]}


def answer_to(path, objects):
    if path == ["version"]:
        return 200, {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
    if path == ["api"]:
        return 200, {"kind": "APIVersions", "versions": ["v1"]}
    if path == ["apis"]:
        return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
            {"name": group, "versions": [{"groupVersion": f"{group}/v1", "version": "v1"}],
             "preferredVersion": {"groupVersion": f"{group}/v1", "version": "v1"}} for group in _GROUPS]}
    if path == ["api", "v1"]:
        return 200, resources("v1", _KINDS)
    if len(path) == 3 and path[0] == "apis" and path[1] in _GROUPS:
        return 200, resources(f"{path[1]}/v1", _GROUPS[path[1]])
    # /api/v1/namespaces/N/KIND/NAME, /apis/GROUP/v1/namespaces/N/KIND/NAME
    group, rest = (path[1], path[2:]) if path[0] == "apis" else ("", path[1:])
    if len(rest) == 5 and (rest[3], rest[4]) in objects:
        held = objects[rest[3], rest[4]]
        return 200, {"apiVersion": f"{group}/v1" if group else "v1", "kind": (_GROUPS[group] if group else _KINDS)[rest[3]],
                     **({"spec": held["spec"]} if "spec" in held else {"data": held}),
                     "metadata": {**(held.get("metadata", {}) if "spec" in held else {}), "name": rest[4], "namespace": rest[2]}}
    return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"}
