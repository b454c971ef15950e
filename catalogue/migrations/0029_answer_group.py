from django.db import migrations, models

import catalogue.models.workflow


class Migration(migrations.Migration):
    dependencies = [("catalogue", "0028_answered_by")]

    operations = [
        migrations.AddField(
            model_name="workflow",
            name="answer_group",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="A group whose members answer instead; the caller's client is not asked.",
                max_length=150,
                validators=[catalogue.models.workflow.check_group],
            ),
        ),
    ]
