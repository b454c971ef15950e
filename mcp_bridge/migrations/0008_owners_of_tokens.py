from django.db import migrations
from django.db.models import F


def give_owners(apps, schema_editor):
    """A token belongs to the user who made it, unless that user is disabled already: it worked until now."""
    tokens = apps.get_model("mcp_bridge", "AccessToken")
    users = apps.get_model("auth", "User").objects.filter(is_active=True)
    tokens.objects.filter(owner=None, created_by__in=users.values("pk")).update(owner=F("created_by"))


class Migration(migrations.Migration):
    dependencies = [("mcp_bridge", "0007_owners_and_rotation"), ("auth", "0012_alter_user_first_name_max_length")]

    operations = [migrations.RunPython(give_owners, migrations.RunPython.noop)]
