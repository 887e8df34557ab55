{{- /* Values that the schema cannot refuse, or not in a sentence. */ -}}
{{- define "exporter.check" -}}
{{- if and .Values.jobs.volume.hostPath (dig "rollingUpdate" "maxSurge" "" .Values.updateStrategy) }}
{{- fail "updateStrategy.rollingUpdate.maxSurge: with jobs.volume.hostPath, a new pod waits for the file of the old one" }}
{{- end }}
{{- if not (include "exporter.full" .) }}
{{- if eq .Values.gpu.access "privileged" }}
{{- fail "gpu.access=privileged runs a privileged container and needs privilege.level=full" }}
{{- end }}
{{- if .Values.jobs.volume.hostPath }}
{{- fail "jobs.volume.hostPath needs privilege.level=full" }}
{{- end }}
{{- if or .Values.hostNetwork .Values.hostPort }}
{{- fail "hostNetwork and hostPort need privilege.level=full: the Pod Security Standards forbid them" }}
{{- end }}
{{- end }}
{{- if and .Values.hostNetwork .Values.hostPort (ne (int .Values.hostPort) (int .Values.exporter.port)) }}
{{- fail "hostPort: with hostNetwork, the port is exporter.port" }}
{{- end }}
{{- if and .Values.service.internalTrafficPolicy (eq .Values.service.clusterIP "None") }}
{{- fail "service.internalTrafficPolicy needs an address of the service: set service.clusterIP to nothing" }}
{{- end }}
{{- if .Values.podMonitor.targetLabels }}
{{- fail "podMonitor.targetLabels: a PodMonitor knows only podTargetLabels" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) }}
{{- fail "serviceMonitor.enabled needs service.enabled; podMonitor.enabled does not" }}
{{- end }}
{{- if and .Values.webConfig.existingSecret .Values.webConfig.content }}
{{- fail "set webConfig.existingSecret or webConfig.content, not both" }}
{{- end }}
{{- if and .Values.webConfig.certificateSecret (not (include "exporter.webSecret" .)) }}
{{- fail "webConfig.certificateSecret needs a web config that names its tls.crt and tls.key" }}
{{- end }}
{{- include "exporter.checkPrivileges" . }}
{{- include "exporter.checkOptions" . }}
{{- range $name := list "serviceMonitor" "podMonitor" }}
{{- with get $.Values $name }}
{{- if and .basicAuth .authorization }}
{{- fail (printf "%s: set basicAuth or authorization, not both, which Prometheus refuses" $name) }}
{{- end }}
{{- if and .enabled (gt (include "exporter.milliseconds" .scrapeTimeout | int64) (include "exporter.milliseconds" .interval | int64)) }}
{{- fail (printf "%s.scrapeTimeout: %s is longer than the interval, %s, which Prometheus refuses" $name .scrapeTimeout .interval) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "exporter.checkPrivileges" -}}
{{- $names := splitList " " "AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM" }}
{{- range .Values.privilege.capabilities }}
{{- if has (trimPrefix "CAP_" .) (list "ALL" "SYS_ADMIN") }}
{{- fail (printf "privilege.capabilities: %s is as good as a privileged container; where GPUs need one, set gpu.access=privileged" .) }}
{{- else if not (has (trimPrefix "CAP_" .) $names) }}
{{- fail (printf "privilege.capabilities: %s is not a capability of Linux, such as SYS_PTRACE" .) }}
{{- end }}
{{- end }}
{{- if hasKey .Values.securityContext "capabilities" }}
{{- fail "securityContext: capabilities are set by privilege.capabilities" }}
{{- end }}
{{- if hasKey .Values.securityContext "privileged" }}
{{- fail "securityContext: privileged is set by gpu.access=privileged" }}
{{- end }}
{{- range $kind, $quantities := .Values.resources }}
{{- range $resource, $_ := $quantities }}
{{- if hasPrefix "nvidia.com/" $resource }}
{{- fail (printf "resources.%s: %s would take a GPU from jobs; the exporter gets at all GPUs by gpu.access" $kind $resource) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Values that become options which the exporter would refuse, or which probes and Service rely on. */ -}}
{{- define "exporter.checkOptions" -}}
{{- if regexMatch "^/(-|api)/" .Values.exporter.telemetryPath }}
{{- fail (printf "exporter.telemetryPath: %s is below /-/ or /api/, which the exporter uses itself" .Values.exporter.telemetryPath) }}
{{- end }}
{{- range .Values.exporter.extraArgs }}
{{- if regexMatch "^--web[.](listen-address|telemetry-path)(=|$)" . }}
{{- fail (printf "exporter.extraArgs: instead of %s, set exporter.port and exporter.telemetryPath, which probes, Service and monitors use, too" .) }}
{{- end }}
{{- end }}
{{- $kept := include "exporter.milliseconds" .Values.jobs.keepFor | int64 }}
{{- if or (lt $kept 60000) (gt $kept 31622400000) }}
{{- fail (printf "jobs.keepFor: %s is not 1m to 366d" .Values.jobs.keepFor) }}
{{- end }}
{{- end }}

{{- /* Milliseconds of a duration such as 1m30s. */ -}}
{{- define "exporter.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "w" 604800000 }}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+(ms|[smhdw])" . -1 }}
{{- $sum = add $sum (mul (regexFind "^[0-9]+" . | int64) (regexFind "[a-z]+$" . | get $units)) }}
{{- end }}
{{- $sum }}
{{- end }}
