from django.core.validators import RegexValidator
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalogue", "0023_saved_view")]

    operations = [
        migrations.AddField(
            model_name="workflow",
            name="only_in_toolsets",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Agents see it only at the addresses of the toolsets that show it, and not at /mcp.",
            ),
        ),
        migrations.AlterField(
            model_name="toolset",
            name="slug",
            field=models.CharField(
                help_text="The end of its address, such as /mcp/finance. Changing it breaks the clients that use it.",
                max_length=64,
                unique=True,
                validators=[
                    RegexValidator(
                        "\\A[a-z0-9][a-z0-9-]{0,63}\\Z",
                        "An address has 1 to 64 lower-case letters, digits or hyphens, and starts with no hyphen.",
                    )
                ],
            ),
        ),
        migrations.AlterField(
            model_name="toolset",
            name="title",
            field=models.CharField(blank=True, help_text="Shown to people. Empty: the address.", max_length=255),
        ),
    ]
