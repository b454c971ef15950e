import catalogue.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('executions', '0028_notices_of_runs'),
    ]

    operations = [
        migrations.CreateModel(
            name='ProblemReport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(help_text='SHA-256 of what makes reports the same.', max_length=64, unique=True)),
                ('tool', models.CharField(help_text='As the agent named it. Empty: none.', max_length=100, verbose_name='tool')),
                ('is_tool', models.BooleanField(help_text='Whether the agent saw a tool of this name.')),
                ('missing', models.TextField(help_text='What the first agent missed.', verbose_name='missing')),
                ('last', catalogue.fields.JSONTextField(default=list, help_text='The latest reports: `at`, `caller` and what was `tried`.')),
                ('times', models.PositiveIntegerField(default=0, help_text='Since it was last resolved.', verbose_name='reports')),
                ('first_at', models.DateTimeField(help_text='Since it was last resolved.')),
                ('last_at', models.DateTimeField()),
                ('resolved_at', models.DateTimeField(null=True)),
            ],
            options={
                'verbose_name': 'problem report',
                'verbose_name_plural': 'problem reports',
                'ordering': ('-last_at', '-pk'),
                'default_permissions': ('view', 'change'),
            },
        ),
    ]
