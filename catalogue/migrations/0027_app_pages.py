import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('catalogue', '0026_toolset_cards'),
    ]

    operations = [
        migrations.CreateModel(
            name='AppPage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sha256', models.CharField(max_length=64)),
                ('html', models.TextField()),
                ('source', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='app_pages', to='catalogue.source')),
            ],
            options={
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('source', 'sha256'), name='app_page_kept_once')],
            },
        ),
    ]
