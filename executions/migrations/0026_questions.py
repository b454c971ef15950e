from django.db import migrations, models

import catalogue.fields


class Migration(migrations.Migration):
    dependencies = [("executions", "0025_cards_shown"), ("catalogue", "0028_answered_by")]

    operations = [
        migrations.AddField(
            model_name="execution",
            name="question_answered_at",
            field=models.DateTimeField(
                editable=False,
                help_text="When a person last answered what it asks. Empty: no answer is on its way to the engine.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="execution",
            name="input_request",
            field=models.BigIntegerField(
                editable=False, help_text="The questions to people that are not answered yet.", null=True
            ),
        ),
        migrations.AddField(
            model_name="inputrequest",
            name="answers",
            field=catalogue.fields.JSONTextField(
                help_text="What the engine is to get, by the same ids.", null=True
            ),
        ),
        migrations.AddField(
            model_name="inputrequest",
            name="questions",
            field=catalogue.fields.JSONTextField(
                help_text="What polls report, by the engine's ids; see executions.questions.", null=True
            ),
        ),
    ]
