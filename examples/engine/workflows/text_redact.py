"""Replaces personal data in a text by placeholders."""

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject
from examples.engine.workflows.definition import ExecutionType, Workflow
from examples.engine.workflows.personal_data import DETECTORS
from examples.engine.workflows.schema import array, integer, record, text

# Keeps an answer that someone waits for within a second.
MAX_TEXT_LENGTH = 1_000_000


def redact_text(given: JsonObject, progress: Progress) -> JsonObject:
    content: str = given["text"]
    wanted = given.get("kinds", list(DETECTORS))
    counts: dict[str, int] = {}
    for kind, detector in DETECTORS.items():
        if kind in wanted:
            content, counts[kind] = detector.redact(content, f"[{kind}]")
    return {"text": content, "counts": counts, "total": sum(counts.values())}


WORKFLOW = Workflow(
    id="1006",
    name="text_redact",
    description=(
        "Replaces personal data in a text by placeholders such as [email]: e-mail addresses, phone numbers, "
        "bank account numbers (IBAN, only with valid check digits) and payment card numbers (only if they "
        "pass the Luhn check). Use it before a text is shared, logged or given to another service. It goes "
        "by form, so it does not find names or addresses, and a person should still read what matters. "
        "Returns the redacted text and how much was replaced of each kind."
    ),
    category="Text",
    execution_type=ExecutionType.SYNC,
    tags=("text", "privacy", "redaction"),
    input_schema=record(
        "The text and what to look for.",
        {
            "text": text("The text to redact.", maxLength=MAX_TEXT_LENGTH),
            "kinds": array(
                "What to replace; everything if left out.",
                text("A kind of personal data.", enum=list(DETECTORS)),
                minItems=1,
                uniqueItems=True,
            ),
        },
        optional=["kinds"],
    ),
    output_schema=record(
        "The redacted text.",
        {
            "text": text("The text with placeholders."),
            "counts": record(
                "How much was replaced of each kind looked for.",
                {kind: integer(f"How many times [{kind}] was put in.") for kind in DETECTORS},
                optional=DETECTORS,
            ),
            "total": integer("How many replacements were made."),
        },
    ),
    example={"text": "Write to ada@example.org or pay DE89 3704 0044 0532 0130 00."},
    execute=redact_text,
)
