{{- /* The groups of rules/*.yml by object, changed by the values. Their text is data: it holds Prometheus templates. */ -}}
{{- define "exporter.ruleGroups" -}}
{{- $groups := dict "" (list) "alerts" (list) "inputs" (list) }}
{{- $known := dict "alerts" (dict) "thresholds" (dict) }}
{{- $wanted := $.Values.prometheusRule }}
{{- $untold := include "exporter.untold" . | fromYaml }}
{{- /* All are read, as an alert may be disabled that budgets would add. */}}
{{- $asked := dict "owners.yml" $wanted.ownerLabel "budgets.yml" $wanted.budgets }}
{{- range $file := list "thresholds.yml" "recording.yml" "serving.yml" "alerts.yml" "reclaim.yml" "owners.yml" "budgets.yml" }}
{{- range $group := ($.Files.Get (printf "rules/%s" $file) | replace "label_team" (default "" $wanted.ownerLabel) | fromYaml).groups }}
{{- $rules := list }}
{{- range $rule := $group.rules }}
{{- $_ := include "exporter.rule" (list $ $rule $known) }}
{{- if and (eq (default "" $rule.record) "gpu:cause:order") (not $rule.labels.hour) (or (hasKey $untold $rule.labels.cause) (hasKey $untold (default "" $rule.labels.symptom))) }}
{{- $_ := set $rule.labels "hour" "untold" }}
{{- end }}
{{- if eq (default "" $rule.record) "owner:budget:gpu_hours" }}
{{- range $owner, $hours := $wanted.budgets }}
{{- $rules = append $rules (merge (dict "labels" (dict "workload_owner" $owner) "expr" (printf "vector(%s)" (toJson $hours))) $rule) }}
{{- end }}
{{- else if include "exporter.isEnabled" (list $ (get $rule "alert")) }}
{{- $rules = append $rules $rule }}
{{- end }}
{{- end }}
{{- if or (not (hasKey $asked $file)) (get $asked $file) }}
{{- $object := get (dict "alerts.yml" "alerts" "reclaim.yml" "alerts" "budgets.yml" "alerts" "serving.yml" "inputs" "owners.yml" "inputs") $file }}
{{- $_ := set $groups $object (append (get $groups $object) (set $group "rules" $rules)) }}
{{- end }}
{{- end }}
{{- end }}
{{- range concat $.Values.prometheusRule.disabledAlerts (keys $.Values.prometheusRule.alerts) }}
{{- if not (hasKey $known.alerts .) }}
{{- fail (printf "prometheusRule.alerts: unknown alert %s" .) }}
{{- end }}
{{- end }}
{{- range $name, $_ := $.Values.prometheusRule.thresholds }}
{{- if not (hasKey $known.thresholds $name) }}
{{- fail (printf "prometheusRule.thresholds: unknown threshold %s; known are %s" $name (keys $known.thresholds | sortAlpha | join ", ")) }}
{{- end }}
{{- end }}
{{- toYaml $groups }}
{{- end }}

{{- /* "true" unless the values switch an alert off: `list . name`. */ -}}
{{- define "exporter.isEnabled" -}}
{{- $wanted := (index . 0).Values.prometheusRule }}
{{- $change := default (dict) (get $wanted.alerts (index . 1)) }}
{{- if and (not (has (index . 1) $wanted.disabledAlerts)) (ne (toString $change.enabled) "false") }}true{{ end }}
{{- end }}

{{- /* Causes and symptoms whose alerts are switched off or an info: no warning of GpuUnderused either. */ -}}
{{- define "exporter.untold" -}}
{{- $untold := dict }}
{{- range $group := (.Files.Get "rules/alerts.yml" | fromYaml).groups }}
{{- range $rule := $group.rules }}
{{- $change := default (dict) (get $.Values.prometheusRule.alerts $rule.alert) }}
{{- if or (eq (default "" $change.severity) "info") (not (include "exporter.isEnabled" (list $ $rule.alert))) }}
{{- range concat (list $rule.labels.cause) (regexFindAll "symptom=\"[a-z_]+" $rule.expr -1) }}
{{- $_ := set $untold (default "" . | trimPrefix "symptom=\"") true }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml (omit $untold "") }}
{{- end }}

{{- /* Changes one rule in place, and notes its name: `list . rule known`. */ -}}
{{- define "exporter.rule" -}}
{{- $root := index . 0 }}
{{- $wanted := $root.Values.prometheusRule }}
{{- $rule := index . 1 }}
{{- $known := index . 2 }}
{{- if hasKey $rule "alert" }}
{{- $_ := set $known.alerts $rule.alert true }}
{{- if and $wanted.workloadNamespace (eq $rule.labels.responder "job") }}
{{- $_ := set $rule.labels "namespace" (printf "{{ or $labels.workload_namespace $labels.namespace %q }}" (include "exporter.namespace" $root)) }}
{{- end }}
{{- with get $wanted.alerts $rule.alert }}
{{- $_ := set $rule.labels "severity" (default $rule.labels.severity .severity) }}
{{- $_ := set $rule "for" (get . "for" | default $rule.for) }}
{{- end }}
{{- $_ := set $rule "labels" (mergeOverwrite (default (dict) $rule.labels) (deepCopy $wanted.alertLabels)) }}
{{- with $root.Values.runbookBaseUrl }}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s/%s" (trimSuffix "/" .) (base $rule.annotations.runbook_url)) }}
{{- end }}
{{- with $root.Values.grafanaUrl }}
{{- $_ := set $rule.annotations "dashboard_url" (printf "%s%s" (trimSuffix "/" .) $rule.annotations.dashboard_path) }}
{{- $_ := unset $rule.annotations "dashboard_path" }}
{{- end }}
{{- if not $wanted.keepFiringFor }}
{{- $_ := unset $rule "keep_firing_for" }}
{{- end }}
{{- else if hasPrefix "gpu:threshold:" $rule.record }}
{{- $name := trimPrefix "gpu:threshold:" $rule.record }}
{{- $_ := set $known.thresholds $name true }}
{{- if hasKey $wanted.thresholds $name }}
{{- $_ := set $rule "expr" (include "exporter.threshold" (list $name (get $wanted.thresholds $name))) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The expression for a threshold, which is a number or an expression itself: `list name value`. */ -}}
{{- define "exporter.threshold" -}}
{{- $value := index . 1 }}
{{- if not (kindIs "string" $value) }}
{{- printf "vector(%s)" (toJson $value) }}
{{- else if regexMatch "^[-+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][-+]?[0-9]+)?$" $value }}
{{- printf "vector(%s)" $value }}
{{- else if and (contains "(" $value) (eq (splitList "(" $value | len) (splitList ")" $value | len)) }}
{{- $value }}
{{- else }}
{{- fail (printf "prometheusRule.thresholds.%s: %s is neither a number nor an expression such as max(my:threshold)" (index . 0) $value) }}
{{- end }}
{{- end }}
