"""What plausible workflows are about: departments, what they do with their things, and parameters."""

from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]


def text(description: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def whole(description: str = "", **more: Any) -> Schema:
    return {"type": "integer", **({"description": description} if description else {}), **more}


def choice(description: str, *values: str, **more: Any) -> Schema:
    return {"type": "string", "enum": list(values), "description": description, **more}


def group(description: str, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        **({"required": list(required)} if required else {}),
    }


def several(description: str, item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, "description": description, **more}


@dataclass(frozen=True)
class Department:
    name: str
    system: str
    tags: tuple[str, ...]
    things: tuple[str, ...]
    parameters: dict[str, Schema]


MONEY = group(
    "Amount with its currency.",
    ("value", "currency"),
    value={"type": "number", "description": "In units of the currency, not in cents."},
    currency=text("ISO 4217 code.", pattern="^[A-Z]{3}$"),
)
ADDRESS = group(
    "Postal address. The country decides which of the other parts are checked.",
    ("street", "city", "country"),
    street=text("Street and number."),
    city=text(),
    postal_code=text(maxLength=12),
    country=text("ISO 3166-1 alpha-2 code, such as DE.", pattern="^[A-Z]{2}$"),
)
PERIOD = group(
    "Both days are included.",
    ("start", "end"),
    start=text("First day.", format="date"),
    end=text("Last day.", format="date"),
)
COMMON: dict[str, Schema] = {
    "dry_run": {
        "type": "boolean",
        "default": False,
        "description": "Check everything and report what would happen, without changing anything.",
    },
    "requested_by": text("E-mail address of the person on whose behalf this runs.", format="email"),
    "notify": several(
        "E-mail addresses that get the outcome; nobody is told when it is empty.",
        text(format="email"),
        maxItems=20,
        default=[],
    ),
    "comment": text(maxLength=500),
    "priority": choice("Decides which queue it goes to.", "low", "normal", "high", default="normal"),
    "limit": whole("How many at most.", minimum=1, maximum=1000, default=100),
    "language": choice("Of the texts that people receive.", "en", "de", "fr", "es", "pl", default="en"),
    "reference": text("Your own reference, repeated in everything that is sent out."),
}
DEPARTMENTS = (
    Department(
        "finance",
        "the general ledger",
        ("finance", "accounting", "erp"),
        ("invoice", "credit_note", "journal_entry", "payment_run", "cost_center", "expense_report"),
        {
            "company_code": text("The legal entity, by its four-character code.", minLength=4, maxLength=4),
            "fiscal_year": whole(minimum=2000, maximum=2100),
            "amount": MONEY,
            "supplier_id": text("The supplier's number in the ledger, with its leading zeros."),
            "due_date": text("If it is left out, the supplier's payment terms decide.", format="date"),
            "tax_code": choice(
                "How value-added tax is posted. Reverse charge needs the supplier's VAT number.",
                "standard",
                "reduced",
                "exempt",
                "reverse_charge",
                default="standard",
            ),
            "lines": several(
                "One for each position; their amounts have to add up to the total.",
                group(
                    "A position.",
                    ("account", "amount"),
                    account=text("G/L account."),
                    amount={"type": "number"},
                    cost_center=text(),
                    text=text("Shown on the statement.", maxLength=140),
                ),
                minItems=1,
            ),
            "period": PERIOD,
        },
    ),
    Department(
        "sales",
        "the CRM",
        ("sales", "crm", "revenue"),
        ("lead", "opportunity", "quote", "price_list", "customer_account", "renewal"),
        {
            "account_id": text("The customer's record in the CRM (18 characters)."),
            "owner": text("Who is responsible; the current owner when left out.", format="email"),
            "stage": choice("", "new", "qualified", "proposal", "negotiation", "won", "lost"),
            "expected_revenue": MONEY,
            "discount_percent": {
                "type": "number",
                "minimum": 0,
                "maximum": 60,
                "description": "More than 20 needs the approval of a regional manager.",
            },
            "products": several(
                "What is offered.",
                group(
                    "One product.",
                    ("sku", "quantity"),
                    sku=text("Stock keeping unit."),
                    quantity=whole(minimum=1),
                    unit_price={
                        "type": ["number", "null"],
                        "description": "Null: as in the price list.",
                    },
                ),
            ),
            "region": choice("Sales region.", "emea", "amer", "apac"),
            "close_date": text(format="date"),
        },
    ),
    Department(
        "support",
        "the ticket system",
        ("support", "customers", "service-desk"),
        ("ticket", "complaint", "refund_request", "service_contract", "satisfaction_survey"),
        {
            "ticket_id": text("As shown in its heading, for example SUP-20418.", pattern="^[A-Z]+-[0-9]+$"),
            "severity": choice(
                "1 is an outage for which somebody is woken up; 4 is a question.", "1", "2", "3", "4"
            ),
            "channel": choice("Where the customer wrote.", "email", "chat", "phone", "portal"),
            "customer_email": text(format="email"),
            "summary": text("One sentence, without the customer's name.", maxLength=200),
            "labels": several("Added to those that are there.", text(), uniqueItems=True),
            "include_attachments": {"type": "boolean", "default": True},
            "resolution": group(
                "How it was solved.",
                ("code",),
                code=choice("", "fixed", "workaround", "duplicate", "not_reproducible"),
                explanation=text("Sent to the customer as it is."),
                knowledge_article=text(format="uri"),
            ),
        },
    ),
    Department(
        "people",
        "the HR system",
        ("hr", "people", "confidential"),
        ("employee", "leave_request", "job_posting", "applicant", "onboarding_plan", "payroll_change"),
        {
            "employee_id": text("Personnel number.", pattern="^[0-9]{6}$"),
            "start_date": text("First day on which it takes effect.", format="date"),
            "department": text("Name of the organisational unit as in the organisation chart."),
            "contract_type": choice("", "permanent", "fixed_term", "intern", "contractor"),
            "manager_id": text("Personnel number of the manager who has to approve."),
            "working_hours": {"type": "number", "minimum": 0, "maximum": 48, "description": "Per week."},
            "home_address": ADDRESS,
            "documents": several(
                "Signed documents from the archive; each is checked for its signature first.",
                group("", ("id", "kind"), id=text(), kind=choice("", "contract", "certificate", "id_card")),
            ),
        },
    ),
    Department(
        "logistics",
        "the warehouse system",
        ("logistics", "warehouse", "supply-chain"),
        ("shipment", "purchase_order", "stock_transfer", "return_delivery", "customs_declaration", "carrier"),
        {
            "order_number": text("Purchase or sales order."),
            "warehouse": choice("Site code.", "HAM1", "LEJ2", "RTM1", "WAW3"),
            "ship_to": ADDRESS,
            "parcels": several(
                "One for each label to print.",
                group(
                    "A parcel.",
                    ("weight_kg",),
                    weight_kg={"type": "number", "exclusiveMinimum": 0},
                    length_cm={"type": "number"},
                    width_cm={"type": "number"},
                    height_cm={"type": "number"},
                ),
                maxItems=50,
            ),
            "incoterm": choice("Delivery terms.", "EXW", "FCA", "DAP", "DDP"),
            "hazardous": {
                "type": "boolean",
                "description": "Dangerous goods by ADR; not all carriers take them.",
            },
            "pickup_window": group(
                "When the carrier may come, in the site's own time.",
                (),
                earliest=text(format="date-time"),
                latest=text(format="date-time"),
            ),
            "customs_value": MONEY,
        },
    ),
    Department(
        "infrastructure",
        "the cloud platform",
        ("devops", "infrastructure", "cloud"),
        ("deployment", "database_backup", "certificate", "dns_record", "cluster_node", "feature_flag"),
        {
            "environment": choice("", "development", "staging", "production"),
            "service": text("As in the service registry, without the team's prefix."),
            "version": text("Tag or commit; branches are refused in production."),
            "replicas": whole("Null keeps the present number.", minimum=0, maximum=200),
            "change_ticket": text("Required in production.", pattern="^CHG[0-9]{7}$"),
            "timeout_minutes": whole("After this it is rolled back.", minimum=1, maximum=240, default=30),
            "variables": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables that are set in addition.",
            },
            "strategy": {
                "anyOf": [
                    {"type": "string", "enum": ["rolling", "blue_green"]},
                    group("Canary release.", ("percent",), percent=whole(minimum=1, maximum=50)),
                ],
                "description": "How traffic moves to the new version.",
            },
        },
    ),
    Department(
        "security",
        "the identity provider",
        ("security", "identity", "compliance"),
        ("access_review", "user_account", "security_incident", "secret_rotation", "phishing_report"),
        {
            "user": text("Login name or e-mail address."),
            "roles": several("By their technical names.", text(), minItems=1, uniqueItems=True),
            "expires_at": text("Without it the access stays until it is taken away.", format="date-time"),
            "justification": text("Auditors read this. At least one full sentence.", minLength=20),
            "systems": several("Only these; all when it is left out.", text()),
            "risk": choice("", "low", "medium", "high", "critical"),
            "indicators": several(
                "What was observed.",
                group("", ("type", "value"), type=choice("", "ip", "domain", "hash", "url"), value=text()),
            ),
            "legal_hold": {"type": "boolean", "default": False},
        },
    ),
    Department(
        "marketing",
        "the campaign platform",
        ("marketing", "campaigns", "content"),
        ("campaign", "newsletter", "landing_page", "audience_segment", "press_release", "webinar"),
        {
            "campaign_id": text(),
            "audience": text("Name of a saved segment."),
            "send_at": text("In UTC. Left out, it goes out as soon as it is approved.", format="date-time"),
            "subject": text("Up to 70 characters are shown in most mailboxes.", maxLength=150),
            "budget": MONEY,
            "channels": several("", choice("", "email", "social", "search", "print"), minItems=1),
            "tracking": group(
                "Appended to every link.",
                (),
                source=text(),
                medium=text(),
                content=text("Tells variants of one link apart."),
            ),
            "ab_test": {
                "type": "boolean",
                "description": "Send two variants to a tenth of them first.",
            },
        },
    ),
    Department(
        "analytics",
        "the data warehouse",
        ("data", "analytics", "reporting"),
        ("dataset", "revenue_report", "churn_forecast", "data_quality_check", "dashboard", "sql_export"),
        {
            "dataset": text("Schema and table, such as mart.orders."),
            "columns": several("All when it is left out.", text()),
            "period": PERIOD,
            "granularity": choice("", "day", "week", "month", "quarter", default="month"),
            "filters": several(
                "Rows have to meet all of them.",
                group(
                    "",
                    ("column", "operator"),
                    column=text(),
                    operator=choice("", "=", "!=", "<", ">", "in", "is_null"),
                    value={"description": "Of the column's type; a list for `in`."},
                ),
            ),
            "output_format": choice("", "csv", "parquet", "xlsx", default="csv"),
            "row_limit": whole(minimum=1, maximum=5_000_000),
            "refresh_first": {"type": "boolean", "default": False, "description": "Takes up to ten minutes."},
        },
    ),
    Department(
        "legal",
        "the contract archive",
        ("legal", "contracts", "compliance"),
        ("contract", "nda", "data_deletion_request", "trademark", "litigation_hold", "supplier_audit"),
        {
            "contract_id": text("Number in the archive."),
            "counterparty": group(
                "The other side.",
                ("name",),
                name=text("As in the commercial register."),
                register_number=text(),
                address=ADDRESS,
            ),
            "governing_law": choice("", "DE", "UK", "US-NY", "CH"),
            "clauses": several("Names of clauses from the library, in the order of the document.", text()),
            "signatories": several("Who signs for us.", text(format="email"), minItems=1, maxItems=4),
            "effective_date": text(format="date"),
            "term_months": whole("0: until it is terminated.", minimum=0, maximum=240),
            "confidential": {"type": "boolean", "default": True},
        },
    ),
)


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
