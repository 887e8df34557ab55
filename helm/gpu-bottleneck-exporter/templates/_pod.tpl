{{- define "exporter.podAnnotations" -}}
{{- $annotations := dict "kubectl.kubernetes.io/default-container" "exporter" }}
{{- if eq .Values.gpu.access "nri" }}
{{- $_ := set $annotations "nvidia.cdi.k8s.io/container.exporter" .Values.gpu.cdiDevice }}
{{- end }}
{{- /* The exporter rereads a changed web config, but switching TLS on or off takes a new pod. */}}
{{- if include "exporter.webSecret" . }}
{{- $_ := set $annotations "web-config/scheme" (include "exporter.scheme" .) }}
{{- end }}
{{- toYaml (mergeOverwrite $annotations (deepCopy .Values.podAnnotations)) }}
{{- end }}

{{- define "exporter.pod" -}}
{{- with include "exporter.pullSecrets" . }}
{{ . }}
{{- end }}
serviceAccountName: {{ include "exporter.serviceAccount" . | quote }}
automountServiceAccountToken: false
# Service links of a service called gpu-exporter would look like the exporter's own variables.
enableServiceLinks: false
{{- if include "exporter.full" . }}
hostPID: true
{{- end }}
{{- if .Values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- with .Values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" .Values.hostNetwork) }}
dnsPolicy: {{ . }}
{{- end }}
{{- if and (eq .Values.gpu.access "runtime") .Values.gpu.runtimeClassName }}
runtimeClassName: {{ .Values.gpu.runtimeClassName | quote }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
securityContext:
  {{- include "exporter.podSecurityContext" . | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "exporter.affinity" . | fromYaml }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: exporter
    image: {{ include "exporter.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      {{- include "exporter.arguments" . | nindent 6 }}
    env:
      {{- include "exporter.variables" . | nindent 6 }}
    ports:
      - name: metrics
        containerPort: {{ .Values.exporter.port }}
        {{- with .Values.hostPort }}
        hostPort: {{ . }}
        {{- end }}
        protocol: TCP
    {{- range $name, $path := dict "startup" "/-/healthy" "readiness" "/-/ready" "liveness" "/-/healthy" }}
    {{- with get $.Values.probes $name }}
    {{ $name }}Probe:
      {{- include "exporter.probe" (list $ $path) | nindent 6 }}
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- with .Values.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- include "exporter.securityContext" . | nindent 6 }}
    {{- with include "exporter.mounts" . | fromYamlArray }}
    volumeMounts:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- with include "exporter.volumes" . | fromYamlArray }}
volumes:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "exporter.affinity" -}}
{{- if .Values.affinity }}
{{- toYaml .Values.affinity }}
{{- else if .Values.gpuNodeLabels -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range .Values.gpuNodeLabels }}
      - matchExpressions:
          - {{ toJson . }}
      {{- end }}
{{- end }}
{{- end }}

{{- define "exporter.arguments" -}}
- serve
- --web.listen-address=:{{ .Values.exporter.port }}
- --web.telemetry-path={{ .Values.exporter.telemetryPath }}
- --log.level={{ .Values.exporter.logLevel }}
- --log.format={{ .Values.exporter.logFormat }}
{{- with .Values.runbookBaseUrl }}
- --web.runbook-base={{ . }}
{{- end }}
{{- range .Values.exporter.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "exporter.kubelet" -}}
{{- if and .Values.kubelet.enabled (include "exporter.full" .) }}true{{ end }}
{{- end }}

{{- /* The capabilities that the container gets, as JSON; Kubernetes writes them without CAP_. */ -}}
{{- define "exporter.capabilities" -}}
{{- $names := list }}
{{- if include "exporter.full" . }}
{{- range .Values.privilege.capabilities }}
{{- $names = append $names (trimPrefix "CAP_" .) }}
{{- end }}
{{- end }}
{{- uniq $names | toJson }}
{{- end }}

