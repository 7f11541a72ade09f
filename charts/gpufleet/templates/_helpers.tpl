{{- define "gpufleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 48 | trimSuffix "-" }}
{{- end }}

{{/* Truncated to 48 characters, so that "-postgresql-0" fits into the 63 characters of a label. */}}
{{- define "gpufleet.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else }}
{{- $name := include "gpufleet.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 48 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects. It differs between releases in different namespaces. */}}
{{- define "gpufleet.clusterName" -}}
{{- $full := include "gpufleet.fullname" . }}
{{- ternary $full (printf "%s-%s" .Release.Namespace $full) (eq .Release.Namespace "default") }}
{{- end }}

{{/* Call with (dict "root" $ "component" "server"). */}}
{{- define "gpufleet.selector" -}}
app.kubernetes.io/name: {{ include "gpufleet.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gpufleet.labels" -}}
{{ include "gpufleet.selector" . }}
app.kubernetes.io/part-of: gpufleet
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end }}

{{- define "gpufleet.image" -}}
{{- $image := .Values.image }}
{{- include "gpufleet.imageReference" (list $image.repository (default (printf "v%s" .Chart.AppVersion) $image.tag) $image.digest) }}
{{- end }}

{{/* Call with a repository, a tag and a digest, which is used instead of the tag if it is set. */}}
{{- define "gpufleet.imageReference" -}}
{{- index . 2 | empty | not | ternary (printf "%s@%s" (index . 0) (index . 2)) (printf "%s:%s" (index . 0) (index . 1)) | quote }}
{{- end }}

{{- define "gpufleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gpufleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Database in use: `existing` (a Secret), `url` (a value) or `bundled`. */}}
{{- define "gpufleet.database" -}}
{{- if .Values.database.existingSecret.name }}existing
{{- else if .Values.database.url }}url
{{- else if .Values.database.bundled.enabled }}bundled
{{- else }}{{ fail "database: set database.existingSecret.name or database.url, or turn on database.bundled.enabled" }}
{{- end }}
{{- end }}

{{- define "gpufleet.databaseSecret" -}}
{{- if eq (include "gpufleet.database" .) "existing" }}{{ .Values.database.existingSecret.name }}
{{- else }}{{ include "gpufleet.fullname" . }}-database
{{- end }}
{{- end }}

{{/* Fail here instead of at the start of the server. */}}
{{- define "gpufleet.checkLogin" -}}
{{- $auth := .Values.auth }}
{{- if not (or $auth.tokenReview $auth.oidc.issuer $auth.tokensSecret.name $auth.insecure) }}
{{- fail "auth: the API would need no login; turn on auth.tokenReview, set auth.oidc.issuer or auth.tokensSecret.name, or turn on auth.insecure" }}
{{- end }}
{{- if and $auth.oidc.issuer (not (or $auth.viewerGroups $auth.operatorGroups $auth.groupNamespaces)) }}
{{- fail "auth.oidc: it would admit no user; set auth.viewerGroups, auth.operatorGroups or auth.groupNamespaces" }}
{{- end }}
{{- end }}
