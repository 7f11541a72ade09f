"""The table of built-in kinds: names, scope, subresources and selectable fields."""

from collections.abc import Iterator

from kubelite.builtin import fields
from kubelite.kinds import ALL_VERBS, SELECTABLE, Kind, Scale
from kubelite.schema.tree import Node

CORE, APPS, BATCH = "v1", "apps/v1", "batch/v1"
COORDINATION, EVENTS, SCHEDULING = "coordination.k8s.io/v1", "events.k8s.io/v1", "scheduling.k8s.io/v1"
RBAC, ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
EXTENSIONS, POLICY, STORAGE = "apiextensions.k8s.io/v1", "policy/v1", "storage.k8s.io/v1"
DISCOVERY = "discovery.k8s.io/v1"

_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    *(
        f"involvedObject.{name}"
        for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    ),
    "reason",
    "reportingComponent",
    "source",
    "type",
)
_EVENT_V1_FIELDS = tuple(name.replace("involvedObject", "regarding") for name in _EVENT_FIELDS)
_PLAIN_SCALE, _SELECTED_SCALE = Scale(), Scale(selector_path=".spec.selector")

# apiVersion, kind, plural, short names, namespaced, has status, has generation
_ROWS: tuple[tuple[str, str, str, str, bool, bool, bool], ...] = (
    (CORE, "ConfigMap", "configmaps", "cm", True, False, False),
    (CORE, "Endpoints", "endpoints", "ep", True, False, False),
    (CORE, "Event", "events", "ev", True, False, False),
    (CORE, "LimitRange", "limitranges", "limits", True, False, False),
    (CORE, "Namespace", "namespaces", "ns", False, True, False),
    (CORE, "Node", "nodes", "no", False, True, False),
    (CORE, "PersistentVolume", "persistentvolumes", "pv", False, True, False),
    (CORE, "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", True, True, False),
    (CORE, "Pod", "pods", "po", True, True, True),
    (CORE, "ResourceQuota", "resourcequotas", "quota", True, True, False),
    (CORE, "Secret", "secrets", "", True, False, False),
    (CORE, "Service", "services", "svc", True, True, False),
    (CORE, "ServiceAccount", "serviceaccounts", "sa", True, False, False),
    (APPS, "ControllerRevision", "controllerrevisions", "", True, False, False),
    (APPS, "DaemonSet", "daemonsets", "ds", True, True, True),
    (APPS, "Deployment", "deployments", "deploy", True, True, True),
    (APPS, "ReplicaSet", "replicasets", "rs", True, True, True),
    (APPS, "StatefulSet", "statefulsets", "sts", True, True, True),
    (BATCH, "CronJob", "cronjobs", "cj", True, True, True),
    (BATCH, "Job", "jobs", "", True, True, True),
    (COORDINATION, "Lease", "leases", "", True, False, False),
    (EVENTS, "Event", "events", "ev", True, False, False),
    (SCHEDULING, "PriorityClass", "priorityclasses", "pc", False, False, True),
    (RBAC, "ClusterRole", "clusterroles", "", False, False, False),
    (RBAC, "ClusterRoleBinding", "clusterrolebindings", "", False, False, False),
    (RBAC, "Role", "roles", "", True, False, False),
    (RBAC, "RoleBinding", "rolebindings", "", True, False, False),
    (ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "", False, False, True),
    (ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "", False, False, True),
    (EXTENSIONS, "CustomResourceDefinition", "customresourcedefinitions", "crd crds", False, True, True),
    (POLICY, "PodDisruptionBudget", "poddisruptionbudgets", "pdb", True, True, True),
    (STORAGE, "StorageClass", "storageclasses", "sc", False, False, False),
    (DISCOVERY, "EndpointSlice", "endpointslices", "", True, False, True),
)
_REVIEWS = (
    ("authentication.k8s.io/v1", "TokenReview", "tokenreviews"),
    ("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews"),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    ("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews"),
)
_SUBRESOURCES = {
    "pods": ("binding", "eviction", "ephemeralcontainers"),
    "serviceaccounts": ("token",),
    "namespaces": ("finalize",),
}
_SCALED = {"deployments": _SELECTED_SCALE, "replicasets": _SELECTED_SCALE, "statefulsets": _SELECTED_SCALE}
_CATEGORIES = {
    **dict.fromkeys(
        ("pods", "services", "deployments", "daemonsets", "replicasets", "statefulsets", "jobs", "cronjobs"),
        ("all",),
    ),
    **dict.fromkeys(
        ("mutatingwebhookconfigurations", "validatingwebhookconfigurations", "customresourcedefinitions"),
        ("api-extensions",),
    ),
}
# kube-apiserver requires a resource version for updates of these.
_CONDITIONAL = {
    "leases",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "customresourcedefinitions",
    "poddisruptionbudgets",
}


def builtin_kinds() -> Iterator[Kind]:
    """Yield every built-in kind."""
    for api_version, kind, plural, short, namespaced, status, generation in _ROWS:
        group, _, version = api_version.rpartition("/")
        type_name = "EventV1" if api_version == EVENTS else kind
        yield Kind(
            group=group,
            version=version,
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            namespaced=namespaced,
            schema=_with_type_fields(type_name),
            type_name=type_name,
            short_names=tuple(short.split()),
            categories=_CATEGORIES.get(plural, ()),
            status=status,
            scale=_SCALED.get(plural),
            extra_subresources=_SUBRESOURCES.get(plural, ()),
            fields=_selectable(api_version, plural),
            collection="events" if plural == "events" else f"{group}/{plural}" if group else plural,
            unconditional_update=plural not in _CONDITIONAL,
            generation=generation,
            verbs=ALL_VERBS,
        )
    for api_version, kind, plural in _REVIEWS:
        group, _, version = api_version.rpartition("/")
        yield Kind(
            group=group,
            version=version,
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            namespaced=False,
            schema=_with_type_fields(kind),
            type_name=kind,
            verbs=("create",),
        )


def _with_type_fields(type_name: str) -> Node:
    node = fields.node(type_name)
    for name in ("apiVersion", "kind"):
        node.properties.setdefault(name, fields.node("str"))
    return node


def _selectable(api_version: str, plural: str) -> tuple[str, ...]:
    if plural == "events":
        return SELECTABLE + (_EVENT_V1_FIELDS if api_version == EVENTS else _EVENT_FIELDS)
    extra = {
        "pods": _POD_FIELDS,
        "nodes": ("spec.unschedulable",),
        "namespaces": ("status.phase",),
        "secrets": ("type",),
        "jobs": ("status.successful",),
        "replicasets": ("status.replicas",),
        "services": ("spec.clusterIP", "spec.type"),
    }
    return SELECTABLE + extra.get(plural, ())
