from celery import shared_task
from django.core.management import call_command


@shared_task(name="mcp_bridge.clean_up_authorizations")
def clean_up_authorizations() -> None:
    """Expired codes and tokens, and registrations that were never used."""
    # Keeps what only this task needs, such as REST framework, out of the start of workers.
    from oauth2_provider.models import clear_expired

    from identity.oauth.grants import forget_unused

    clear_expired()
    forget_unused()
    call_command("clearsessions")
