{{- /* What values may not say together: where Kubernetes, or a program in a pod, would refuse it later and say less. */ -}}

{{- /* A quantity, as "500m" or "2Gi", as a number. */ -}}
{{- define "foreshard.quantity" -}}
{{- if kindIs "string" . -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $scale := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (float64 $number) (float64 (get $scale (trimPrefix $number .) | default 1)) -}}
{{- else -}}
{{- float64 . -}}
{{- end -}}
{{- end -}}

{{- /* A duration, as "2160h", in seconds. */ -}}
{{- define "foreshard.seconds" -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- mulf (float64 $number) (float64 (get (dict "ms" 0.001 "s" 1 "m" 60 "h" 3600) (trimPrefix $number .))) -}}
{{- end -}}

{{- define "foreshard.checkValues" -}}
{{- $values := .Values -}}
{{- $full := include "foreshard.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "the release's name, nameOverride and fullnameOverride make %q, which no Service can be called: a letter first, then letters, digits and '-'" $full) -}}
{{- end -}}
{{- range $set := $values.job.set -}}
{{- if hasPrefix "servers.shards=" $set -}}
{{- fail (printf "job.set: %s: say servers.shards instead, which also says how many servers there are" $set) -}}
{{- end -}}
{{- if and (hasPrefix "data.directory=" $set) (ne $values.data.type "none") -}}
{{- fail (printf "job.set: %s: say data.directory instead, which is where data.type puts the data" $set) -}}
{{- end -}}
{{- end -}}
{{- $ours := list "--job" "--servers" "--name" "--slot" "--role" "--device" "--metrics-listen" "--tls-certificate" "--tls-key" "--tls-ca" "--token-file" "--data-directory" -}}
{{- range $argument := $values.workers.extraArgs -}}
{{- $flag := regexFind "^--[a-z-]+" $argument -}}
{{- if has $flag $ours -}}
{{- fail (printf "workers.extraArgs: %s: the chart gives %s itself" $argument $flag) -}}
{{- end -}}
{{- if eq $flag "--set" -}}
{{- fail (printf "workers.extraArgs: %s: say job.set instead, since all programs need the same job" $argument) -}}
{{- end -}}
{{- end -}}
{{- range $component := list "servers" "workers" "evaluator" -}}
{{- $resources := (index $values $component).resources -}}
{{- range $resource, $limit := $resources.limits -}}
{{- with index $resources.requests $resource -}}
{{- if gt (include "foreshard.quantity" . | float64) (include "foreshard.quantity" $limit | float64) -}}
{{- fail (printf "%s.resources: requests.%s is %v, more than limits.%s, %v" $component $resource . $resource $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq $values.tls.mode "certManager" -}}
{{- $duration := include "foreshard.seconds" $values.tls.certManager.duration | float64 -}}
{{- $before := include "foreshard.seconds" $values.tls.certManager.renewBefore | float64 -}}
{{- if or (lt $duration 3600.0) (lt $before 300.0) (ge $before $duration) -}}
{{- fail (printf "tls.certManager: a duration of %s and renewBefore %s: cert-manager wants an hour or more, five minutes or more, and to renew within the duration" $values.tls.certManager.duration $values.tls.certManager.renewBefore) -}}
{{- end -}}
{{- end -}}
{{- range $component := list "servers" "workers" -}}
{{- if hasKey (index $values $component).podAnnotations "foreshard/configuration" -}}
{{- fail (printf "%s.podAnnotations: foreshard/configuration is the chart's own" $component) -}}
{{- end -}}
{{- end -}}
{{- range $value, $labels := dict "workers.jobLabels" $values.workers.jobLabels "monitoring.podMonitor.labels" $values.monitoring.podMonitor.labels "monitoring.prometheusRule.labels" $values.monitoring.prometheusRule.labels "monitoring.dashboards.labels" $values.monitoring.dashboards.labels "networkPolicy.adminLabel.key" (dict $values.networkPolicy.adminLabel.key "") -}}
{{- range $label, $_ := $labels -}}
{{- if or (hasPrefix "app.kubernetes.io/" $label) (hasPrefix "helm.sh/" $label) -}}
{{- fail (printf "%s: %s is the chart's own" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Refuses what cannot become of the servers that are there: Kubernetes changes nothing of a StatefulSet's claims, and
shards that are more or fewer would not find their state. */ -}}
{{- define "foreshard.checkHeld" -}}
{{- $state := .Values.servers.state -}}
{{- $name := printf "%s-server" (include "foreshard.fullname" .) -}}
{{- $held := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if $held -}}
{{- $how := printf "as it was, or in a release of another name; or first: kubectl -n %s delete statefulset %s --cascade=orphan" .Release.Namespace $name -}}
{{- $claims := $held.spec.volumeClaimTemplates | default list -}}
{{- if and $claims (ne (int $held.spec.replicas) (int .Values.servers.shards)) -}}
{{- fail (printf "servers.shards: there are %d servers, whose state is cut for as many, and %d are asked for: a new run in a release of another name, or %d" (int $held.spec.replicas) (int .Values.servers.shards) (int $held.spec.replicas)) -}}
{{- end -}}
{{- if ne (not $claims) (not $state.enabled) -}}
{{- fail (printf "servers.state.enabled: it cannot be changed: %s" $how) -}}
{{- end -}}
{{- range $claim := $claims -}}
{{- $spec := $claim.spec -}}
{{- if ne (include "foreshard.quantity" $spec.resources.requests.storage) (include "foreshard.quantity" $state.size) -}}
{{- fail (printf "servers.state.size: the servers' claims are made for %s and cannot be changed to %s so: %s; the claims that are there are made larger by kubectl patch" $spec.resources.requests.storage $state.size $how) -}}
{{- end -}}
{{- if ne ($spec.storageClassName | default "") $state.storageClass -}}
{{- fail (printf "servers.state.storageClass: it cannot be changed from %q: %s" ($spec.storageClassName | default "") $how) -}}
{{- end -}}
{{- if ne (first $spec.accessModes) $state.accessMode -}}
{{- fail (printf "servers.state.accessMode: it cannot be changed from %s: %s" (first $spec.accessModes) $how) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
