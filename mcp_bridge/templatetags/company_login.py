from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def company_login() -> dict[str, object] | None:
    """What the login page says of the company's OpenID provider; None without one."""
    known = settings.CATALOGUE
    if not known["login_issuer"]:
        return None
    return {"name": known["login_name"], "passwords": known["login_passwords"]}
