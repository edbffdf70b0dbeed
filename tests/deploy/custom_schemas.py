"""What the chart uses of the objects that others define (cert-manager's Certificate; PodMonitor and PrometheusRule of the
Prometheus operator), as JSON schemas in which nothing else is allowed: names, types and forms by their published
definitions. They are no copy of those, so a field that the chart begins to use has to be looked up and added here.
"""

_DURATION = {"type": "string", "pattern": r"^(0|([0-9]+(ms|[ywdhms]))+)$"}
_GO_DURATION = {"type": "string", "pattern": r"^([0-9]+(ms|[hms]))+$"}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {"type": "object", "additionalProperties": False, "required": ["name"],
             "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": _STRINGS, "annotations": _STRINGS}}


def _object(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _list(items):
    return {"type": "array", "minItems": 1, "items": items}


def _kind(version, kind, spec):
    return _object(("apiVersion", "kind", "metadata", "spec"), apiVersion={"const": version}, kind={"const": kind}, metadata=_METADATA,
                   spec=spec)


_RULE = _object(("expr",), record={"type": "string"}, alert={"type": "string"}, expr={"type": "string"}, labels=_STRINGS, annotations=_STRINGS,
                **{"for": _DURATION})
_RULE["oneOf"] = [{"required": ["record"]}, {"required": ["alert"]}]

SCHEMAS = {
    "Certificate": _kind("cert-manager.io/v1", "Certificate", _object(
        ("secretName", "issuerRef", "dnsNames"), secretName={"type": "string"}, duration=_GO_DURATION, renewBefore=_GO_DURATION,
        dnsNames=_list({"type": "string"}), issuerRef=_object(("name",), name={"type": "string", "minLength": 1}, kind={"type": "string"},
                                                              group={"type": "string"}),
        privateKey=_object(algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]}, encoding={"enum": ["PKCS1", "PKCS8"]},
                           rotationPolicy={"enum": ["Never", "Always"]}, size={"type": "integer"}),
        usages=_list({"enum": ["digital signature", "key encipherment", "server auth", "client auth"]}))),
    "PodMonitor": _kind("monitoring.coreos.com/v1", "PodMonitor", _object(
        ("selector", "podMetricsEndpoints"), selector=_object(("matchLabels",), matchLabels=_STRINGS),
        podMetricsEndpoints=_list(_object(("port",), port={"type": "string"}, interval=_DURATION)))),
    "PrometheusRule": _kind("monitoring.coreos.com/v1", "PrometheusRule", _object(
        ("groups",), groups=_list(_object(("name", "rules"), name={"type": "string", "minLength": 1}, interval=_DURATION, rules=_list(_RULE))))),
}
