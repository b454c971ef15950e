"""What workflows do with the things of a department, in the words of those who wrote them."""

from dataclasses import dataclass

from benchmarks._schema_parts import Schema, group, several, text, whole


@dataclass(frozen=True)
class Action:
    verb: str
    purpose: str
    """The first sentence; {thing}, {things} and {system} are filled in."""
    remarks: tuple[str, ...]
    tags: tuple[str, ...] = ()
    output: dict[str, Schema] | None = None


RECORD = {"id": text("Of the record."), "status": text("What became of it.")}
ACTIONS = (
    Action(
        "create",
        "Creates a new {thing} in {system}.",
        (
            "Mandatory fields are checked before anything is written.",
            "A {thing} with the same reference is returned as it is, so a repeated call makes no second one.",
            "The responsible team gets a notification with a link.",
            "Numbers are assigned in the order in which records are saved.",
            "Do not use it to correct an existing {thing}; there is an update for that.",
        ),
        output=RECORD | {"url": text("Where people can open it.", format="uri")},
    ),
    Action(
        "update",
        "Changes fields of an existing {thing}.",
        (
            "Fields that are left out keep their values; null empties them.",
            "Every change is in the history of {system}, with the name of the requester.",
            "Closed {things} can only be changed by an administrator.",
            "When somebody else has changed the {thing} meanwhile, the run fails and names the fields.",
        ),
        output=RECORD | {"changed": several("Names of the fields.", text())},
    ),
    Action(
        "approve",
        "Takes a {thing} through approval: finds the approvers by its amount and kind, asks them, and waits.",
        (
            "Approvers are reminded after two working days and replaced by their deputies after five.",
            "A refusal has to be explained, and the explanation is part of the result.",
            "The rules are those of the authority matrix that is in force on the day of the request.",
            "Nobody can approve what they have asked for themselves.",
            "It can run for days, so ask for its status instead of waiting.",
        ),
        ("approval", "long-running"),
        RECORD | {"approved_by": several("In their order.", text()), "reason": text()},
    ),
    Action(
        "search",
        "Finds {things} in {system}.",
        (
            "The newest come first.",
            "Only those that the requester may see are returned.",
            "Several conditions narrow the result down.",
            "For more than a thousand use the export instead.",
        ),
        ("read-only",),
        {"results": several("The hits.", group("", (), **RECORD)), "total": whole()},
    ),
    Action(
        "summarize",
        "Summarizes what happened to a {thing}, for somebody who has not followed it.",
        (
            "It reads the history, comments and attachments, and quotes the sources of every statement.",
            "Personal data that is not needed is left out.",
            "The text has at most 300 words.",
            "It says what is still open and who has to act next.",
        ),
        ("read-only", "ai"),
        {"summary": text("Markdown."), "open_points": several("", text())},
    ),
    Action(
        "sync",
        "Brings {things} in {system} in line with the connected systems.",
        (
            "The system of record wins every conflict.",
            "Only what has changed since the last run is compared, unless a full run is asked for.",
            "Records that cannot be matched go to a list that the data stewards work through every morning.",
            "A run that is broken off goes on where it stopped.",
            "During business hours it is throttled to 20 records a second.",
        ),
        ("integration", "batch"),
    ),
    Action(
        "archive",
        "Moves a closed {thing} to the archive and takes it out of the daily lists.",
        (
            "It can still be found for as long as the retention rules say.",
            "What is under legal hold is refused.",
            "Attachments are compressed and moved to cheaper storage.",
            "This cannot be undone by the person who asked for it.",
        ),
        ("destructive",),
    ),
    Action(
        "validate",
        "Checks a {thing} against the rules of {system} without changing it.",
        (
            "The result has one entry for each rule that is broken, with the field and what would be right.",
            "Warnings do not make it fail.",
            "The same checks run when it is saved.",
        ),
        ("read-only", "quality"),
        {"valid": {"type": "boolean"}, "findings": several("", group("", (), rule=text(), field=text()))},
    ),
    Action(
        "export",
        "Writes {things} to a file and returns a link to it.",
        (
            "The link works for 24 hours and only for people who are logged in.",
            "Large files are split after every million rows.",
            "Column headings are in the language that was chosen.",
            "Times are in UTC.",
        ),
        ("export", "batch"),
        {"file_url": text(format="uri"), "rows": whole(), "expires_at": text(format="date-time")},
    ),
    Action(
        "escalate",
        "Escalates a {thing} that is late or stuck.",
        (
            "It finds out who has to act, tells that person and the manager, and sets a new deadline.",
            "A second escalation within a week goes to the head of the department.",
            "Holidays of the site are taken into account.",
            "Nothing is sent at night unless the priority is high.",
        ),
        ("notification",),
    ),
)
CLOSING_PARAGRAPHS = (
    "Before the first use, ask the owner of {system} for access: without it the run ends at the first step "
    "and says which role is missing. The roles are the same as in the user interface, so somebody who can do "
    "it by hand can also do it here.",
    "Typical duration: a few seconds for a single {thing}, several minutes when attachments have to be "
    "converted. At the end of the month, when {system} is busy, allow for three times as long.",
    "Errors come back in plain words. Temporary ones are repeated up to five times with growing pauses; "
    "everything else ends the run, and what has been written until then stays, with a note in the history "
    "of the {thing}.",
    "Examples: use it when a colleague asks for a {thing} by name, or as the last step of a longer process "
    "once all data has been collected. Do not use it for tests; the sandbox has workflows of its own.",
)
