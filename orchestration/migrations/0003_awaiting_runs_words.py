from django.db import migrations, models
from django.db.models import OuterRef, Subquery, Value
from django.db.models.functions import Coalesce, NullIf

UNSUCCESSFUL = {
    "failed": "run_failed",
    "cancelled": "run_failed",
    "timed_out": "run_timed_out",
    "unconfirmed": "unconfirmed",
}


def end_as_the_runs_did(apps, schema_editor):
    """Requests that were taken for successful because their run had not ended when they were answered."""
    requests = apps.get_model("orchestration", "WorkflowRequest").objects
    executions = apps.get_model("executions", "Execution").objects
    why = executions.filter(pk=OuterRef("execution")).values("error")[:1]
    for state, failure in UNSUCCESSFUL.items():
        requests.filter(status="success", execution__state=state).update(
            status="error",
            error=Coalesce(NullIf(Subquery(why), Value("")), Value("The run did not succeed.")),
            error_stage="api_execution",
            failure=failure,
        )
    requests.filter(status="success", execution__state__in=["pending", "starting", "running"]).update(
        status="running", finished_at=None, deadline_at=None
    )


class Migration(migrations.Migration):
    dependencies = [
        ("executions", "0004_workflow_requests"),
        ("orchestration", "0002_unconfirmed"),
    ]

    operations = [
        migrations.AlterField(
            model_name="workflowrequest",
            name="deadline_at",
            field=models.DateTimeField(
                help_text="When the process that works on it has given up. Empty: it waits for its run, and "
                "ends as that does.",
                null=True,
            ),
        ),
        migrations.RunPython(end_as_the_runs_did, migrations.RunPython.noop, elidable=True),
    ]
