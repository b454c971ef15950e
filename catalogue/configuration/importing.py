"""Making the catalogue what a file says: one transaction, one revision, and a plan that is the same code.

An object that the file has is described by it as a whole: what it leaves out is the default. Objects that the
file does not have stay, unless they are pruned; sections that it does not have are left alone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import ProtectedError

from catalogue.configuration.document import CatalogueFile
from catalogue.configuration.exporting import (
    describe_curation,
    describe_rule,
    describe_source,
    describe_toolset,
    permissions_of,
    secrets_of,
)
from catalogue.configuration.fields import (
    FILTER,
    RULE_FIELDS,
    SOURCE,
    TOOLSET,
    TOOLSET_RULE,
    WORKFLOW,
    Curated,
)
from catalogue.configuration.plan import Plan, PlannedChange, Verb, compare
from catalogue.configuration.workflows import LISTED_PREFIX, Workflows, name_of
from catalogue.connections import secret_fields
from catalogue.history import Actor, record_changes, record_deletion, remember_relations
from catalogue.models import Revision, Source, Toolset, Workflow, WorkflowFilter
from catalogue.product_settings import InvalidSettings, change_settings, live_settings, settings_row
from catalogue.secrets import CredentialsUnreadable
from catalogue.sources import check_address_is_kept, configure_source, create_source, update_source
from catalogue.toolsets import POSITIONS_APART, UnknownPicks, write_toolset
from connectors.errors import Misconfigured
from connectors.formats.yaml import Path

VERBS = {Verb.ADD: "add", Verb.CHANGE: "change", Verb.REMOVE: "delete"}
"""Those of Django's permissions."""
CHANGE_SOURCE = "catalogue.change_source"
GROUPS_REFUSED = (
    "groups are changed by superusers in the admin, and by manage.py import_catalogue; leave the section out"
)
Rights = Callable[[str], bool]
"""Whether one has a permission such as `catalogue.change_source`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRequest:
    file: CatalogueFile
    """It is used up: each import reads it anew."""
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """By source and setting; those that are not given stay as they are stored."""
    prune: bool = False
    """What the file's sections do not have goes."""
    sources_only: bool = False
    """Settings and sources alone, to list them before the rest; what new ones list is hidden until then."""
    tell_where: Callable[[str, str], str] = lambda source, secret: "give it with the file"
    """How the door takes the secret of a source, for the message about one that is missing."""


def rights_of(user: Any) -> Rights:
    """Groups give permissions away, so only who has them all may change those."""
    return lambda name: user.is_superuser or (not name.startswith("auth.") and user.has_perm(name))


def token_rights(name: str) -> bool:
    """Of the scope `catalogue:admin`, which people can hand out who may not change groups."""
    return not name.startswith("auth.")


def plan_import(request: ImportRequest, *, by: Actor, rights: Rights | None = None) -> Plan:
    """What `import_catalogue` would do now. Raises ConfigurationRefused."""
    return _Import(request, by, rights).carry_out(dry_run=True)


def import_catalogue(
    request: ImportRequest, *, by: Actor, rights: Rights | None = None, expected: str = ""
) -> Plan:
    """Make everything as the file says, or nothing. Raises ConfigurationRefused.

    `rights`: None for the operator, who may do all. `expected`: the digest of a plan that somebody has seen;
    where another one would be carried out, PlanChanged is raised.
    """
    return _Import(request, by, rights).carry_out(expected=expected)


class PlanChanged(Exception):
    """Something has changed since the plan was made."""


