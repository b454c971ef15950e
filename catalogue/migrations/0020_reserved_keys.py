from typing import Any

from django.db import migrations

import catalogue.fields


def hold_by_key(apps: Any, schema_editor: Any) -> None:
    """Who has the names now; others are held without a key, so that no later user or group gets in."""
    keys = {"user:" + name: f"user:{key}" for key, name in _rows(apps, "User", "username")}
    keys |= {"group:" + name: f"group:{key}" for key, name in _rows(apps, "Group", "name")}
    for model in ("Source", "Toolset"):
        for row in apps.get_model("catalogue", model).objects.all():
            row.reserved_keys = {name: keys.get(name, "") for name in row.reserved_for}
            row.save(update_fields=["reserved_keys"])


def _rows(apps: Any, model: str, column: str) -> Any:
    return apps.get_model("auth", model).objects.values_list("pk", column).iterator()


COLUMN = catalogue.fields.JSONTextField(
    db_default={}, default=dict, editable=False, help_text="By name, the key such as user:7, or empty."
)


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("catalogue", "0001_squashed_0019"),
    ]
    operations = [
        migrations.AddField("source", "reserved_keys", COLUMN.clone()),
        migrations.AddField("toolset", "reserved_keys", COLUMN.clone()),
        migrations.RunPython(hold_by_key, migrations.RunPython.noop),
    ]
