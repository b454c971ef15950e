from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catalogue.discovery import BeingRefreshed, RefreshRefused, refresh_source
from catalogue.http_tools import KIND
from catalogue.management.base import CatalogueCommand
from catalogue.models import DiscoveryRun, Source


class Command(CatalogueCommand):
    help = (
        "List the workflows of these sources, or of all enabled ones. Exits with 1 if a listing fails or is "
        "held."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME")

    def handle(self, *args: Any, **options: Any) -> None:
        names = options["names"]
        chosen = Source.objects.filter(name__in=names) if names else Source.objects.filter(enabled=True)
        found = {source.name: source for source in chosen}
        if unknown := [name for name in names if name not in found]:
            raise CommandError(f"No such source: {', '.join(unknown)}")
        sources = [found[name] for name in names or found]
        if not sources:
            self.stdout.write("No source is enabled.")
        failed = [source.name for source in sources if not self._refresh(source)]
        if failed:
            raise CommandError(f"Failed: {', '.join(failed)}")

    def _refresh(self, source: Source) -> bool:
        try:
            run = self._list(source)
        except RefreshRefused as error:
            self.stderr.write(str(error))
            return False
        if run.outcome != DiscoveryRun.Outcome.SUCCEEDED:
            told = run.error if run.error.endswith((".", "!", "?")) else f"{run.error}."
            # Declared tools and sources that never answered have no last good list; a held listing says it
            # itself.
            has_list = source.kind != KIND and source.last_refreshed_at is not None
            if has_list and run.outcome != DiscoveryRun.Outcome.HELD:
                told = f"{told} The last good list stays."
            self.stderr.write(f"{source.name}: {told}")
            return False
        self._report(source, run)
        return True

    def _list(self, source: Source) -> DiscoveryRun:
        try:
            return refresh_source(source)
        except BeingRefreshed as error:
            self.stderr.write(f"{error} Refreshing it again after that.")
            return refresh_source(source, waits=True)

    def _report(self, source: Source, run: DiscoveryRun) -> None:
        if source.kind == KIND:
            self.stdout.write(f"{source.name}: its tools are declared in the catalogue; the API was reached.")
            return
        self.stdout.write(
            f"{source.name}: {run.found} found, {run.added} added, {run.updated} updated, "
            f"{run.returned} returned, {run.missing} missing, {run.held} held, {run.skipped_count} skipped "
            f"({run.duration_ms} ms)"
        )
        for skipped in run.skipped:
            self.stdout.write(
                f"  skipped {skipped['id'] or '(no id)'} {skipped['name']!r}: {skipped['reason']}"
            )
        for flagged in run.flagged:
            self.stdout.write(f"  flagged {flagged['id']} {flagged['name']!r}: {flagged['reason']}")
