from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.db import transaction

from catalogue.history import command, record_change
from catalogue.management.base import CatalogueCommand
from identity.models import SecondFactor


class Command(CatalogueCommand):
    help = "Remove a user's second factor, for example if the only administrator has lost the device."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> str:
        name = options["username"]
        if (user := User.objects.filter(username=name).first()) is None:
            raise CommandError(f"No such user: {name}")
        removed, _ = SecondFactor.objects.filter(user=user).delete()
        if not removed:
            return f"{name} has no second factor."
        record_change(command("reset_second_factor"), [user], "Reset the second factor.")
        return f"{name} no longer has a second factor."  # Django prints it, after the commit
