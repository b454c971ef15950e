from django.db import migrations, models


def mark_known(apps, schema_editor):
    """What was listed before is read like what is listed from now on."""
    from catalogue.drift import READ_BY_AGENTS, warning_of

    workflows = apps.get_model("catalogue", "Workflow").objects
    for key, *texts in workflows.values_list("pk", *READ_BY_AGENTS).iterator(chunk_size=500):
        if warning := warning_of(dict(zip(READ_BY_AGENTS, texts, strict=True))):
            workflows.filter(pk=key).update(warning=warning)


class Migration(migrations.Migration):
    dependencies = [("catalogue", "0020_reserved_keys")]

    operations = [
        migrations.AddField(
            model_name="workflow",
            name="warning",
            field=models.TextField(blank=True, db_default="", editable=False, help_text="Excerpts of the engine's texts that may be instructions to agents."),
        ),
        migrations.AlterField(
            model_name="workflow",
            name="resembles",
            field=models.CharField(blank=True, editable=False, help_text="What its name or title can be mistaken for: a built-in tool, or another workflow.", max_length=255),
        ),
        migrations.RunPython(mark_known, migrations.RunPython.noop, elidable=True),
    ]
