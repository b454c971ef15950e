{{- define "catalogue.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "catalogue.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "catalogue.labels" -}}
{{ include "catalogue.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "catalogue.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "catalogue.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end -}}
{{- end }}

{{- define "catalogue.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{/* The pod of a process: (dict "root" $ "component" NAME "arguments" LIST "grace" SECONDS "resources" MAP "probes" YAML) */}}
{{- define "catalogue.pod" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "catalogue.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  {{- with $root.Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .serviceAccount | default (include "catalogue.serviceAccount" $root) }}
  automountServiceAccountToken: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .grace }}
  {{- if .restartPolicy }}
  restartPolicy: {{ .restartPolicy }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- if not .restartPolicy }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "catalogue.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ .component }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "catalogue.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{ .arguments | toJson }}
      env:
        - {name: CATALOGUE_SETTINGS_DIR, value: /run/secrets/workflow-catalogue}
        - {name: CATALOGUE_DATA_DIR, value: /data}
        - {name: CATALOGUE_PUBLIC_URL, value: {{ $root.Values.publicUrl | quote }}}
        - {name: LOG_FORMAT, value: json}
        {{- if and $root.Values.metrics.enabled (not .restartPolicy) }}
        - {name: CATALOGUE_METRICS_ADDRESS, value: "0.0.0.0:9100"}
        {{- end }}
        {{- range $name, $value := $root.Values.settings }}
        - {name: {{ $name }}, value: {{ $value | toString | quote }}}
        {{- end }}
      {{- if or (eq .component "web") (and $root.Values.metrics.enabled (not .restartPolicy)) }}
      ports:
        {{- if eq .component "web" }}
        - {name: http, containerPort: 8000}
        {{- end }}
        {{- if $root.Values.metrics.enabled }}
        - {name: metrics, containerPort: 9100}
        {{- end }}
      {{- end }}
      {{- if eq .component "web" }}
      startupProbe:
        httpGet: {path: /health/live, port: http, httpHeaders: [{name: Host, value: localhost}]}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /health/live, port: http, httpHeaders: [{name: Host, value: localhost}]}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: "/health/ready?leave_out=beat,workers", port: http, httpHeaders: [{name: Host, value: localhost}]}
        periodSeconds: 5
        timeoutSeconds: 5
      lifecycle:
        # Until the service sends nobody here any more.
        preStop: {exec: {command: ["sleep", "5"]}}
      {{- end }}
      resources: {{- toYaml .resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
        - {name: settings, mountPath: /run/secrets/workflow-catalogue, readOnly: true}
  volumes:
    - {name: data, emptyDir: {}}
    - {name: tmp, emptyDir: {}}
    - name: settings
      secret:
        secretName: {{ $root.Values.existingSecret }}
        defaultMode: 0440
  {{- with $root.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