class _Import:
    def __init__(self, request: ImportRequest, by: Actor, rights: Rights | None) -> None:
        self._request = request
        self._by = by
        self._rights = rights
        self._file = request.file
        self._plan = Plan()
        self._histories: list[tuple[models.Model, str]] = []

    def carry_out(self, *, dry_run: bool = False, expected: str = "") -> Plan:
        with transaction.atomic():
            Revision.lock()
            before = Revision.current()
            self._write()
            record_changes(self._by, self._histories)
            if self._plan:
                # Each row that was saved has moved it.
                Revision.objects.filter(pk=1).update(number=before + 1)
            superseded = bool(expected) and expected != self._plan.digest
            if dry_run or superseded or self._file.problems:
                transaction.set_rollback(True)
        self._file.raise_problems()
        if superseded:
            raise PlanChanged
        self._plan.is_done = not dry_run
        return self._plan

    def _write(self) -> None:
        for section, write in (
            ("settings", self._write_settings),
            ("groups", self._write_groups),
            ("sources", self._write_sources),
            ("workflows", self._write_workflows),
            ("filters", self._write_filters),
            ("toolsets", self._write_toolsets),
        ):
            if self._request.sources_only and section not in ("settings", "sources"):
                continue
            if self._file.has(section) or (section == "workflows" and self._file.has("listed")):
                write()

    def _note(
        self,
        verb: Verb,
        kind: str,
        row: models.Model,
        path: Path,
        *,
        name: str = "",
        fields: Iterable[Any] = (),
        permission: str = "",
    ) -> None:
        """Plan it, keep it for the history, and refuse it to who may not do it."""
        change = PlannedChange(verb=verb, kind=kind, name=name or str(row), fields=tuple(fields))
        self._plan.changes.append(change)
        told = f"Import: {change.told or ('deleted' if verb is Verb.REMOVE else 'added')}."
        if verb is Verb.REMOVE and not isinstance(row, Workflow):
            # Before it is gone; a workflow only leaves the list.
            record_deletion(self._by, [row], told)
        else:
            self._histories.append((row, told))
        permission = permission or f"{row._meta.app_label}.{VERBS[verb]}_{row._meta.model_name}"
        if self._rights is not None and not self._rights(permission):
            told = f"this needs the permission {permission}; an administrator can grant it"
            self._file.refuse(path, GROUPS_REFUSED if permission.startswith("auth.") else told)

    # Settings.

    def _write_settings(self) -> None:
        known = live_settings()
        wanted = self._file.mapping(("settings",), known=known)
        row = settings_row()
        before = {name: value for name, value in row.overrides.items() if name in known}
        changes = {name: value for name, value in wanted.items() if before.get(name) != value}
        if self._request.prune:
            changes |= {name: None for name in before if name not in wanted}
        if not changes:
            return
        try:
            change_settings(changes, by=self._by.name)
        except InvalidSettings as error:
            for name, problem in error.problems.items():
                self._file.refuse(("settings", name), problem)
            return
        after = {name: value for name, value in {**before, **changes}.items() if value is not None}
        if fields := compare(before, after):
            self._note(Verb.CHANGE, "settings", row, ("settings",), name="of the product", fields=fields)

    # Groups.

    def _write_groups(self) -> None:
        known = permissions_of(Permission.objects.select_related("content_type"))
        present = {group.name: group for group in Group.objects.prefetch_related("permissions__content_type")}
        wanted = self._file.mapping(("groups",))
        for name in wanted:
            names = self._file.items(("groups", name), str)
            for index, one in enumerate(names):
                if one not in known:
                    place = ("groups", name, index)
                    self._file.refuse_unknown(place, f"there is no permission {one}", one, known)
            self._write_group(name, present.get(name), {one: known[one] for one in names if one in known})
        for name, group in present.items():
            if self._request.prune and name not in wanted:
                self._note(Verb.REMOVE, "group", group, ("groups",))
                group.delete()

    def _write_group(self, name: str, group: Group | None, wanted: dict[str, Permission]) -> None:
        path, verb, before = ("groups", name), Verb.CHANGE, []
        if group is None:
            group, verb = Group(name=name), Verb.ADD
            if self._is_refused(path, group.full_clean):
                return
            group.save()
        else:
            before = sorted(permissions_of(group.permissions.all()))
        if verb is Verb.ADD or before != sorted(wanted):
            group.permissions.set(wanted.values())
            fields = compare({"permissions": before}, {"permissions": sorted(wanted)})
            self._note(verb, "group", group, path, fields=fields)

    # Sources.

    def _write_sources(self) -> None:
        wanted = self._file.mapping(("sources",))
        present = {source.name: source for source in Source.objects.order_by("name")}
        for name in wanted:
            self._write_source(name, present.get(name))
        for name, source in present.items():
            if self._request.prune and name not in wanted:
                self._note(Verb.REMOVE, "source", source, ("sources",))
                source.delete()
        for name in self._request.secrets.keys() - wanted.keys():
            self._file.refuse(("sources",), f"secrets are given for {name}, which is not in the file")

    def _write_source(self, name: str, source: Source | None) -> None:
        path: Path = ("sources", name)
        given = self._file.mapping(path, known=("kind", "config", "secrets", *SOURCE.names))
        kind, config = given.get("kind"), given.get("config") or {}
        if not isinstance(kind, str) or not isinstance(config, dict):
            self._file.refuse(path, "needs its `kind`, such as simplified, and a mapping as its `config`")
            return
        if source is not None and source.kind != kind:
            told = (
                f"is of the kind {source.kind} here, which cannot be changed: delete it first, or rename one"
            )
            self._file.refuse(path, told)
            return
        values = self._file.fields(path, SOURCE, given)
        credentials = self._credentials(path, kind, source)
        if credentials is None:
            return
        if source is None:
            self._add_source(
                path, name, {"kind": kind, "config": config, "credentials": credentials} | values
            )
        else:
            self._change_source(path, source, config, credentials, values)

    def _credentials(self, path: Path, kind: str, source: Source | None) -> dict[str, str] | None:
        """None where they are refused."""
        try:
            known = secret_fields(kind)
        except Misconfigured as error:
            self._file.refuse((*path, "kind"), error.message)
            return None
        stored, given = _stored(source), dict(self._request.secrets.get(str(path[1]), {}))
        named = self._file.items((*path, "secrets"), str)
        if not self._file.has(*path, "secrets"):
            named = sorted({*stored, *given})
        if unknown := sorted({*named, *given} - set(known)):
            told = f"no secrets of this kind: {', '.join(unknown)}; there are {', '.join(known) or 'none'}"
            self._file.refuse(path, told)
            return None
        if missing := [one for one in named if one not in given and one not in stored]:
            where = self._request.tell_where(str(path[1]), missing[0])
            self._file.refuse(path, f"the secret {missing[0]} is not stored here: {where}")
            return None
        return {one: given.get(one) or stored[one] for one in named}

    def _add_source(self, path: Path, name: str, values: dict[str, Any]) -> None:
        if self._request.sources_only:
            values |= {"new_workflows": Source.NewWorkflows.HIDDEN}
        try:
            source = create_source(name=name, **values)
        except ValidationError as error:
            self._file.refuse_all(path, error)
        else:
            self._note(Verb.ADD, "source", source, path, fields=compare({}, describe_source(source)))

    def _change_source(
        self,
        path: Path,
        source: Source,
        config: dict[str, Any],
        credentials: dict[str, str],
        values: dict[str, Any],
    ) -> None:
        stored, before = _stored(source), describe_source(source)
        if self._request.sources_only:
            values = {name: value for name, value in values.items() if name != "new_workflows"}
        changed = {name: value for name, value in values.items() if getattr(source, name) != value}
        given = self._request.secrets.get(source.name, {})
        entered = sorted(name for name in given if given[name] != stored.get(name))
        try:
            if config != source.config and set(credentials) - set(given):
                check_address_is_kept(source, config)
            if config != source.config or credentials != stored:
                configure_source(source, config=config, credentials=credentials)
            if changed:
                update_source(source, **changed)
        except (ValidationError, Misconfigured) as error:
            refused = error if isinstance(error, ValidationError) else ValidationError(error.message)
            self._file.refuse_all(path, refused)
            return
        fields = [*compare(before, describe_source(source) | {"secrets": secrets_of(source)})]
        # Never the values, which are secret.
        fields += compare(dict.fromkeys(entered, "as before"), dict.fromkeys(entered, "as given"))
        if fields:
            self._note(Verb.CHANGE, "source", source, path, fields=fields)

    # Workflows.

    def _write_workflows(self) -> None:
        sources = {source.name: source for source in Source.objects.all()}
        named = {
            name: (section, name)
            for section in ("listed", "workflows")
            for name in self._file.mapping((section,))
        }
        rows = Workflows(self._file, prune=self._request.prune)
        for name in sorted(named):
            if name in sources:
                rows.read(sources[name])
            elif not self._file.problems:
                self._file.refuse_unknown(named[name], "there is no such source", name, sources)
        if not self._file.problems:
            rows.find_names()
        if not self._file.problems:
            rows.write()
            self._note_workflows(rows)

    def _note_workflows(self, rows: Workflows) -> None:
        """What engines say of workflows belongs to their sources, and so do declared ones."""
        added = [(row, rows.path_of(row), compare({}, describe_curation(row))) for row in rows.added]
        for row, path, fields in added:
            name = name_of(row)
            self._note(Verb.ADD, "workflow", row, path, name=name, fields=fields, permission=CHANGE_SOURCE)
        for row, fields in rows.changed.items():
            declared = any(one.name.startswith(LISTED_PREFIX) for one in fields)
            permission = CHANGE_SOURCE if declared else ""
            path, name = rows.path_of(row), name_of(row)
            self._note(Verb.CHANGE, "workflow", row, path, name=name, fields=fields, permission=permission)
        for row in rows.removed:
            place, name = ("listed", row.source.name), name_of(row)
            self._note(Verb.REMOVE, "workflow", row, place, name=name, permission=CHANGE_SOURCE)

    # Filters.

    def _write_filters(self) -> None:
        """In the file's order; those that it does not have come after its own."""
        wanted = self._read_rules(("filters",), FILTER)
        if wanted is None:
            return
        present = list(WorkflowFilter.objects.all())
        by_rule: dict[tuple[Any, ...], list[WorkflowFilter]] = {}
        for rule in present:
            by_rule.setdefault(_rule_key(rule), []).append(rule)
        ordered: list[WorkflowFilter] = []
        for index, values in enumerate(wanted):
            rule = WorkflowFilter(**values)
            same = by_rule.get(_rule_key(rule))
            ordered.append(self._update_rule(same.pop(0) if same else None, rule, index))
        for rule in present:
            if rule in by_rule.get(_rule_key(rule), ()):
                if self._request.prune:
                    self._note(Verb.REMOVE, "filter", rule, ("filters",))
                    rule.delete()
                else:
                    ordered.append(rule)
        known = {rule.pk for rule in present}
        self._move_filters(ordered, added={rule.pk for rule in ordered} - known)

    def _update_rule(
        self, present: WorkflowFilter | None, wanted: WorkflowFilter, index: int
    ) -> WorkflowFilter:
        path: Path = ("filters", index)
        if present is None:
            wanted.position = (index + 1) * POSITIONS_APART
            wanted.save()
            fields = compare({}, describe_rule(FILTER, wanted))
            self._note(Verb.ADD, "filter", wanted, path, fields=fields)
            return wanted
        before = describe_rule(FILTER, present)
        present.enabled, present.note = wanted.enabled, wanted.note
        if fields := compare(before, describe_rule(FILTER, present)):
            present.save(update_fields=["enabled", "note"])
            self._note(Verb.CHANGE, "filter", present, path, fields=fields)
        return present

    def _move_filters(self, ordered: list[WorkflowFilter], *, added: set[int]) -> None:
        """Positions change only where the order does."""
        keys = [(rule.position, rule.pk) for rule in ordered]
        if keys == sorted(keys):
            return
        before = [rule.pk for rule in sorted(ordered, key=lambda rule: (rule.position, rule.pk))]
        for number, rule in enumerate(ordered, start=1):
            was, rule.position = before.index(rule.pk) + 1, number * POSITIONS_APART
            rule.save(update_fields=["position"])
            if was != number and rule.pk not in added:
                fields = compare({"place": was}, {"place": number})
                self._note(Verb.CHANGE, "filter", rule, ("filters",), fields=fields)

    def _read_rules(self, path: Path, curated: Curated) -> list[dict[str, Any]] | None:
        """None where some of them are refused."""
        known, wanted = len(self._file.problems), []
        for index, _ in enumerate(self._file.items(path, dict)):
            place = (*path, index)
            given = self._file.mapping(place, known=RULE_FIELDS)
            values = self._file.fields(place, curated, given)
            rule: Any = curated.model(**values)
            self._is_refused(place, partial(rule.clean_fields, exclude=[*curated.otherwise]))
            wanted.append(values)
        return None if len(self._file.problems) > known else wanted

    # Toolsets.

    def _write_toolsets(self) -> None:
        wanted = self._file.mapping(("toolsets",))
        present = {toolset.slug: toolset for toolset in Toolset.objects.prefetch_related("rules", "picked")}
        for slug in wanted:
            self._write_toolset(slug, present.get(slug))
        for slug, toolset in present.items():
            if self._request.prune and slug not in wanted:
                self._remove_toolset(toolset)

    def _write_toolset(self, slug: str, toolset: Toolset | None) -> None:
        path: Path = ("toolsets", slug)
        given = self._file.mapping(path, known=(*TOOLSET.names, "rules", "picked"))
        values = self._file.fields(path, TOOLSET, given)
        rules = self._read_rules((*path, "rules"), TOOLSET_RULE)
        picked = sorted(set(self._file.items((*path, "picked"), str)))
        if rules is None:
            return
        before = {} if toolset is None else describe_toolset(toolset)
        wanted = _toolset_as(slug, values, rules, picked)
        if toolset is not None and before == wanted:
            return
        if toolset is not None:
            remember_relations(toolset)
        try:
            written = write_toolset(toolset or Toolset(slug=slug), picked=picked, rules=rules, **values)
        except UnknownPicks as unknown:
            taken = list(Workflow.objects.values_list("tool_name", flat=True))
            for name in unknown.names:
                place = (*path, "picked", given["picked"].index(name))
                self._file.refuse_unknown(place, f"there is no workflow {name}", name, taken)
        except ValidationError as error:
            self._file.refuse_all(path, error)
        else:
            verb = Verb.ADD if toolset is None else Verb.CHANGE
            self._note(verb, "toolset", written, path, fields=compare(before, wanted))

    def _remove_toolset(self, toolset: Toolset) -> None:
        try:
            with transaction.atomic():
                self._note(Verb.REMOVE, "toolset", toolset, ("toolsets",))
                toolset.delete()
        except ProtectedError:
            told = f"tokens are bound to {toolset.slug}: delete it by hand, or keep it in the file"
            self._file.refuse(("toolsets",), told)

    def _is_refused(self, path: Path, check: Callable[[], None]) -> bool:
        try:
            check()
        except ValidationError as error:
            names = (
                {column: name for name, column in WORKFLOW.names.items()} if path[0] == "workflows" else {}
            )
            self._file.refuse_all(path, error, names)
            return True
        return False


def _stored(source: Source | None) -> dict[str, str]:
    """Nothing of credentials that cannot be read: they have to be given again."""
    try:
        return {} if source is None else source.credentials
    except CredentialsUnreadable:
        return {}


def _rule_key(rule: Any) -> tuple[Any, ...]:
    return rule.action, rule.subject, rule.syntax, rule.pattern


def _toolset_as(
    slug: str, values: dict[str, Any], rules: list[dict[str, Any]], picked: list[str]
) -> dict[str, Any]:
    """The toolset of the file as the export would describe it."""
    told = TOOLSET.decided(Toolset(slug=slug, **values))
    described = [describe_rule(TOOLSET_RULE, TOOLSET_RULE.model(**rule)) for rule in rules]
    return told | ({"rules": described} if described else {}) | ({"picked": picked} if picked else {})
