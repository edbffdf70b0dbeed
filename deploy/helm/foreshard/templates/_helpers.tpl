{{- define "foreshard.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 40 characters: pods add "-server-15" or "-workers-01234567-31-abcde". */ -}}
{{- define "foreshard.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "foreshard.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "foreshard.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Never changes during a release's life: selectors. Takes (list $ component). */ -}}
{{- define "foreshard.selector" -}}
app.kubernetes.io/name: {{ include "foreshard.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "foreshard.labels" -}}
{{ include "foreshard.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/part-of: foreshard
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Takes (list $ override). The digest of `image` is of its own repository and tag alone. */ -}}
{{- define "foreshard.image" -}}
{{- $root := index . 0 -}}
{{- $own := index . 1 -}}
{{- $repository := $own.repository | default $root.Values.image.repository -}}
{{- $digest := $own.digest | default (ternary "" $root.Values.image.digest (or (ne (toString $own.repository) "") (ne (toString $own.tag) ""))) -}}
{{- if $digest -}}
{{- printf "%s@%s" $repository $digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($own.tag | default $root.Values.image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "foreshard.jobConfigMap" -}}
{{- .Values.job.existingConfigMap | default (printf "%s-job" (include "foreshard.fullname" .)) -}}
{{- end -}}

{{- define "foreshard.tokenSecret" -}}
{{- .Values.token.secretName | default (printf "%s-token" (include "foreshard.fullname" .)) -}}
{{- end -}}

{{- define "foreshard.hasToken" -}}
{{- if or .Values.token.generate .Values.token.secretName -}}yes{{- end -}}
{{- end -}}

{{- /* Takes (list $ side), side server or worker. */ -}}
{{- define "foreshard.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.tls.mode "secret" -}}
{{- index $root.Values.tls.secret (index . 1) -}}
{{- else -}}
{{- printf "%s-%s-tls" (include "foreshard.fullname" $root) (index . 1) -}}
{{- end -}}
{{- end -}}

{{- /* By which a pod of the servers is called: name, service, namespace. Takes (list $ shard). */ -}}
{{- define "foreshard.serverName" -}}
{{- $root := index . 0 -}}
{{- $full := include "foreshard.fullname" $root -}}
{{- $suffix := $root.Values.clusterDomain | default "" -}}
{{- printf "%s-server-%d.%s-server.%s.svc" $full (int (index . 1)) $full $root.Release.Namespace -}}
{{- if $suffix -}}{{- printf ".%s" $suffix -}}{{- end -}}
{{- end -}}

{{- define "foreshard.addresses" -}}
{{- $root := . -}}
{{- $addresses := list -}}
{{- range $shard := until (int .Values.servers.shards) -}}
{{- $addresses = append $addresses (printf "%s:50051" (include "foreshard.serverName" (list $root $shard))) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}

{{- /* Flags of every program. Takes (list $ side). */ -}}
{{- define "foreshard.commonArgs" -}}
{{- $root := index . 0 -}}
- --job=/etc/foreshard/job/job.textproto
- --set=servers.shards={{ $root.Values.servers.shards }}
{{- range $root.Values.job.set }}
- {{ printf "--set=%s" . | quote }}
{{- end }}
{{- if ne $root.Values.tls.mode "none" }}
- --tls-certificate=/etc/foreshard/tls/tls.crt
- --tls-key=/etc/foreshard/tls/tls.key
- --tls-ca=/etc/foreshard/tls/ca.crt
{{- end }}
{{- if include "foreshard.hasToken" $root }}
- --token-file=/etc/foreshard/token/token
{{- end }}
# With certificates: for /metrics alone, which never has TLS.
- --insecure
{{- end -}}

{{- /* Takes (list $ side). */ -}}
{{- define "foreshard.commonMounts" -}}
{{- $root := index . 0 -}}
- {name: job, mountPath: /etc/foreshard/job, readOnly: true}
{{- if ne $root.Values.tls.mode "none" }}
- {name: tls, mountPath: /etc/foreshard/tls, readOnly: true}
{{- end }}
{{- if include "foreshard.hasToken" $root }}
- {name: token, mountPath: /etc/foreshard/token, readOnly: true}
{{- end }}
{{- end -}}

{{- define "foreshard.commonVolumes" -}}
{{- $root := index . 0 -}}
- name: job
  configMap:
    name: {{ include "foreshard.jobConfigMap" $root }}
    items:
      - {key: job.textproto, path: job.textproto}
{{- if ne $root.Values.tls.mode "none" }}
- name: tls
  secret:
    secretName: {{ include "foreshard.tlsSecret" . }}
    # For the group alone: programs refuse keys that everybody can read.
    defaultMode: 0440
{{- end }}
{{- if include "foreshard.hasToken" $root }}
- name: token
  secret:
    secretName: {{ include "foreshard.tokenSecret" $root }}
    defaultMode: 0440
    items:
      - {key: token, path: token}
{{- end }}
{{- end -}}

{{- define "foreshard.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.security.runAsUser }}
runAsGroup: {{ .Values.security.runAsGroup }}
fsGroup: {{ .Values.security.fsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "foreshard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "foreshard.pullSecrets" -}}
{{- range .Values.image.pullSecrets }}
- name: {{ . }}
{{- end }}
{{- end -}}

{{- /* A change of the job makes new pods. Not one of a Secret: renewed certificates are read where they are, and a new
token has to reach all servers before the first worker with it comes, which would end with 2, and so fail its Job. */ -}}
{{- define "foreshard.checksum" -}}
{{- if .Values.job.existingConfigMap -}}
{{- printf "%s %s" .Values.job.existingConfigMap (toJson .Values.job.set) | sha256sum | trunc 16 -}}
{{- else -}}
{{- printf "%s %s" .Values.job.spec (toJson .Values.job.set) | sha256sum | trunc 16 -}}
{{- end -}}
{{- end -}}

{{- define "foreshard.dataArgs" -}}
{{- if ne .Values.data.type "none" }}
- --data-directory={{ .Values.data.directory | default .Values.data.mountPath }}
{{- end }}
{{- end -}}

{{- define "foreshard.dataMounts" -}}
{{- if ne .Values.data.type "none" }}
- name: data
  mountPath: {{ .Values.data.mountPath }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "foreshard.dataVolumes" -}}
{{- if eq .Values.data.type "claim" }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.data.claim.name }}
    readOnly: {{ .Values.data.claim.readOnly }}
{{- else if eq .Values.data.type "hostPath" }}
- name: data
  hostPath: {path: {{ .Values.data.hostPath.path | quote }}, type: Directory}
{{- else if eq .Values.data.type "fetch" }}
- name: data
  emptyDir: {sizeLimit: {{ .Values.data.fetch.sizeLimit }}}
{{- end }}
{{- end -}}

{{- define "foreshard.fetchContainers" -}}
{{- if eq .Values.data.type "fetch" }}
initContainers:
  - name: fetch
    image: {{ .Values.data.fetch.image | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: {{ toJson .Values.data.fetch.command }}
    {{- with .Values.data.fetch.env }}
    env: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.data.fetch.secretName }}
    envFrom:
      - secretRef: {name: {{ . }}}
    {{- end }}
    workingDir: {{ .Values.data.mountPath }}
    securityContext: {{- include "foreshard.containerSecurity" . | nindent 6 }}
    resources:
      requests: {cpu: 100m, memory: 256Mi}
      limits: {memory: 1Gi}
    volumeMounts:
      - {name: data, mountPath: {{ .Values.data.mountPath }}}
      - {name: scratch, mountPath: /tmp}
{{- end }}
{{- end -}}

{{- /* The first rule that fits decides. A bad job, flag or certificate (2) is no better the next time; starts that
a newer one has fenced (4), and pods that were told to end before the job was complete (143) or that a node took
away, are no failures. */ -}}
{{- define "foreshard.failurePolicy" -}}
rules:
  - action: FailJob
    onExitCodes: {containerName: foreshard, operator: In, values: [2]}
  - action: Ignore
    onExitCodes: {containerName: foreshard, operator: In, values: [4, 143]}
  - action: Ignore
    onPodConditions:
      - {type: DisruptionTarget, status: "True"}
{{- end -}}

{{- /* Of what cannot be changed of a Job, for its name. Takes (list $ pod retries). */ -}}
{{- define "foreshard.jobChecksum" -}}
{{- printf "%s %v %s" (index . 1) (index . 2) (include "foreshard.failurePolicy" (index . 0)) | sha256sum | trunc 8 -}}
{{- end -}}

{{- /* The pods of workers and of the evaluator. Takes (list $ component values). */ -}}
{{- define "foreshard.workerPod" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index . 2 -}}
{{- $worker := eq $component "worker" -}}
metadata:
  labels: {{- include "foreshard.labels" (list $root $component) | nindent 4 }}
  annotations:
    foreshard/configuration: {{ include "foreshard.checksum" $root }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds | default 60 }}
  {{- with include "foreshard.pullSecrets" $root | trim }}
  imagePullSecrets: {{- . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- include "foreshard.podSecurity" $root | nindent 4 }}
  {{- with include "foreshard.fetchContainers" $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: foreshard
      image: {{ include "foreshard.image" (list $root ($values.image | default $root.Values.workers.image)) | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [foreshard-worker]
      args:
        {{- include "foreshard.commonArgs" (list $root "worker") | nindent 8 }}
        - --servers={{ include "foreshard.addresses" $root }}
        - --name=$(POD_NAME)
        - --metrics-listen=0.0.0.0:9090
        {{- if $worker }}
        # A pod that replaces another takes its place: the older one is fenced.
        - --slot=$(JOB_COMPLETION_INDEX)
        - --device={{ gt (int $values.gpus) 0 | ternary "cuda" "cpu" }}
        {{- else }}
        - --role=evaluator
        - --device=cpu
        {{- end }}
        {{- with include "foreshard.dataArgs" $root | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- range $values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- if $worker }}
        - name: JOB_COMPLETION_INDEX
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-completion-index']"}}
        {{- end }}
      ports:
        - {name: metrics, containerPort: 9090}
      securityContext: {{- include "foreshard.containerSecurity" $root | nindent 8 }}
      resources:
        requests: {{- toYaml $values.resources.requests | nindent 10 }}
        limits:
          {{- toYaml $values.resources.limits | nindent 10 }}
          {{- if and $worker (gt (int $values.gpus) 0) }}
          nvidia.com/gpu: {{ $values.gpus }}
          {{- end }}
      volumeMounts:
        {{- include "foreshard.commonMounts" (list $root "worker") | nindent 8 }}
        - {name: scratch, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- with include "foreshard.dataMounts" $root | trim }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "foreshard.commonVolumes" (list $root "worker") | nindent 4 }}
    - name: scratch
      emptyDir: {sizeLimit: 1Gi}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $root.Values.workers.shmSize }}}
    {{- with include "foreshard.dataVolumes" $root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- /* Refuses more workers than the job has slots: those beyond would end with 2, and so fail the Job of all.
Read from the job's text, as the programs count: training.max_workers, or the larger of twice training.workers and 8. */ -}}
{{- define "foreshard.checkWorkers" -}}
{{- $values := .Values -}}
{{- /* Without comments, which do not begin within quotes; then without what is quoted. */ -}}
{{- $quoted := "\"(?:[^\"\\\\\n]|\\\\.)*\"|'(?:[^'\\\\\n]|\\\\.)*'" -}}
{{- $spec := regexReplaceAll (printf "(%s)|#[^\n]*" $quoted) $values.job.spec "${1}" -}}
{{- $spec = regexReplaceAll $quoted $spec "" -}}
{{- $most := regexFind "\\bmax_workers\\s*:\\s*[0-9]+" $spec | regexFind "[0-9]+$" | default "0" -}}
{{- $planned := regexFind "\\bworkers\\s*:\\s*[0-9]+" $spec | regexFind "[0-9]+$" | default "0" -}}
{{- range $values.job.set -}}
{{- if hasPrefix "training.max_workers=" . }}{{ $most = trimPrefix "training.max_workers=" . | default "0" }}{{ end -}}
{{- if hasPrefix "training.workers=" . }}{{ $planned = trimPrefix "training.workers=" . | default "0" }}{{ end -}}
{{- end -}}
{{- $slots := int $most | default (max 8 (mul 2 (int $planned))) -}}
{{- if and $values.workers.enabled (not $values.job.existingConfigMap) (gt (int $values.workers.count) (int $slots)) -}}
{{- fail (printf "workers.count: %d workers, and the job has %d slots (training.max_workers, or the larger of twice training.workers and 8): fewer workers, or a new run with job.set={training.max_workers=%d}" (int $values.workers.count) (int $slots) (int $values.workers.count)) -}}
{{- end -}}
{{- end -}}

{{- /* Refuses what values name and the namespace has not: its pods would wait for it for ever. Only where helm
reaches the cluster, and the namespace is there. Takes (list $ kind name keys value command). */ -}}
{{- define "foreshard.need" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $name := index . 2 -}}
{{- $namespace := $root.Release.Namespace -}}
{{- if and $name $root.Values.checkReferences (lookup "v1" "ConfigMap" $namespace "kube-root-ca.crt") -}}
{{- $found := lookup "v1" $kind $namespace $name -}}
{{- if not $found -}}
{{- fail (printf "%s: namespace %s has no %s %q: create it first (%s), or say checkReferences=false where something else does" (index . 4) $namespace $kind $name (index . 5)) -}}
{{- end -}}
{{- range $key := index . 3 -}}
{{- if not (hasKey ($found.data | default dict) $key) -}}
{{- fail (printf "%s: the %s %q of namespace %s has no key %q" (index $ 4) $kind $name $namespace $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "foreshard.checkReferences" -}}
{{- $pem := list "tls.crt" "tls.key" "ca.crt" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- $how := "kubectl create secret generic NAME --from-file=tls.crt=... --from-file=tls.key=... --from-file=ca.crt=..." -}}
{{- include "foreshard.need" (list $ "Secret" .Values.tls.secret.server $pem "tls.secret.server" $how) -}}
{{- include "foreshard.need" (list $ "Secret" .Values.tls.secret.worker $pem "tls.secret.worker" $how) -}}
{{- end -}}
{{- include "foreshard.need" (list $ "Secret" .Values.token.secretName (list "token") "token.secretName" "kubectl create secret generic NAME --from-file=token=FILE") -}}
{{- include "foreshard.need" (list $ "ConfigMap" .Values.job.existingConfigMap (list "job.textproto") "job.existingConfigMap" "kubectl create configmap NAME --from-file=job.textproto=FILE") -}}
{{- if eq .Values.data.type "claim" -}}
{{- include "foreshard.need" (list $ "PersistentVolumeClaim" .Values.data.claim.name list "data.claim.name" "a PersistentVolumeClaim that many can read") -}}
{{- else if eq .Values.data.type "fetch" -}}
{{- include "foreshard.need" (list $ "Secret" .Values.data.fetch.secretName list "data.fetch.secretName" "kubectl create secret generic NAME --from-literal=KEY=VALUE") -}}
{{- end -}}
{{- end -}}
