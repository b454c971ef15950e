import uuid

import django.utils.timezone
from django.db import migrations, models

import catalogue.fields


class Migration(migrations.Migration):
    replaces = [
        ("orchestration", "0001_workflow_requests"),
        ("orchestration", "0002_unconfirmed"),
        ("orchestration", "0003_awaiting_runs_words"),
        ("orchestration", "0004_plain_labels"),
        ("orchestration", "0005_too_many_calls"),
        ("orchestration", "0006_requests_by_what"),
        ("orchestration", "0007_plain_words"),
    ]

    dependencies = [
        ("executions", "0001_squashed_0019"),
    ]

    operations = [
        migrations.CreateModel(
            name="WorkflowRequest",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("caller", models.CharField(max_length=100)),
                ("caller_name", models.CharField(max_length=255, verbose_name="caller")),
                ("idempotency_key", models.CharField(blank=True, help_text="The key that the caller gave this request.", max_length=255)),
                ("request_hash", models.CharField(editable=False, help_text="SHA-256 of what was asked.", max_length=64)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("finished_at", models.DateTimeField(null=True)),
                ("deadline_at", models.DateTimeField(help_text="When the process that works on it gives up. Empty: it waits for its run, and ends when the run ends.", null=True)),
                ("payload_pruned_at", models.DateTimeField(help_text="When the retention policy removed the instructions and what was derived from them.", null=True)),
                ("status", models.CharField(choices=[("running", "in progress"), ("success", "success"), ("error", "error")], default="running", max_length=10)),
                ("instructions", models.TextField()),
                ("tool_ids", catalogue.fields.JSONTextField(default=list)),
                ("format_response", models.BooleanField(default=False)),
                ("format_instructions", models.TextField(blank=True)),
                ("dry_run", models.BooleanField(default=False, help_text="Stops before anything is sent.")),
                ("model", models.CharField(blank=True, help_text="The model that answered.", max_length=255)),
                ("selected_tool", models.CharField(blank=True, max_length=64)),
                ("reason", models.TextField(blank=True, help_text="Why this tool, in the model's words.")),
                ("arguments", catalogue.fields.JSONTextField(null=True)),
                ("http_spec", catalogue.fields.JSONTextField(help_text="The request as it was checked, without credentials.", null=True)),
                ("formatted_response", models.TextField(blank=True)),
                ("error", models.TextField(blank=True)),
                ("error_stage", models.CharField(blank=True, choices=[("tool_retrieval", "finding the tools"), ("llm_selection", "choosing tool and arguments"), ("api_execution", "running the tool"), ("response_formatting", "putting the answer into words")], max_length=20)),
                (
                    "failure",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("unknown_tools", "unknown tools"),
                            ("no_tool_fits", "no tool fits"),
                            ("proposal_refused", "the proposal was refused"),
                            ("model_answer", "the model returned no usable answer"),
                            ("model_unavailable", "the model is unavailable"),
                            ("model_timeout", "the model took too long"),
                            ("busy", "too busy"),
                            ("too_many_calls", "too many calls"),
                            ("run_failed", "the run failed"),
                            ("run_timed_out", "the run took too long"),
                            ("unconfirmed", "it is not known whether it ran"),
                            ("interrupted", "interrupted"),
                            ("internal", "internal error"),
                        ],
                        max_length=20,
                    ),
                ),
                ("invalid_tool_ids", catalogue.fields.JSONTextField(default=list)),
                ("warnings", catalogue.fields.JSONTextField(default=list)),
                ("stages", catalogue.fields.JSONTextField(default=list, help_text="[{stage, state, started_at, seconds, message}], as far as the request got.")),
                ("prompt_tokens", models.PositiveIntegerField(default=0)),
                ("completion_tokens", models.PositiveIntegerField(default=0)),
                ("execution", models.ForeignKey(null=True, on_delete=models.SET_NULL, related_name="workflow_requests", to="executions.execution")),
            ],
            options={
                "verbose_name": "natural-language request",
                "verbose_name_plural": "natural-language requests",
                "ordering": ("-created_at", "-id"),
                "indexes": [
                    models.Index(fields=["caller", "-created_at"], name="request_by_caller"),
                    models.Index(fields=["-created_at"], name="request_by_time"),
                    models.Index(condition=models.Q(("finished_at", None)), fields=["deadline_at"], name="request_unfinished"),
                    models.Index(condition=models.Q(("finished_at__isnull", False)), fields=["finished_at"], name="request_finished"),
                    models.Index(condition=models.Q(("finished_at__isnull", False), ("payload_pruned_at", None)), fields=["finished_at"], name="request_payload_kept"),
                    models.Index(fields=["selected_tool", "-created_at"], name="request_by_tool"),
                    models.Index(fields=["status", "-created_at"], name="request_by_status"),
                ],
                "constraints": [
                    models.UniqueConstraint(condition=models.Q(("idempotency_key", ""), _negated=True), fields=("caller", "idempotency_key"), name="one_request_per_key"),
                ],
            },
        ),
    ]
