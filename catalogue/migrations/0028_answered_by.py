from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalogue", "0027_app_pages")]

    operations = [
        migrations.AddField(
            model_name="workflow",
            name="answered_by",
            field=models.CharField(
                choices=[
                    ("caller", "the caller, or staff in the admin"),
                    ("approvers", "people who may decide approvals"),
                ],
                db_default="caller",
                default="caller",
                help_text="Who answers what a paused run asks. Approvers: the caller's client is not asked.",
                max_length=10,
            ),
        ),
    ]
