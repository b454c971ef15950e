import uuid

import django.core.validators
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import catalogue.fields


class Migration(migrations.Migration):
    replaces = [
        ("executions", "0001_initial"),
        ("executions", "0002_result_cache"),
        ("executions", "0003_content_and_termination"),
        ("executions", "0004_workflow_requests"),
        ("executions", "0005_overdue_runs"),
        ("executions", "0006_worker_presence_runs"),
        ("executions", "0007_retention_words"),
        ("executions", "0008_usage"),
        ("executions", "0009_plain_labels"),
        ("executions", "0010_plain_texts"),
        ("executions", "0011_usage_of_workflows"),
        ("executions", "0012_long_lists"),
        ("executions", "0013_rates"),
        ("executions", "0014_approvals"),
        ("executions", "0015_observability"),
        ("executions", "0016_approvals_by_time"),
        ("executions", "0017_questions"),
        ("executions", "0018_webhooks"),
        ("executions", "0019_plain_words"),
    ]

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("catalogue", "0001_squashed_0019"),
    ]

    operations = [
        migrations.CreateModel(
            name="Execution",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("tool_name", models.CharField(max_length=64)),
                ("workflow_name", models.CharField(max_length=255)),
                ("upstream_id", models.CharField(max_length=255, verbose_name="engine's workflow id")),
                ("source_name", models.CharField(max_length=64, verbose_name="source")),
                ("caller", models.CharField(help_text="Who started it, e.g. token:7 or user:1.", max_length=100)),
                ("caller_name", models.CharField(blank=True, max_length=255)),
                ("door", models.CharField(choices=[("mcp", "MCP"), ("rest", "REST"), ("admin", "admin"), ("command", "command line"), ("workflow", "natural-language request")], max_length=10)),
                ("arguments_hash", models.CharField(editable=False, help_text="SHA-256 of the input.", max_length=64)),
                ("idempotency_key", models.CharField(blank=True, help_text="The key that the caller gave this request.", max_length=255)),
                ("awaited_until", models.DateTimeField(help_text="In the future: a request waits for it. In the past: its caller left without an answer.", null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[("unapproved", "waiting for approval"), ("pending", "waiting to be started"), ("starting", "being started"), ("running", "running"), ("completed", "completed"), ("failed", "failed"), ("cancelled", "cancelled"), ("timed_out", "timed out"), ("unconfirmed", "unconfirmed")],
                        default="pending",
                        max_length=12,
                    ),
                ),
                ("run_id", models.CharField(blank=True, max_length=255, verbose_name="engine's run id")),
                ("correlation_id", models.CharField(blank=True, max_length=255)),
                ("progress", models.FloatField(help_text="Percent, as the engine reports it.", null=True)),
                ("progress_message", models.CharField(blank=True, max_length=500)),
                ("error_kind", models.CharField(blank=True, choices=[("discovery", "discovery"), ("validation", "validation"), ("execution", "execution"), ("timeout", "timeout"), ("configuration", "configuration")], max_length=15)),
                ("error", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ("payload_pruned_at", models.DateTimeField(help_text="When the retention policy removed its input, output and raw responses.", null=True)),
                ("events_pruned_at", models.DateTimeField(help_text="When the retention policy removed its timeline.", null=True)),
                ("admitted_at", models.DateTimeField(help_text="When the limits allowed it. Empty: it waits in the queue.", null=True)),
                ("started_at", models.DateTimeField(help_text="When the engine accepted it.", null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("engine_created_at", models.DateTimeField(null=True)),
                ("engine_started_at", models.DateTimeField(null=True)),
                ("engine_updated_at", models.DateTimeField(null=True)),
                ("engine_finished_at", models.DateTimeField(null=True)),
                ("timeout_seconds", models.PositiveIntegerField()),
                ("deadline_at", models.DateTimeField(help_text="When it times out and is cancelled.")),
                ("next_attempt_at", models.DateTimeField(default=django.utils.timezone.now, help_text="When the engine is next polled.")),
                ("attempts", models.PositiveIntegerField(default=0, help_text="Failed attempts in a row to reach the engine.")),
                ("not_found", models.PositiveIntegerField(default=0, help_text="Consecutive polls that found no such run.")),
                ("looked_up_since", models.DateTimeField(help_text="Since when a run with the execution's key is looked up at the engine; its answer was lost.", null=True)),
                ("polls", models.PositiveIntegerField(default=0)),
                ("progress_noted_at", models.DateTimeField(help_text="When progress was last added to the timeline.", null=True)),
                ("polled_at", models.DateTimeField(help_text="When the engine was last asked for the status.", null=True)),
                ("lease_holder", models.CharField(blank=True, max_length=64)),
                ("lease_expires_at", models.DateTimeField(null=True)),
                ("cancel_requested_at", models.DateTimeField(null=True)),
                ("cancel_requested_by", models.CharField(blank=True, max_length=255)),
                ("cancel_sent_at", models.DateTimeField(help_text="When the engine was asked to cancel it.", null=True)),
                ("cancel_refusal", models.TextField(blank=True, help_text="Why the engine refused to cancel it.")),
                ("workflow", models.ForeignKey(db_index=False, null=True, on_delete=models.SET_NULL, related_name="executions", to="catalogue.workflow")),
                ("cache_clearings", models.PositiveBigIntegerField(default=0, editable=False, help_text="How often its workflow's cached results had been cleared when it began.")),
                ("cache_key", models.CharField(blank=True, editable=False, help_text="The key under which its result is cached.", max_length=64)),
                ("cached_at", models.DateTimeField(help_text="When the run ended whose cached result answered it. Empty: it ran itself.", null=True)),
                ("cached_from", models.ForeignKey(db_index=False, editable=False, help_text="The run whose cached result answered it; empty also once that run is removed.", null=True, on_delete=models.SET_NULL, related_name="answered_from_cache", to="executions.execution")),
                ("terminate_sent_at", models.DateTimeField(help_text="When the engine was asked to terminate it, as it had not stopped after the cancellation.", null=True)),
                ("overdue_since", models.DateTimeField(help_text="When its timeout was found to have passed, so that its cancellation is due.", null=True)),
                ("poll_failure", models.TextField(blank=True, help_text="Why the last poll failed. Empty: it succeeded.")),
                ("input_characters", models.PositiveBigIntegerField(default=0, help_text="Length of the arguments as JSON.")),
                ("output_characters", models.PositiveBigIntegerField(default=0, help_text="Length of the result as JSON.")),
                ("toolset", models.CharField(blank=True, help_text="The toolset whose address was called. Empty: the address for all tools.", max_length=64)),
                ("approval_hash", models.CharField(blank=True, editable=False, help_text="SHA-256 of the workflow's content, the input and the caller, which must match those that were approved. Empty: it needed no approval.", max_length=64)),
                ("request_id", models.CharField(editable=False, help_text="Id of the request that created it, as in the logs.", max_length=64, null=True)),
                ("traceparent", models.CharField(editable=False, help_text="The W3C trace context that steps continue.", max_length=55, null=True)),
                ("input_request", models.BigIntegerField(editable=False, help_text="The questions to its caller that are not answered yet.", null=True)),
                ("end_reported_at", models.DateTimeField(help_text="When the engine's webhook last reported that it has ended.", null=True)),
            ],
            options={
                "ordering": ("-created_at", "-id"),
                "indexes": [
                    models.Index(condition=models.Q(("state__in", ["pending", "starting", "running"])), fields=["next_attempt_at"], name="execution_due"),
                    models.Index(condition=models.Q(("admitted_at__isnull", False), ("finished_at", None)), fields=["workflow", "state", "caller"], name="execution_room_workflow"),
                    models.Index(condition=models.Q(("admitted_at__isnull", False), ("finished_at", None)), fields=["caller", "state"], name="execution_room_caller"),
                    models.Index(condition=models.Q(("admitted_at", None), ("finished_at", None)), fields=["created_at"], name="execution_queued"),
                    models.Index(condition=models.Q(("admitted_at__gt", models.F("created_at"))), fields=["admitted_at"], name="execution_was_queued"),
                    models.Index(condition=models.Q(("awaited_until__isnull", False)), fields=["caller", "arguments_hash"], name="execution_awaited"),
                    models.Index(condition=models.Q(("finished_at__isnull", False)), fields=["finished_at"], name="execution_finished"),
                    models.Index(condition=models.Q(("finished_at__isnull", False), ("payload_pruned_at", None)), fields=["finished_at"], name="execution_payload_kept"),
                    models.Index(condition=models.Q(("events_pruned_at", None), ("finished_at__isnull", False)), fields=["finished_at"], name="execution_events_kept"),
                    models.Index(fields=["workflow", "-created_at"], name="execution_by_workflow"),
                    models.Index(fields=["state", "-created_at"], name="execution_by_state"),
                    models.Index(condition=models.Q(("cached_from__isnull", False)), fields=["cached_from"], name="execution_cached_from"),
                    models.Index(fields=["tool_name", "-created_at"], name="execution_by_tool"),
                    models.Index(fields=["source_name", "-created_at"], name="execution_by_source"),
                    models.Index(fields=["caller", "-created_at"], name="execution_by_caller"),
                    models.Index(fields=["toolset", "-created_at"], name="execution_by_toolset"),
                    models.Index(fields=["door", "-created_at"], name="execution_by_door"),
                    models.Index(condition=models.Q(("cached_at__isnull", False)), fields=["-created_at"], name="execution_cached"),
                    models.Index(fields=["run_id"], name="execution_by_run"),
                ],
                "constraints": [
                    models.UniqueConstraint(condition=models.Q(("idempotency_key", ""), _negated=True), fields=("caller", "idempotency_key"), name="one_execution_per_key"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExecutionPayload",
            fields=[
                ("execution", models.OneToOneField(on_delete=models.CASCADE, primary_key=True, related_name="payload", serialize=False, to="executions.execution")),
                ("input", catalogue.fields.JSONTextField(default=dict, help_text="Empty once the retention policy has removed it.", null=True)),
                ("output", catalogue.fields.JSONTextField(null=True)),
                ("start_answer", catalogue.fields.JSONTextField(help_text="The engine's raw response to the start.", null=True)),
                ("status_answer", catalogue.fields.JSONTextField(help_text="The engine's last raw status.", null=True)),
                ("metadata", catalogue.fields.JSONTextField(default=dict, help_text="The version of the workflow that ran, and the client that called it.")),
                ("cut", catalogue.fields.JSONTextField(default=list, help_text="Which of them were too large to keep whole.")),
                ("shares_output", models.BooleanField(default=False, help_text="The output is large and from the result cache: it is stored with the original run.")),
                ("content", catalogue.fields.JSONTextField(help_text="The output as MCP content blocks, if the engine returns them.", null=True)),
            ],
        ),
        migrations.CreateModel(
            name="ExecutionEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("kind", models.CharField(max_length=30)),
                ("message", models.TextField(blank=True)),
                ("execution", models.ForeignKey(on_delete=models.CASCADE, related_name="events", to="executions.execution")),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Retention",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                (
                    "keep_records_days",
                    models.PositiveIntegerField(
                        blank=True,
                        default=90,
                        help_text="After this time, an execution that has ended is removed with all its data: who ran what, when, how it ended, and the engine's error message. Natural-language requests are removed at the same age. In days; 0 = not kept: removed within 15 minutes; empty = kept for ever.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(36500)],
                        verbose_name="keep executions for",
                    ),
                ),
                (
                    "keep_payloads_days",
                    models.PositiveIntegerField(
                        blank=True,
                        default=30,
                        help_text="After this time, the input, the output and the engine's raw responses are removed, and the texts of natural-language requests; the record remains and says so. In days; 0 = not kept: removed within 15 minutes; empty = kept for ever.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(36500)],
                        verbose_name="keep payloads for",
                    ),
                ),
                (
                    "keep_events_days",
                    models.PositiveIntegerField(
                        blank=True, default=30, help_text="After this time, the timeline is removed; the execution remains and says so. In days; 0 = not kept: removed within 15 minutes; empty = kept for ever.", null=True, validators=[django.core.validators.MaxValueValidator(36500)], verbose_name="keep timelines for"
                    ),
                ),
                (
                    "keep_discovery_runs_days",
                    models.PositiveIntegerField(
                        blank=True, default=30, help_text="After this time, the record of a source's discovery run is removed. In days; 0 = not kept: removed within 15 minutes; empty = kept for ever.", null=True, validators=[django.core.validators.MaxValueValidator(36500)], verbose_name="keep discovery runs for"
                    ),
                ),
                (
                    "keep_statistics_days",
                    models.PositiveIntegerField(
                        blank=True,
                        default=730,
                        help_text="After this time, the hourly sums behind charts, usage and REST's statistics are removed. They are small, contain no arguments, results or errors, and outlast the executions. In days; 0 = not kept: removed within 15 minutes; empty = kept for ever.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(36500)],
                        verbose_name="keep statistics for",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "retention",
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="one_retention"),
                ],
            },
        ),
        migrations.CreateModel(
            name="CachedResult",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(help_text="See `cache_key`.", max_length=64, unique=True)),
                ("size", models.PositiveBigIntegerField(help_text="Bytes of the output and its content blocks as JSON.")),
                ("created_at", models.DateTimeField(help_text="When the run ended.")),
                ("expires_at", models.DateTimeField(db_index=True)),
                ("last_used_at", models.DateTimeField(db_index=True)),
                ("hits", models.PositiveBigIntegerField(default=0)),
                ("execution", models.ForeignKey(null=True, on_delete=models.SET_NULL, related_name="+", to="executions.execution")),
                ("workflow", models.ForeignKey(db_index=False, on_delete=models.CASCADE, related_name="cached_results", to="catalogue.workflow")),
            ],
            options={
                "ordering": ("-last_used_at", "-pk"),
                "indexes": [
                    models.Index(fields=["workflow", "created_at"], name="cached_result_by_age"),
                    models.Index(fields=["created_at"], name="cached_result_created"),
                ],
            },
        ),
        migrations.CreateModel(
            name="CachePolicy",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("enabled", models.BooleanField(default=True, help_text="Off: no result is stored or used; existing ones stay until they expire.")),
                (
                    "max_bytes",
                    models.PositiveBigIntegerField(
                        default=104857600,
                        help_text="Bytes of all results together. Beyond it the least recently used are evicted; a result larger than a tenth of it is not cached.",
                        validators=[django.core.validators.MinValueValidator(1024), django.core.validators.MaxValueValidator(1099511627776)],
                        verbose_name="limit",
                    ),
                ),
                (
                    "cleanup_seconds",
                    models.PositiveIntegerField(
                        default=300, help_text="Seconds between two removals of expired results. Expired results are never used, even before they are removed.", validators=[django.core.validators.MinValueValidator(10), django.core.validators.MaxValueValidator(86400)], verbose_name="cleanup interval"
                    ),
                ),
                ("cleaned_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "verbose_name": "result cache",
                "verbose_name_plural": "result cache",
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="one_cache_policy"),
                ],
            },
        ),
        migrations.CreateModel(
            name="CacheUse",
            fields=[
                ("workflow", models.OneToOneField(on_delete=models.CASCADE, primary_key=True, related_name="cache_use", serialize=False, to="catalogue.workflow")),
                ("entries", models.PositiveBigIntegerField(default=0, help_text="Cached now.", verbose_name="results")),
                ("bytes", models.PositiveBigIntegerField(default=0, help_text="Of the results that are cached now.")),
                ("hits", models.PositiveBigIntegerField(default=0, help_text="Calls answered from the cache.")),
                ("misses", models.PositiveBigIntegerField(default=0, help_text="Calls that no result could answer.")),
                ("refreshes", models.PositiveBigIntegerField(default=0, help_text="Calls that asked for a fresh run.")),
                ("stored", models.PositiveBigIntegerField(default=0, help_text="Results that were stored in the cache.")),
                ("oversized", models.PositiveBigIntegerField(default=0, help_text="Results that were too large for the cache.")),
                ("evictions", models.PositiveBigIntegerField(default=0, help_text="Results that were evicted to make room for others.")),
                ("expired", models.PositiveBigIntegerField(default=0, help_text="Results removed because of their age.")),
                ("cleared", models.PositiveBigIntegerField(default=0, help_text="Results cleared on request.")),
                ("clearings", models.PositiveBigIntegerField(default=0, help_text="How often it was cleared. Runs that began before the last time are not cached.")),
                ("cleared_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "workflow in the result cache",
                "verbose_name_plural": "workflows in the result cache",
            },
        ),
        migrations.CreateModel(
            name="CachedOutput",
            fields=[
                ("result", models.OneToOneField(on_delete=models.CASCADE, primary_key=True, related_name="kept", serialize=False, to="executions.cachedresult")),
                ("output", catalogue.fields.JSONTextField()),
                ("content", catalogue.fields.JSONTextField(help_text="The output as MCP content blocks, if the engine returned them.", null=True)),
            ],
        ),
        migrations.CreateModel(
            name="WorkerPresence",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("seen_at", models.DateTimeField(default=django.utils.timezone.now, help_text="When the due work was last done.")),
                ("process", models.CharField(blank=True, help_text="The process that stands in for the workers. Empty: a worker.", max_length=64)),
                ("worker_at", models.DateTimeField(help_text="When a worker was last alive, with or without work to do.", null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="one_worker_presence"),
                ],
            },
        ),
        migrations.CreateModel(
            name="StatisticsState",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("removed_until", models.DateTimeField(help_text="Executions that ended before this may have been removed by the retention policy.", null=True)),
                ("counted_from_rows_at", models.DateTimeField(help_text="When executions that ended before statistics existed were counted.", null=True)),
                ("past_changes", models.PositiveBigIntegerField(default=0, help_text="How often sums of past days were changed. They are remembered until the next change.")),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="one_statistics_state"),
                ],
            },
        ),
        migrations.CreateModel(
            name="HourlyUsage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField(help_text="When the hour in which they ended begins.")),
                ("tool_name", models.CharField(max_length=64)),
                ("source_name", models.CharField(max_length=64)),
                ("toolset", models.CharField(blank=True, max_length=64)),
                ("caller", models.CharField(max_length=100)),
                ("door", models.CharField(max_length=10)),
                ("outcome", models.CharField(choices=[("completed", "completed"), ("cached", "answered from the result cache"), ("failed", "failed"), ("cancelled", "cancelled"), ("timed_out", "timed out")], max_length=12)),
                ("duration_class", models.PositiveSmallIntegerField(help_text="See `duration_class_of`.")),
                ("calls", models.PositiveIntegerField()),
                ("milliseconds", models.PositiveBigIntegerField()),
                ("input_characters", models.PositiveBigIntegerField()),
                ("output_characters", models.PositiveBigIntegerField()),
                ("last_at", models.DateTimeField(help_text="When the last of them ended.")),
                ("caller_name", models.CharField(blank=True, max_length=255)),
                ("is_folded", models.BooleanField(default=False, help_text="It is the one row of its key. Otherwise it will be added to that one.")),
                ("workflow", models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=models.SET_NULL, related_name="usage", to="catalogue.workflow")),
            ],
            options={
                "indexes": [
                    models.Index(fields=["hour"], name="usage_hour"),
                    models.Index(condition=models.Q(("is_folded", False)), fields=["id"], name="usage_to_fold"),
                    models.Index(fields=["workflow", "hour", "outcome", "calls", "last_at"], name="usage_of_workflows"),
                ],
                "constraints": [
                    models.UniqueConstraint(condition=models.Q(("is_folded", True)), fields=("hour", "workflow", "tool_name", "source_name", "toolset", "caller", "door", "outcome", "duration_class"), name="one_folded_usage"),
                ],
            },
        ),
        migrations.CreateModel(
            name="RateBucket",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("booked_until", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="StandingApproval",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("binding", models.CharField(max_length=64)),
                ("tool_name", models.CharField(max_length=64)),
                ("caller", models.CharField(max_length=100)),
                ("caller_name", models.CharField(blank=True, max_length=255)),
                ("granted_by", models.CharField(max_length=500)),
                ("granted_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("until", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(null=True)),
                ("revoked_by", models.CharField(blank=True, max_length=150)),
                ("workflow", models.ForeignKey(on_delete=models.CASCADE, related_name="standing_approvals", to="catalogue.workflow")),
            ],
            options={
                "ordering": ("-granted_at", "-pk"),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["binding", "until"], name="standing_by_binding"),
                    models.Index(fields=["-granted_at"], name="standing_by_time"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Approval",
            fields=[
                ("execution", models.OneToOneField(on_delete=models.CASCADE, primary_key=True, related_name="approval", serialize=False, to="executions.execution")),
                ("state", models.CharField(choices=[("waiting", "waiting"), ("approved", "approved"), ("refused", "refused"), ("expired", "expired"), ("cancelled", "cancelled by the caller"), ("outdated", "the workflow has changed")], default="waiting", max_length=10)),
                ("reason", models.TextField(help_text="Why it needs approval.")),
                ("approvers_needed", models.PositiveSmallIntegerField(default=1)),
                ("binding", models.CharField(db_index=True, help_text="SHA-256 of the workflow's content, the input and the caller.", max_length=64)),
                ("content", models.CharField(help_text="SHA-256 of the workflow's content at the time of the call.", max_length=64)),
                ("requested_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("expires_at", models.DateTimeField()),
                ("decided_at", models.DateTimeField(null=True)),
                ("outcome", models.TextField(blank=True, help_text="How it ended, in a sentence.")),
                ("asked_by", models.ForeignKey(help_text="The user that the caller acts for, if known.", null=True, on_delete=models.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL)),
                ("standing", models.ForeignKey(help_text="The earlier approval that allowed it to run without a new one.", null=True, on_delete=models.SET_NULL, related_name="used_by", to="executions.standingapproval")),
            ],
            options={
                "ordering": ("-requested_at", "-pk"),
                "permissions": [("decide_approval", "Can approve and refuse calls")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["state", "-requested_at"], name="approval_by_state"),
                    models.Index(condition=models.Q(("state", "waiting")), fields=["expires_at"], name="approval_expiring"),
                    models.Index(fields=["-requested_at"], name="approval_by_time"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovalDecision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("user_name", models.CharField(max_length=150)),
                ("verdict", models.CharField(choices=[("approve", "approved"), ("refuse", "refused")], max_length=10)),
                ("words", models.TextField(blank=True)),
                ("minutes", models.PositiveIntegerField(help_text="How long identical calls run without a new approval. Empty: this call only.", null=True)),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("approval", models.ForeignKey(on_delete=models.CASCADE, related_name="decisions", to="executions.approval")),
                ("user", models.ForeignKey(null=True, on_delete=models.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL)),
            ],
            options={
                "ordering": ("at", "pk"),
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("approval", "user"), name="one_decision_per_person"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovalNotice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("requested", "approval requested"), ("decided", "decided")], max_length=10)),
                ("channel", models.CharField(choices=[("email", "e-mail"), ("webhook", "webhook")], max_length=10)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("next_attempt_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("sent_at", models.DateTimeField(null=True)),
                ("given_up_at", models.DateTimeField(null=True)),
                ("error", models.TextField(blank=True)),
                ("approval", models.ForeignKey(on_delete=models.CASCADE, related_name="notices", to="executions.approval")),
            ],
            options={
                "ordering": ("pk",),
                "default_permissions": (),
                "indexes": [
                    models.Index(condition=models.Q(("given_up_at", None), ("sent_at", None)), fields=["next_attempt_at"], name="approval_notice_due"),
                ],
            },
        ),
        migrations.CreateModel(
            name="InputRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("requests", catalogue.fields.JSONTextField(help_text="MCP's requests to a client, by key.")),
                ("responses", catalogue.fields.JSONTextField(default=dict, help_text="Their results so far, by key.")),
                ("execution", models.OneToOneField(on_delete=models.CASCADE, related_name="asked_input", to="executions.execution")),
            ],
            options={
                "default_permissions": (),
            },
        ),
    ]
