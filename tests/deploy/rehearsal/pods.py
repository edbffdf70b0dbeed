"""From a rendered pod template to what runs it: command lines, variables, files, limits, as the kubelet
would have them. What this does not know of a template is an error, so nothing is left out silently.

    pod = Pod("demo-server-0", template, objects, claims, folder, address)
    pod.init_containers, pod.containers      # of Container
"""

import base64
import dataclasses
import os
import pathlib
import re

_UNITS = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}
_POD_FIELDS = {
    "automountServiceAccountToken", "enableServiceLinks", "terminationGracePeriodSeconds", "restartPolicy", "topologySpreadConstraints",
    "securityContext", "initContainers", "containers", "volumes"}
_CONTAINER_FIELDS = {
    "name", "image", "imagePullPolicy", "command", "args", "env", "ports", "startupProbe", "readinessProbe", "livenessProbe",
    "securityContext", "resources", "volumeMounts", "workingDir"}


def size_bytes(text):
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    return int(float(number) * _UNITS[unit])


@dataclasses.dataclass(frozen=True)
class Mount:
    source: pathlib.Path | None  # None: memory, of so many bytes
    target: str
    read_only: bool
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Container:
    name: str
    image: str
    command: list
    environment: dict
    mounts: list
    folder: str
    user: int
    group: int
    more_groups: list
    memory_bytes: int
    probes: dict


def _only(thing, known, what):
    unknown = set(thing) - known
    if unknown:
        raise ValueError(f"the rehearsal knows nothing of {', '.join(sorted(unknown))} in a {what}")


class Pod:
    """claims: a folder of each volume claim by its name; it outlives the pod."""

    def __init__(self, name, template, objects, claims, folder, address):
        self.name = name
        self.labels = template["metadata"]["labels"]
        self.address = address
        self.folder = folder
        spec = template["spec"]
        _only(spec, _POD_FIELDS, "pod")
        self.restart_policy = spec.get("restartPolicy", "Always")
        self.grace_seconds = spec.get("terminationGracePeriodSeconds", 30)
        self._security = spec["securityContext"]
        self._objects = {(o["kind"], o["metadata"]["name"]): o for o in objects}
        self._claims = claims
        self._volumes = {v["name"]: v for v in spec.get("volumes", [])}
        self._made = {}
        self.init_containers = [self._container(c) for c in spec.get("initContainers", [])]
        self.containers = [self._container(c) for c in spec["containers"]]

    def _container(self, container):
        _only(container, _CONTAINER_FIELDS, "container")
        security = container["securityContext"]
        if security != {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}:
            raise ValueError(f"the rehearsal starts locked containers only, not {security}")
        environment = {e["name"]: self._value(e) for e in container.get("env", [])}
        command = [re.sub(r"\$\((\w+)\)", lambda m: environment.get(m[1], m[0]), word)
                   for word in container["command"] + container.get("args", [])]
        return Container(
            container["name"], container["image"], command, environment, [self._mount(m) for m in container.get("volumeMounts", [])],
            container.get("workingDir", "/"), self._security["runAsUser"], self._security["runAsGroup"], [self._security["fsGroup"]],
            size_bytes(container["resources"]["limits"]["memory"]),
            {kind: container[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in container})

    def _value(self, variable):
        if "value" in variable:
            return str(variable["value"])
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        return self.labels[label[1]] if label else {"metadata.name": self.name}[path]

    def _mount(self, mount):
        _only(mount, {"name", "mountPath", "readOnly"}, "mount")
        volume = self._volumes.get(mount["name"], {})
        read_only = mount.get("readOnly", False)
        empty = volume.get("emptyDir")
        if empty is not None and empty.get("medium") == "Memory":
            return Mount(None, mount["mountPath"], read_only, size_bytes(empty["sizeLimit"]))
        if mount["name"] not in self._made:
            self._made[mount["name"]] = self._make(mount["name"], volume)
        return Mount(self._made[mount["name"]], mount["mountPath"], read_only or "secret" in volume or "configMap" in volume)

    def _make(self, name, volume):
        if not volume:
            return self._own(self._claims[name])
        place = self.folder / "volumes" / name
        place.mkdir(parents=True)
        if "emptyDir" in volume:
            return self._own(place)
        kind = "Secret" if "secret" in volume else "ConfigMap"
        source = volume.get("secret") or volume["configMap"]
        data = self._objects[kind, source.get("secretName") or source["name"]]["data"]
        mode = source.get("defaultMode", 0o644)
        # As the kubelet writes them, so that they can be exchanged at once: KEY -> ..data/KEY, ..data -> a folder.
        held = place / "..2026"
        held.mkdir()
        (place / "..data").symlink_to(held.name)
        for key, path in [(i["key"], i["path"]) for i in source["items"]] if "items" in source else [(k, k) for k in data]:
            file = held / path
            file.write_bytes(base64.b64decode(data[key]) if kind == "Secret" else data[key].encode())
            file.chmod(mode)
            os.chown(file, 0, self._security["fsGroup"])
            (place / path).symlink_to(f"..data/{path}")
        return place

    def _own(self, folder):
        """For the pod's group, which its processes have (fsGroup)."""
        os.chown(folder, 0, self._security["fsGroup"])
        folder.chmod(0o2775)
        return folder
