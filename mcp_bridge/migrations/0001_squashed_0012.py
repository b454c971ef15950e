import django.core.validators
from django.conf import settings
from django.db import migrations, models

import catalogue.fields
import identity.models


class Migration(migrations.Migration):
    replaces = [
        ("mcp_bridge", "0001_initial"),
        ("mcp_bridge", "0002_token_toolset"),
        ("mcp_bridge", "0003_clients"),
        ("mcp_bridge", "0004_failure_counts_security"),
        ("mcp_bridge", "0005_patience"),
        ("mcp_bridge", "0006_allowed_applications"),
        ("mcp_bridge", "0007_owners_and_rotation"),
        ("mcp_bridge", "0008_owners_of_tokens"),
        ("mcp_bridge", "0009_external_identity"),
        ("mcp_bridge", "0010_second_factor"),
        ("mcp_bridge", "0011_client_log_level"),
        ("mcp_bridge", "0012_plain_labels"),
    ]

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("catalogue", "0001_squashed_0019"),
        migrations.swappable_dependency(settings.OAUTH2_PROVIDER_APPLICATION_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AccessToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                ("digest", models.CharField(editable=False, max_length=64, unique=True)),
                ("prefix", models.CharField(editable=False, help_text="The first characters of the token, to recognise it.", max_length=12)),
                ("scopes", catalogue.fields.JSONTextField(default=identity.models.default_scopes)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("last_used_at", models.DateTimeField(editable=False, help_text="To the minute.", null=True)),
                ("created_by", models.ForeignKey(blank=True, editable=False, null=True, on_delete=models.SET_NULL, to=settings.AUTH_USER_MODEL)),
                ("toolset", models.ForeignKey(blank=True, help_text="The only workflows that the token sees and runs. If empty, all exposed workflows.", null=True, on_delete=models.PROTECT, related_name="tokens", to="catalogue.toolset")),
                (
                    "inline_wait_seconds",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Seconds that a tool call waits before it returns a handle. Choose less than the client's own timeout. If empty, the toolset's value applies, or else the product's default.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(3600)],
                        verbose_name="inline wait",
                    ),
                ),
                ("gave_up_after", models.PositiveIntegerField(editable=False, null=True)),
                ("gave_up_at", models.DateTimeField(editable=False, null=True)),
                ("patience_seconds", models.PositiveIntegerField(editable=False, help_text="The shortest time in seconds after which its clients were seen to give up on calls.", null=True, verbose_name="patience")),
                ("calls_at_once", models.PositiveIntegerField(blank=True, help_text="Calls that may follow each other without a pause. If empty, ten seconds' worth.", null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000)])),
                ("calls_per_minute", models.PositiveIntegerField(blank=True, help_text="Workflow calls per minute by all its clients together. If empty, only the limits for every caller apply.", null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000)])),
                ("end_logged_at", models.DateTimeField(editable=False, null=True)),
                ("former_digest", models.CharField(editable=False, max_length=64, null=True, unique=True)),
                ("former_ends_at", models.DateTimeField(editable=False, null=True)),
                ("former_prefix", models.CharField(blank=True, editable=False, max_length=12)),
                ("former_used_at", models.DateTimeField(editable=False, null=True)),
                ("last_uses", catalogue.fields.JSONTextField(default=list, editable=False, help_text="Where it was used from, most recent first: [{address, client, at}].")),
                ("owner", models.ForeignKey(blank=True, help_text="The token stops working when this user is disabled. If empty, it belongs to the installation.", null=True, on_delete=identity.models.end_with_owner, related_name="access_tokens", to=settings.AUTH_USER_MODEL)),
                ("purpose", models.CharField(blank=True, help_text="What the token is for and where it is stored.", max_length=500)),
                ("rotated_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "ordering": ("name",),
                "permissions": (("keep_accesstoken", "Can make access tokens that never expire"), ("assign_accesstoken", "Can make access tokens for other users")),
            },
        ),
        migrations.CreateModel(
            name="FailureCount",
            fields=[
                ("key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("ends_at", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name="AllowedApplication",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(editable=False, help_text="The name that the application gives itself.", max_length=255)),
                ("scopes", catalogue.fields.JSONTextField(default=list, editable=False)),
                ("toolset", models.CharField(blank=True, editable=False, max_length=100)),
                ("allowed_at", models.DateTimeField(editable=False)),
                ("last_used_at", models.DateTimeField(editable=False, help_text="To the minute.", null=True)),
                ("revoked_at", models.DateTimeField(editable=False, null=True)),
                ("application", models.ForeignKey(editable=False, on_delete=models.CASCADE, related_name="allowed", to=settings.OAUTH2_PROVIDER_APPLICATION_MODEL)),
                ("user", models.ForeignKey(editable=False, on_delete=models.CASCADE, to=settings.AUTH_USER_MODEL)),
            ],
            options={
                "ordering": ("-allowed_at",),
                "constraints": [
                    models.UniqueConstraint(fields=("user", "application"), name="allowed_application_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExternalIdentity",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("issuer", models.CharField(max_length=255)),
                ("subject", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("last_login_at", models.DateTimeField(null=True)),
                ("made_user", models.BooleanField(default=False)),
                ("user", models.ForeignKey(on_delete=models.CASCADE, related_name="identities", to=settings.AUTH_USER_MODEL)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("issuer", "subject"), name="one_user_of_a_subject"),
                ],
            },
        ),
        migrations.CreateModel(
            name="SecondFactor",
            fields=[
                ("user", models.OneToOneField(on_delete=models.CASCADE, primary_key=True, related_name="second_factor", serialize=False, to=settings.AUTH_USER_MODEL)),
                ("encrypted_key", models.TextField()),
                ("confirmed_at", models.DateTimeField(null=True)),
                ("last_step", models.BigIntegerField(default=0)),
                ("recovery_digests", catalogue.fields.JSONTextField(default=list)),
            ],
        ),
        migrations.CreateModel(
            name="ClientLogLevel",
            fields=[
                ("client", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("level", models.CharField(max_length=16)),
                ("set_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "default_permissions": (),
            },
        ),
    ]
