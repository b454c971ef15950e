"""Triggers: entries and segments are only added to, apart from sealing and the retention."""

import json

from django.db import migrations
from django.utils import timezone

KEPT = "the audit is only added to"
OF_ENTRIES = (
    "id", "at", "kind", "event", "actor", "actor_name", "address", "client", "door", "subject", "subject_name",
    "outcome", "details", "key",
)
OF_SEGMENTS = (
    "number", "kind", "sealed_at", "newest_at", "entries", "root", "previous", "digest", "seal", "seal_key",
)


def _differ(columns):
    return " OR ".join(f'NEW."{name}" IS NOT OLD."{name}"' for name in columns)


# An entry comes into a segment once, before that is there; it goes with the segment's other entries, once that
# is marked as pruned. A segment is never removed, and changes only by that mark.
SEALED = 'EXISTS (SELECT 1 FROM audit_segment WHERE number = NEW."segment")'
PRUNED = 'EXISTS (SELECT 1 FROM audit_segment WHERE number = OLD."segment" AND pruned_at IS NOT NULL)'
SQLITE = {
    "audit_entry_added": f'BEFORE INSERT ON audit_entry WHEN NEW."segment" IS NOT NULL AND {SEALED}',
    "audit_entry_changed": (
        'BEFORE UPDATE ON audit_entry WHEN OLD."segment" IS NOT NULL OR NEW."segment" IS NULL '
        f"OR {SEALED} OR {_differ(OF_ENTRIES)}"
    ),
    "audit_entry_removed": f'BEFORE DELETE ON audit_entry WHEN OLD."segment" IS NULL OR NOT {PRUNED}',
    "audit_segment_changed": (
        "BEFORE UPDATE ON audit_segment WHEN OLD.pruned_at IS NOT NULL OR NEW.pruned_at IS NULL "
        f"OR NEW.leaves <> '' OR {_differ(OF_SEGMENTS)}"
    ),
    "audit_segment_removed": "BEFORE DELETE ON audit_segment",
}
POSTGRESQL = f"""
CREATE OR REPLACE FUNCTION audit_entry_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND (NEW.segment IS NULL OR NOT {SEALED}) THEN
        RETURN NEW;
    ELSIF TG_OP = 'UPDATE' AND OLD.segment IS NULL AND NEW.segment IS NOT NULL AND NOT {SEALED}
        AND to_jsonb(NEW) - 'segment' = to_jsonb(OLD) - 'segment' THEN
        RETURN NEW;
    ELSIF TG_OP = 'DELETE' AND {PRUNED} THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '{KEPT}';
END $$;
CREATE OR REPLACE FUNCTION audit_segment_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.pruned_at IS NULL AND NEW.pruned_at IS NOT NULL AND NEW.leaves = ''
        AND to_jsonb(NEW) - 'pruned_at' - 'leaves' = to_jsonb(OLD) - 'pruned_at' - 'leaves' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '{KEPT}';
END $$;
CREATE OR REPLACE FUNCTION audit_is_not_emptied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '{KEPT}';
END $$;
CREATE TRIGGER audit_entry_kept BEFORE INSERT OR UPDATE OR DELETE ON audit_entry
    FOR EACH ROW EXECUTE FUNCTION audit_entry_is_kept();
CREATE TRIGGER audit_segment_kept BEFORE UPDATE OR DELETE ON audit_segment
    FOR EACH ROW EXECUTE FUNCTION audit_segment_is_kept();
CREATE TRIGGER audit_entry_not_emptied BEFORE TRUNCATE ON audit_entry
    EXECUTE FUNCTION audit_is_not_emptied();
CREATE TRIGGER audit_segment_not_emptied BEFORE TRUNCATE ON audit_segment
    EXECUTE FUNCTION audit_is_not_emptied();
"""
NAMES = {
    "audit_entry": ("audit_entry_kept", "audit_entry_not_emptied"),
    "audit_segment": ("audit_segment_kept", "audit_segment_not_emptied"),
}


def install(connection):
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(POSTGRESQL)
            return
        for name, rule in SQLITE.items():
            cursor.execute(f"CREATE TRIGGER {name} {rule} BEGIN SELECT RAISE(ABORT, '{KEPT}'); END")


def remove(connection):
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for table, names in NAMES.items():
                for name in names:
                    cursor.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
            return
        for name in SQLITE:
            cursor.execute(f"DROP TRIGGER IF EXISTS {name}")


def begin(apps, schema_editor):
    """Calls are entered from now on; the history of curation as a whole."""
    now = timezone.now().isoformat()
    gathered = json.dumps({"call": now, "began": now})
    apps.get_model("audit", "Progress").objects.get_or_create(pk=1, defaults={"gathered": gathered})


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]

    operations = [
        migrations.RunPython(begin, migrations.RunPython.noop),
        migrations.RunPython(
            lambda apps, schema_editor: install(schema_editor.connection),
            lambda apps, schema_editor: remove(schema_editor.connection),
        ),
    ]