{{- /* Signals that the values switch off: `check` reports them as switched off, not as gaps. */ -}}
{{- define "exporter.without" -}}
{{- $capabilities := include "exporter.capabilities" . | fromJsonArray }}
{{- $without := list }}
{{- if not (include "exporter.full" .) }}
{{- $without = list "host_pids" "cgroup_cpu" "cgroup_memory" "psi_cgroup" }}
{{- end }}
{{- if not (include "exporter.kubelet" .) }}
{{- $without = append $without "kubelet" }}
{{- end }}
{{- if ne .Values.gpu.access "privileged" }}
{{- if not (has "SYS_PTRACE" $capabilities) }}
{{- $without = append $without "wait_channel" }}
{{- end }}
{{- if not (and (has "SYS_PTRACE" $capabilities) (has "DAC_READ_SEARCH" $capabilities)) }}
{{- $without = concat $without (list "connections" "process_io") }}
{{- end }}
{{- end }}
{{- join "," $without }}
{{- end }}

{{- /* All variables, each once, as server-side apply refuses a second one: the last wins, so extraEnv. */ -}}
{{- define "exporter.variables" -}}
{{- $variables := list }}
{{- $names := list }}
{{- range reverse (concat (include "exporter.environment" . | fromYamlArray) .Values.exporter.extraEnv) }}
{{- if not (has .name $names) }}
{{- $names = append $names .name }}
{{- $variables = prepend $variables . }}
{{- end }}
{{- end }}
{{- toYaml $variables }}
{{- end }}

{{/* Also for `check`, which runs in the container and does not see the arguments. */}}
{{- define "exporter.environment" -}}
# The pod's own name, which is the host name, changes with each rollout.
- name: GPU_EXPORTER_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if include "exporter.webSecret" . }}
- name: GPU_EXPORTER_WEB_CONFIG_FILE
  value: /etc/gpu-bottleneck-exporter/web/{{ .Values.webConfig.key }}
{{- end }}
{{- range .Values.exporter.disabledCollectors }}
- name: GPU_EXPORTER_COLLECTOR_{{ upper . }}
  value: "false"
{{- end }}
{{- range .Values.exporter.enabledCollectors }}
- name: GPU_EXPORTER_COLLECTOR_{{ upper . }}
  value: "true"
{{- end }}
{{- if include "exporter.kubelet" . }}
- name: GPU_EXPORTER_KUBELET_SOCKET
  value: {{ .Values.kubelet.podResourcesPath }}/kubelet.sock
{{- with .Values.kubelet.containerLogsPath }}
- name: GPU_EXPORTER_KUBELET_CONTAINER_LOGS
  value: {{ . }}
{{- end }}
{{- with .Values.kubelet.cdiPath }}
- name: GPU_EXPORTER_KUBELET_CDI
  value: {{ . }}
{{- end }}
{{- end }}
{{- with include "exporter.without" . }}
- name: GPU_EXPORTER_WITHOUT
  value: {{ . }}
{{- end }}
{{- if eq .Values.gpu.access "runtime" }}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ .Values.gpu.visibleDevices | quote }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- else if eq .Values.gpu.access "privileged" }}
- name: LD_LIBRARY_PATH
  value: /usr/local/nvidia/lib64
{{- end }}
{{- with .Values.jobs }}
{{- if .volume }}
- name: GPU_EXPORTER_JOBS_STATE_FILE
  value: /var/lib/gpu-bottleneck-exporter/jobs
{{- end }}
- name: GPU_EXPORTER_JOBS_KEEP
  value: {{ int64 .keep | quote }}
