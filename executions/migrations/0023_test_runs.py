from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("executions", "0022_subscriptions")]

    operations = [
        migrations.AlterField(
            model_name="execution",
            name="door",
            field=models.CharField(choices=[("mcp", "MCP"), ("rest", "REST"), ("admin", "admin"), ("test", "test run"), ("command", "command line"), ("workflow", "natural-language request")], max_length=10),
        ),
    ]
