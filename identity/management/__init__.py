from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from catalogue.models import Toolset
from identity.models import AccessToken
from identity.tokens import Access


def add_toolset_option(parser: ArgumentParser, *, what: str) -> None:
    parser.add_argument("--toolset", metavar="SLUG", help=what)


def chosen_toolset(options: dict[str, Any]) -> Toolset | None:
    """Raises CommandError for an unknown slug."""
    if (slug := options["toolset"]) is None:
        return None
    toolset = Toolset.objects.filter(slug=slug).first()
    if toolset is None:
        known = ", ".join(Toolset.objects.values_list("slug", flat=True)) or "none"
        raise CommandError(f"There is no toolset {slug}. The toolsets are: {known}.")
    return toolset


def chosen_user(username: str | None) -> User | None:
    """Raises CommandError for an unknown one."""
    if username is None:
        return None
    if (user := User.objects.filter(username=username).first()) is None:
        raise CommandError(f"There is no user {username}.")
    return user


def chosen_token(name: str) -> AccessToken:
    """Raises CommandError for an unknown name."""
    token = AccessToken.objects.filter(name=name).first()
    if token is None:
        raise CommandError(f"There is no access token {name}. Run list_mcp_tokens to list them.")
    return token


def local_access(options: dict[str, Any]) -> Access:
    """The local user's access. Raises CommandError for an unknown or disabled toolset."""
    toolset = chosen_toolset(options)
    if toolset is not None and not toolset.enabled:
        raise CommandError(f"The toolset {toolset.slug} is disabled. Enable it in the admin or with REST.")
    return Access.of_local_user(toolset=None if toolset is None else toolset.slug)