- name: GPU_EXPORTER_JOBS_KEEP_FOR
  value: {{ .keepFor }}
{{- with .claims }}
- name: GPU_EXPORTER_JOBS_CLAIMS
  value: {{ join "," . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "exporter.podSecurityContext" -}}
{{- $context := dict "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if include "exporter.full" . }}
{{- $_ := merge $context (dict "runAsUser" 0 "runAsGroup" 0) }}
{{- else }}
{{- $_ := merge $context (dict "runAsNonRoot" true "runAsUser" 65534 "runAsGroup" 65534 "fsGroup" 65534) }}
{{- end }}
{{- toYaml (mergeOverwrite $context (deepCopy .Values.podSecurityContext)) }}
{{- end }}

{{- define "exporter.securityContext" -}}
{{- $context := dict "readOnlyRootFilesystem" true }}
{{- if eq .Values.gpu.access "privileged" }}
{{- $_ := set $context "privileged" true }}
{{- else }}
{{- $capabilities := dict "drop" (list "ALL") }}
{{- with include "exporter.capabilities" . | fromJsonArray }}
{{- $_ := set $capabilities "add" . }}
{{- end }}
{{- $_ := merge $context (dict "allowPrivilegeEscalation" false "capabilities" $capabilities) }}
{{- end }}
{{- toYaml (mergeOverwrite $context (deepCopy .Values.securityContext)) }}
{{- end }}

{{- /* Without `recursiveReadOnly`, mounts below the folder (controllers of cgroup v1) stay writable. */ -}}
{{- define "exporter.readOnly" -}}
readOnly: true
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}
recursiveReadOnly: IfPossible
{{- end }}
{{- end }}

{{- /* Only the cgroups, not all of /sys: before Kubernetes 1.30, mounts below it (debugfs) would be writable. */ -}}
{{- define "exporter.mounts" -}}
{{- if include "exporter.full" . }}
- name: cgroup
  mountPath: /sys/fs/cgroup
  {{- include "exporter.readOnly" $ | nindent 2 }}
{{- end }}
{{- if include "exporter.kubelet" . }}
- name: pod-resources
  mountPath: {{ .Values.kubelet.podResourcesPath }}
  {{- include "exporter.readOnly" $ | nindent 2 }}
{{- with .Values.kubelet.containerLogsPath }}
- name: container-logs
  mountPath: {{ . }}
  {{- include "exporter.readOnly" $ | nindent 2 }}
{{- end }}
{{- with .Values.kubelet.cdiPath }}
- name: cdi
  mountPath: {{ . }}
  {{- include "exporter.readOnly" $ | nindent 2 }}
{{- end }}
{{- end }}
{{- if eq .Values.gpu.access "privileged" }}
- name: driver
  mountPath: /usr/local/nvidia/lib64
  {{- include "exporter.readOnly" $ | nindent 2 }}
- name: dev
  mountPath: /dev
{{- end }}
{{- if include "exporter.webSecret" . }}
- name: web-config
  mountPath: /etc/gpu-bottleneck-exporter/web
  {{- include "exporter.readOnly" $ | nindent 2 }}
{{- end }}
{{- if .Values.jobs.volume }}
- name: jobs
  mountPath: /var/lib/gpu-bottleneck-exporter
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "exporter.volumes" -}}
{{- if include "exporter.full" . }}
- name: cgroup
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
{{- end }}
{{- if include "exporter.kubelet" . }}
- name: pod-resources
  hostPath:
    path: {{ .Values.kubelet.podResourcesPath }}
    type: Directory
{{- with .Values.kubelet.containerLogsPath }}
- name: container-logs
  hostPath:
    path: {{ . }}
    type: Directory
{{- end }}
{{- with .Values.kubelet.cdiPath }}
- name: cdi
  hostPath:
    path: {{ . }}
    type: Directory
{{- end }}
{{- end }}
{{- if eq .Values.gpu.access "privileged" }}
- name: driver
  hostPath:
    path: {{ .Values.gpu.libraryPath }}
    type: Directory
- name: dev
  hostPath:
    path: /dev
    type: Directory
{{- end }}
{{- if include "exporter.webSecret" . }}
- name: web-config
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "exporter.webSecret" . }}
      {{- with .Values.webConfig.certificateSecret }}
      - secret:
          name: {{ . }}
      {{- end }}
{{- end }}
{{- with .Values.jobs.volume }}
- name: jobs
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
