{{- /* Sets defaults of values that an earlier chart lacks, which `helm upgrade --reuse-values` leaves out, and empty ones for null. */ -}}
{{- define "exporter.defaults" -}}
{{- include "exporter.fill" (list .Values (.Files.Get "files/newer.yaml" | fromYaml)) }}
{{- end }}

{{- /* Sets the keys that are missing in values, at all depths: `list values defaults`. */ -}}
{{- define "exporter.fill" -}}
{{- $values := index . 0 }}
{{- range $key, $default := index . 1 }}
{{- $value := get $values $key }}
{{- if or (not (hasKey $values $key)) (kindIs "invalid" $value) }}
{{- $_ := set $values $key $default }}
{{- else if and (kindIs "map" $default) (kindIs "map" $value) }}
{{- include "exporter.fill" (list $value $default) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "exporter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "exporter.fullname" -}}
{{- $name := include "exporter.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Fullname plus a suffix, cut to the length of a name: `list . "suffix"`. */ -}}
{{- define "exporter.named" -}}
{{- $suffix := index . 1 }}
{{- $length := int (sub 62 (len $suffix)) }}
{{- printf "%s-%s" (include "exporter.fullname" (index . 0) | trunc $length | trimSuffix "-") $suffix }}
{{- end }}

{{- define "exporter.identity" -}}
app.kubernetes.io/name: {{ include "exporter.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "exporter.selector" -}}
{{ include "exporter.identity" . }}
app.kubernetes.io/component: exporter
{{- end }}

{{- define "exporter.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- $own := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service "helm.sh/chart" $chart }}
{{- include "exporter.merged" (list (include "exporter.identity" .) $own .Values.commonLabels) }}
{{- end }}

{{- /* Labels, each once, as maps or as text: the last one of a name wins. */ -}}
{{- define "exporter.merged" -}}
{{- $merged := dict }}
{{- range . }}
{{- range $name, $value := ternary (toString . | fromYaml) . (kindIs "string" .) }}
{{- $_ := set $merged $name $value }}
{{- end }}
{{- end }}
{{- toYaml $merged }}
{{- end }}

{{- /* The image: a registry that is set replaces the one in the repository, which has a dot or a port. */ -}}
{{- define "exporter.image" -}}
{{- $repository := .Values.image.repository }}
{{- with .Values.global.imageRegistry | default .Values.image.registry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $repository "") }}
{{- end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* The field imagePullSecrets of a pod, or nothing. */ -}}
{{- define "exporter.pullSecrets" -}}
{{- $secrets := .Values.imagePullSecrets }}
{{- range .Values.global.imagePullSecrets }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- with uniq $secrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "exporter.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "exporter.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "exporter.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* "true" where the exporter sees the node, else empty. */ -}}
{{- define "exporter.full" -}}
{{- if eq .Values.privilege.level "full" }}true{{ end }}
{{- end }}

{{- /* The secret with the web config, if there is one. */ -}}
{{- define "exporter.webSecret" -}}
{{- if .Values.webConfig.existingSecret }}
{{- .Values.webConfig.existingSecret }}
{{- else if .Values.webConfig.content }}
{{- include "exporter.named" (list . "web-config") }}
{{- end }}
{{- end }}

{{- define "exporter.scheme" -}}
{{- if or .Values.webConfig.tls (hasKey .Values.webConfig.content "tls_server_config") }}https{{ else }}http{{ end }}
{{- end }}

{{- /* GPUs that every pod must show: those listed, or one where labels choose the nodes. */ -}}
{{- define "exporter.promisedGpus" -}}
{{- $devices := ternary .Values.gpu.visibleDevices "all" (eq .Values.gpu.access "runtime") }}
{{- if or .Values.affinity (not .Values.gpuNodeLabels) (has $devices (list "none" "void")) }}0
{{- else if or (eq $devices "all") (hasPrefix "/" $devices) }}1
{{- else }}{{ splitList "," $devices | len }}
{{- end }}
{{- end }}

{{- /* The probe for a path: `list . "/-/ready"`. */ -}}
{{- define "exporter.probe" -}}
{{- $root := index . 0 }}
{{- $type := $root.Values.probes.type | default (ternary "tcp" "http" (include "exporter.webSecret" $root | empty | not)) }}
{{- if eq $type "tcp" -}}
tcpSocket:
  port: metrics
{{- else -}}
httpGet:
  path: {{ index . 1 }}
  port: metrics
  scheme: {{ include "exporter.scheme" $root | upper }}
{{- end }}
{{- end }}

{{- /* Those of the named values that are set, each as a field: `list values "name" …`. */ -}}
{{- define "exporter.fields" -}}
{{- $values := first . }}
{{- range $name := rest . }}
{{- with get $values $name }}
{{ $name }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What ServiceMonitor and PodMonitor share beside their endpoints: `list . values`. */ -}}
{{- define "exporter.monitor" -}}
{{- $root := index . 0 }}
{{- with index . 1 -}}
jobLabel: {{ .jobLabel | quote }}
namespaceSelector:
  matchNames:
    - {{ include "exporter.namespace" $root | quote }}
selector:
  matchLabels:
    {{- include "exporter.selector" $root | nindent 4 }}
{{- include "exporter.fields" (list . "attachMetadata" "podTargetLabels" "targetLabels" "sampleLimit" "labelLimit" "labelNameLengthLimit" "labelValueLengthLimit") }}
{{- end }}
{{- end }}

{{- /* The endpoint of a ServiceMonitor or PodMonitor: `list . values`. */ -}}
{{- define "exporter.endpoint" -}}
{{- $root := index . 0 }}
{{- with index . 1 -}}
port: metrics
path: {{ $root.Values.exporter.telemetryPath }}
scheme: {{ include "exporter.scheme" $root }}
interval: {{ .interval }}
scrapeTimeout: {{ .scrapeTimeout }}
honorLabels: {{ .honorLabels }}
{{- include "exporter.fields" (list . "tlsConfig" "basicAuth" "authorization" "proxyUrl") }}
relabelings:
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  {{- if .nodeAsInstance }}
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: instance
  {{- end }}
  # Labels of the exporter's own pod change with each rollout, which would end every series.
  - action: labeldrop
    regex: pod|container|endpoint|service
  {{- with .relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
