{{/* Names and labels. */}}
{{- define "gpu-scheduler.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 48 | trimSuffix "-" }}
{{- end }}

{{/* Truncated to 48 characters, so that "-kube-scheduler" fits into the 63 characters of a label. */}}
{{- define "gpu-scheduler.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else }}
{{- $name := include "gpu-scheduler.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 48 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects. It differs between releases in different namespaces. */}}
{{- define "gpu-scheduler.clusterName" -}}
{{- $full := include "gpu-scheduler.fullname" . }}
{{- ternary $full (printf "%s-%s" .Release.Namespace $full) (eq .Release.Namespace "default") }}
{{- end }}

{{/* Call the following with (dict "root" $ "component" "webhook"). */}}
{{- define "gpu-scheduler.selector" -}}
app.kubernetes.io/name: {{ include "gpu-scheduler.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gpu-scheduler.labels" -}}
{{ include "gpu-scheduler.selector" . }}
app.kubernetes.io/part-of: gpufleet
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end }}

{{/* Image of a component. Its own repository, tag and digest take precedence over the common ones. A digest names one
image, so the common one counts only for components with the common repository and tag. */}}
{{- define "gpu-scheduler.image" -}}
{{- $own := .values.image }}
{{- $all := .root.Values.image }}
{{- $tag := default (default (printf "v%s" .root.Chart.AppVersion) $all.tag) $own.tag }}
{{- $digest := ternary $own.digest (default $all.digest $own.digest) (or (ne $own.tag "") (ne $own.repository "")) }}
{{- include "gpu-scheduler.imageReference" (list (default $all.repository $own.repository) $tag $digest) }}
{{- end }}

{{/* Call with a repository, a tag and a digest, which is used instead of the tag if it is set. */}}
{{- define "gpu-scheduler.imageReference" -}}
{{- index . 2 | empty | not | ternary (printf "%s@%s" (index . 0) (index . 2)) (printf "%s:%s" (index . 0) (index . 1)) | quote }}
{{- end }}

{{/* Fields of every pod. Pass the component's values as .values. */}}
{{- define "gpu-scheduler.podSpec" -}}
serviceAccountName: {{ include "gpu-scheduler.fullname" .root }}-{{ .component }}
# Variables of a Service named gpufleet-… would look like settings of gpufleet.
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.priorityClassName }}
priorityClassName: {{ .values.priorityClassName }}
{{- else if .root.Values.priorityClass.create }}
priorityClassName: {{ include "gpu-scheduler.clusterName" .root }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.affinity }}
affinity:
  {{- toYaml .values.affinity | nindent 2 }}
{{- else if ne .component "agent" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "gpu-scheduler.selector" . | nindent 14 }}
{{- end }}
{{- end }}

{{- define "gpu-scheduler.podMetadata" -}}
labels:
  {{- include "gpu-scheduler.labels" . | nindent 2 }}
annotations:
  kubectl.kubernetes.io/default-container: {{ .component }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "gpu-scheduler.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gpu-scheduler.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Environment variables of every gpufleet container. */}}
{{- define "gpu-scheduler.env" -}}
- name: GPUFLEET_LOG_LEVEL
  value: {{ .root.Values.log.level | quote }}
- name: GPUFLEET_LOG_FORMAT
  value: {{ .root.Values.log.format | quote }}
- name: GPUFLEET_KUBERNETES_LEASE_NAMESPACE
  value: {{ .root.Release.Namespace | quote }}
{{- end }}

{{/* Host name of the scheduler. The Service routes to the leader, because only the leader is Ready. */}}
{{- define "gpu-scheduler.schedulerHost" -}}
{{- printf "%s-scheduler.%s.svc" (include "gpu-scheduler.fullname" .) .Release.Namespace }}
{{- end }}

{{/* Secret with the certificate of the extender and of kube-scheduler. The scheduler makes and renews it. */}}
{{- define "gpu-scheduler.extenderSecret" -}}
{{- printf "%s-scheduler-tls" (include "gpu-scheduler.fullname" .) }}
{{- end }}
