"""The audit's tables, and triggers: entries and segments are only added to, apart from sealing and the retention."""

import json

from django.db import migrations, models
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
    replaces = [
        ("audit", "0001_initial"),
        ("audit", "0002_append_only"),
        ("audit", "0003_entries_by_what"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(default=timezone.now, verbose_name="when")),
                ("kind", models.CharField(choices=[("sign_in", "sign-in"), ("token", "token"), ("account", "user or role"), ("approval", "approval"), ("curation", "curation"), ("setting", "setting"), ("import", "import"), ("export", "export"), ("call", "call"), ("audit", "the audit itself")], max_length=10)),
                ("event", models.CharField(help_text="Such as sign_in.failed.", max_length=40)),
                ("actor", models.CharField(blank=True, help_text="Such as user:1 or token:7.", max_length=255)),
                ("actor_name", models.CharField(blank=True, help_text="As it was called then.", max_length=255, verbose_name="who")),
                ("address", models.CharField(blank=True, help_text="The client's network address.", max_length=100, verbose_name="from")),
                ("client", models.CharField(blank=True, help_text="What the client says that it is.", max_length=255)),
                ("door", models.CharField(blank=True, help_text="Such as admin, rest or mcp.", max_length=20)),
                ("subject", models.CharField(blank=True, help_text="What it was done to, such as catalogue.source:5.", max_length=255)),
                ("subject_name", models.CharField(blank=True, max_length=255, verbose_name="what")),
                ("outcome", models.CharField(blank=True, max_length=20)),
                ("details", models.TextField(default="{}", help_text="More of it, as a JSON object.")),
                ("key", models.CharField(help_text="Names the record of another room that it tells of.", max_length=80, null=True)),
                ("segment", models.PositiveBigIntegerField(help_text="Empty until it is sealed.", null=True)),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit entries",
                "ordering": ("-at", "-pk"),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["-at", "-id"], name="audit_by_time"),
                    models.Index(fields=["kind", "-at"], name="audit_by_kind"),
                    models.Index(fields=["actor", "-at"], name="audit_by_actor"),
                    models.Index(fields=["segment"], name="audit_by_segment"),
                    models.Index(condition=models.Q(("segment", None)), fields=["id"], name="audit_unsealed"),
                    models.Index(fields=["event", "-at"], name="audit_by_event"),
                    models.Index(fields=["outcome", "-at"], name="audit_by_outcome"),
                    models.Index(fields=["subject", "-at"], name="audit_by_subject"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("key",), name="one_audit_entry_per_record"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Progress",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("gathered", models.TextField(default="{}", help_text="Until when, by the name of the record, as JSON.")),
                ("rechecked_at", models.DateTimeField(null=True)),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="one_audit_progress"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Segment",
            fields=[
                ("number", models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ("kind", models.CharField(choices=[("sign_in", "sign-in"), ("token", "token"), ("account", "user or role"), ("approval", "approval"), ("curation", "curation"), ("setting", "setting"), ("import", "import"), ("export", "export"), ("call", "call"), ("audit", "the audit itself")], max_length=10)),
                ("sealed_at", models.DateTimeField()),
                ("newest_at", models.DateTimeField(help_text="When its latest entry happened.")),
                ("entries", models.PositiveIntegerField()),
                ("root", models.CharField(help_text="SHA-256 of the leaves.", max_length=64)),
                ("previous", models.CharField(blank=True, help_text="The digest of the segment before.", max_length=64)),
                ("digest", models.CharField(help_text="SHA-256 of all of the above.", max_length=64)),
                ("seal", models.CharField(help_text="HMAC of the digest with a key from SECRET_KEY.", max_length=64)),
                ("seal_key", models.CharField(help_text="Tells keys of seals apart.", max_length=16)),
                ("leaves", models.TextField(blank=True, help_text="Number and SHA-256 of each entry, a line each.")),
                ("pruned_at", models.DateTimeField(help_text="When the retention removed its entries.", null=True)),
            ],
            options={
                "ordering": ("number",),
                "default_permissions": (),
                "indexes": [
                    models.Index(condition=models.Q(("pruned_at", None)), fields=["kind", "newest_at"], name="audit_segment_kept"),
                ],
            },
        ),
        migrations.RunPython(begin, migrations.RunPython.noop),
        migrations.RunPython(
            lambda apps, schema_editor: install(schema_editor.connection),
            lambda apps, schema_editor: remove(schema_editor.connection),
        ),
    ]
