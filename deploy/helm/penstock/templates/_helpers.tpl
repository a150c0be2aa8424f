{{- define "penstock.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.headless" -}}
{{- printf "%s-headless" (include "penstock.name" .) -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "penstock.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{/* Protocol of the Kafka listeners. */}}
{{- define "penstock.protocol" -}}
{{- if .Values.scram.existingSecret -}}
{{- ternary "SASL_SSL" "SASL_PLAINTEXT" (ne .Values.tls.existingSecret "") -}}
{{- else -}}
{{- ternary "SSL" "PLAINTEXT" (ne .Values.tls.existingSecret "") -}}
{{- end -}}
{{- end -}}

{{/* Whether brokers replicate among each other. */}}
{{- define "penstock.cluster" -}}
{{- if .Values.controlDatabase.existingSecret }}true{{ end -}}
{{- end -}}

{{- define "penstock.domain" -}}
{{- printf "$(POD_NAME).%s.$(POD_NAMESPACE).svc.%s" (include "penstock.headless" .) .Values.clusterDomain -}}
{{- end -}}

{{/* Name of the environment variable of a setting. */}}
{{- define "penstock.variable" -}}
{{- printf "PENSTOCK_%s" (. | replace "_" "__" | replace "-" "___" | replace "." "_" | upper) -}}
{{- end -}}

{{/* Text of a setting's value. Numbers arrive as floats, whose default text has an exponent. */}}
{{- define "penstock.value" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{- int64 . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Environment of a broker, which is also that of the command that creates the admin user. */}}
{{- define "penstock.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: PENSTOCK_NODE_ID
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
- name: PENSTOCK_LOG_DIRS
  value: /data/broker
- name: PENSTOCK_LISTENERS
  value: INTERNAL://0.0.0.0:9092{{ if .Values.external.enabled }},EXTERNAL://0.0.0.0:9094{{ end }}
{{- $protocol := include "penstock.protocol" . }}
- name: PENSTOCK_LISTENER_SECURITY_PROTOCOL_MAP
  value: INTERNAL:{{ $protocol }}{{ if .Values.external.enabled }},EXTERNAL:{{ $protocol }}{{ end }}
- name: PENSTOCK_ADVERTISED_LISTENERS
  value: INTERNAL://{{ include "penstock.domain" . }}:9092
  {{- if .Values.external.enabled }},EXTERNAL://$(POD_NAME).{{ .Values.external.domain }}:{{ .Values.external.port }}{{ end }}
- name: PENSTOCK_INTER_BROKER_LISTENER_NAME
  value: INTERNAL
- name: PENSTOCK_ADMIN_LISTENER
  value: 0.0.0.0:9644
{{- if include "penstock.cluster" . }}
- name: PENSTOCK_REPLICATION_LISTENER
  value: {{ include "penstock.domain" . }}:9292
- name: PENSTOCK_CONTROL_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.controlDatabase.existingSecret }}
      key: {{ .Values.controlDatabase.key }}
{{- end }}
{{- with .Values.objectStore.url }}
- name: PENSTOCK_DISKLESS_STORAGE_URL
  value: {{ . | quote }}
{{- end }}
{{- if .Values.objectStore.existingSecret }}
- name: PENSTOCK_DISKLESS_STORAGE_OPTIONS_FILE
  value: /etc/penstock/store/{{ .Values.objectStore.key }}
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: PENSTOCK_SSL_KEYSTORE_LOCATION
  value: /etc/penstock/tls/tls.crt
- name: PENSTOCK_SSL_KEY_LOCATION
  value: /etc/penstock/tls/tls.key
- name: PENSTOCK_SSL_TRUSTSTORE_LOCATION
  value: /etc/penstock/tls/ca.crt
- name: PENSTOCK_ADMIN_SECURITY_PROTOCOL
  value: SSL
{{- end }}
{{- if .Values.scram.existingSecret }}
- name: PENSTOCK_AUTHORIZER_CLASS_NAME
  value: acls
- name: PENSTOCK_SUPER_USERS
  value: User:{{ .Values.scram.adminUser }}
{{- end }}
{{- if .Values.registry.enabled }}
- name: PENSTOCK_REGISTRY_ENABLE
  value: "true"
- name: PENSTOCK_REGISTRY_LISTENER
  value: 0.0.0.0:8081
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ include "penstock.variable" $name }}
  value: {{ include "penstock.value" $value | quote }}
{{- end }}
{{- end -}}

{{/* Files of a broker: volumes by name, mounted at the paths that the environment names. */}}
{{- define "penstock.mounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/penstock/tls
  readOnly: true
{{- end }}
{{- if .Values.objectStore.existingSecret }}
- name: store
  mountPath: /etc/penstock/store
  readOnly: true
{{- end }}
{{- end -}}

{{- define "penstock.confinement" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Combinations of values that no broker can run with. */}}
{{- define "penstock.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.controlDatabase.existingSecret) -}}
{{- fail "replicas > 1 needs controlDatabase.existingSecret: brokers share a PostgreSQL database" -}}
{{- end -}}
{{- if and .Values.controlDatabase.existingSecret (not .Values.objectStore.url) -}}
{{- fail "controlDatabase needs objectStore.url: brokers that share a database share an object store" -}}
{{- end -}}
{{- if and .Values.external.enabled (not .Values.external.domain) -}}
{{- fail "external.enabled needs external.domain" -}}
{{- end -}}
{{- end -}}
