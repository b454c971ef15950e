"""What every import has in common: its request, its outcome, the permissions it needs and its refusals."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from catalogue.history import Actor, record_change
from catalogue.models import Source
from catalogue.reconciliation import Change
from catalogue.secrets import CredentialsUnreadable
from connectors.http_tools.tool import ValidationProblem


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    content: bytes = field(repr=False)
    source: str = ""  # An existing source, or the name of a new one
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # Of the source, by setting
    prune: bool = False  # Remove the source's workflows that the content does not have
    expose: bool = False
    dry_run: bool = False  # Return what the import would change, and write nothing
    by: Actor | None = None  # The actor in the history; None keeps the import out of it


@dataclass(kw_only=True)
class ImportOutcome:
    source: str
    is_new: bool
    notes: list[str]
    dry_run: bool

    @property
    def every_change(self) -> list[Change]:
        raise NotImplementedError

    @property
    def counts(self) -> str:
        """Empty if nothing is imported."""
        return counts_of(self.every_change)


def counts_of(changes: Iterable[Change]) -> str:
    """`120 added, 3 removed`"""
    counts = Counter(changes)
    return ", ".join(f"{counts[change]} {change}" for change in Change if counts[change])


def record_import(by: Actor | None, source: Source, what: str, changes: Iterable[Change]) -> None:
    """Call it in the transaction of the import."""
    if by is not None:
        record_change(by, [source], f"Imported {what}: {counts_of(changes) or 'nothing'}.")


class ImportRefused(Exception):
    """Nothing was written; every reason is a sentence. They are about a field of the request, by default its
    content."""

    def __init__(self, reasons: list[str], *, about: str = "content") -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons
        self.about = about


def require_kind(source: Source, kind: str) -> None:
    """Raises ImportRefused."""
    if source.kind != kind:
        raise ImportRefused(
            [f"Source {source.name} is of the kind {source.kind}, not {kind}."], about="source"
        )


def permissions_to_import(source: str) -> list[str]:
    """Returns what a staff member needs for the source; without a name the import chooses the source."""
    if not source:
        return ["catalogue.add_source", "catalogue.change_source"]
    known = Source.objects.filter(name=source).exists()
    return [f"catalogue.{'change' if known else 'add'}_source"]


def policy_for_new(*, expose: bool) -> Source.NewWorkflows:
    return Source.NewWorkflows.EXPOSED if expose else Source.NewWorkflows.HIDDEN


def stored_secrets(source: Source | None) -> dict[str, str]:
    """Returns those that can be decrypted."""
    try:
        return {} if source is None else source.credentials
    except CredentialsUnreadable:
        return {}


class ToolsRefused(Exception):
    """Nothing was stored."""

    def __init__(self, problems: Iterable[ValidationProblem]) -> None:
        ordered = sorted(problems, key=lambda fault: -1 if fault.position is None else fault.position)
        self.problems = list(dict.fromkeys(ordered))
        super().__init__("; ".join(map(str, self.problems)))
