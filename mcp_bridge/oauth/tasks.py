from celery import shared_task
from django.core.management import call_command


@shared_task(name="mcp_bridge.clean_up_authorizations")
def clean_up_authorizations() -> None:
    # Workers start without what only this task needs, REST framework for instance.
    from mcp_bridge.oauth.grants import clean_up

    clean_up()
    call_command("clearsessions")
