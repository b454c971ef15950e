from django.db import migrations


class Migration(migrations.Migration):
    """The columns stay until a later release removes them: processes of the release before still use them."""

    dependencies = [("mcp_bridge", "0001_squashed_0012")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField("accesstoken", "gave_up_after"),
                migrations.RemoveField("accesstoken", "gave_up_at"),
                migrations.RemoveField("accesstoken", "patience_seconds"),
            ]
        )
    ]
