"""What declares an HTTP tool, as a form."""

from typing import Any, get_args

from django import forms
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalogue.admin.value_fields import MONOSPACE, CommasField, JsonValueField, MultilineField
from catalogue.http_tools.refusals import ToolFault, ToolsRefused
from catalogue.http_tools.submissions import read_tool
from catalogue.models import Source
from connectors.http_tools.specs import Method
from connectors.http_tools.tool import BodyFormat, ToolConfig

NO_ARGUMENTS = {"type": "object", "properties": {}}
PLACES = {
    "name": "/name",
    "title": "/title",
    "description": "/description",
    "tags": "/tags",
    "method": "/api/method",
    "endpoint": "/api/endpoint",
    "body_format": "/api/body_format",
    "idempotency_header": "/api/idempotency_header",
    "anonymous": "/api/anonymous",
    "input_schema": "/input_schema",
    "input_mappings": "/field_mappings/input",
    "constants": "/field_mappings/constants",
    "output_schema": "/output_schema",
    "output_is_promised": "/output_is_promised",
    "output_mappings": "/field_mappings/output",
    "timeout_seconds": "/timeout_seconds",
    "cache_seconds": "/cache_seconds",
}
"""By field of the form: what it fills in of a ToolConfig."""


def _text(label: str, help_text: str, *, required: bool = False, length: int = 255) -> forms.CharField:
    widget = UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"})
    return forms.CharField(
        label=label, help_text=help_text, required=required, max_length=length, widget=widget
    )


def _json(label: str, help_text: str, *, rows: int, example: str = "") -> JsonValueField:
    widget = UnfoldAdminTextareaWidget(attrs={**MONOSPACE, "rows": rows, "placeholder": example})
    return JsonValueField(label=label, help_text=help_text, required=False, widget=widget)


def _seconds(label: str, help_text: str) -> forms.IntegerField:
    return forms.IntegerField(
        label=label,
        help_text=help_text,
        required=False,
        min_value=1,
        max_value=2_592_000,
        widget=UnfoldAdminIntegerFieldWidget,
    )


def _switch(label: str, help_text: str, *, initial: bool = False) -> forms.BooleanField:
    return forms.BooleanField(
        label=label,
        help_text=help_text,
        required=False,
        initial=initial,
        widget=UnfoldBooleanSwitchWidget,
    )


def _choice(label: str, help_text: str, choices: Any) -> forms.ChoiceField:
    """The first one unless another is chosen."""
    first = choices[0][0] if choices else None
    return forms.ChoiceField(
        label=label, help_text=help_text, choices=choices, initial=first, widget=UnfoldAdminSelectWidget
    )


class ToolForm(forms.Form):
    """Its `tool` is the ToolConfig; what is wrong with that stands at the fields."""

    source = _choice("API", "Its base URL and credentials are those of the source.", [])
    name = _text("Name", "What agents call it, as far as no other tool has that name.", required=True)
    title = _text("Title", "For people. Empty: the name.")
    description = MultilineField(
        label="Description",
        max_length=20_000,
        help_text="What it does, when to use it and what comes back: agents choose by this.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
    )
    tags = CommasField(label="Tags", required=False, help_text="Separated by commas.")
    method = _choice("Method", "", [(method, method) for method in get_args(Method)])
    endpoint = _text(
        "Endpoint",
        "The whole address, arguments of the path in braces: https://api.example.com/v1/orders/{order_id}",
        required=True,
        length=2_000,
    )
    body_format = _choice(
        "Body", "How it is written, where there is one.", [(name, name) for name in get_args(BodyFormat)]
    )
    idempotency_header = _text(
        "Idempotency header",
        "Where the API promises that requests with the same value in it count once: such as Idempotency-Key.",
        length=100,
    )
    anonymous = _switch(
        "Without credentials", "For an API that refuses the source's credentials with this call."
    )
    input_schema = _json(
        "Input schema",
        "JSON Schema of the arguments, an object. Others than these are refused.",
        rows=12,
        example='{\n  "type": "object",\n  "properties": {\n    "order_id": {"type": "string"}\n  },\n'
        '  "required": ["order_id"]\n}',
    )
    input_mappings = _json(
        "Where arguments go",
        "Of those that do not go where the path names them, else into the query (GET, HEAD, DELETE) or the "
        'body: {"customer": {"in": "header", "name": "X-Customer"}}. "in" is path, query, header or body; in '
        "a body the name is a JSON Pointer.",
        rows=6,
        example='{\n  "amount": {"in": "body", "name": "/payment/amount"}\n}',
    )
    constants = _json(
        "Always sent",
        'A list: [{"in": "query", "name": "format", "value": "full"}]. Credentials belong to the source.',
        rows=6,
        example='[\n  {"in": "header", "name": "Accept-Language", "value": "en"}\n]',
    )
    output_mappings = _json(
        "What comes out",
        'Fields of the result, by JSON Pointers into the answer: {"total": "/amount/total"}. '
        "Empty: the answer as it is.",
        rows=6,
        example='{\n  "state": "/state",\n  "total": "/amount/total"\n}',
    )
    output_schema = _json("Output schema", "JSON Schema of the result, where the API keeps to one.", rows=6)
    output_is_promised = _switch(
        "Promise it",
        "Clients get the output schema, and a result that breaks it is an error. Off: it only describes.",
        initial=True,
    )
    timeout_seconds = _seconds("Timeout (s)", "Empty: the product's default.")
    cache_seconds = _seconds(
        "Cache results for (s)", "For what changes nothing and answers all callers alike. Empty: not at all."
    )
    expose = _switch(
        "Agents see it at once",
        "Filters permitting. Off: once somebody enables it, as with workflows that are discovered.",
    )

    def __init__(self, *args: Any, tool: ToolConfig | None = None, **kwargs: Any) -> None:
        """For a new tool, or for one that there is."""
        super().__init__(*args, **kwargs)
        self.tool: ToolConfig | None = None
        if tool is None:
            self.fields["source"].choices = [  # type: ignore[attr-defined]
                (source.name, f"{source.name}: {source.config.get('base_url')}") for source in http_sources()
            ]
            self.initial.setdefault("input_schema", NO_ARGUMENTS)
        else:
            del self.fields["source"], self.fields["expose"]
            # Its name is what it is known by; agents may be told another one on the workflow's page.
            self.fields["name"].disabled = True
            self.initial = {**self.initial, **_values_of(tool)}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                self.tool = read_tool(_written(cleaned))
            except ToolsRefused as refused:
                self.show(refused)
        return cleaned

    def show(self, refused: ToolsRefused) -> None:
        """Tell each fault at the field that it is about."""
        for fault in refused.problems:
            field, rest = self._field_of(fault)
            self.add_error(field, f"{rest}: {fault.message}" if rest else fault.message)

    def _field_of(self, fault: ToolFault) -> tuple[str | None, str]:
        """The field, and where in its value."""
        if fault.position is None:
            return None, ""
        for field, place in PLACES.items():
            if field in self.fields and (fault.path + "/").startswith(place + "/"):
                return field, fault.path.removeprefix(place)
        return None, fault.path


def http_sources() -> list[Source]:
    return list(Source.objects.filter(kind="http").order_by("name"))


def _written(cleaned: dict[str, Any]) -> dict[str, Any]:
    """As a ToolConfig is written in JSON; what is left empty gets its default there."""
    written: dict[str, Any] = {}
    for field, place in PLACES.items():
        if (value := cleaned.get(field)) in (None, ""):
            continue
        *parents, last = place[1:].split("/")
        inner = written
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return written


def _values_of(tool: ToolConfig) -> dict[str, Any]:
    """By field of the form; what is as it would be by itself is left out."""
    written = tool.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    values = {field: _at(place, written) for field, place in PLACES.items()}
    return {field: value for field, value in values.items() if value is not None}


def _at(place: str, written: Any) -> Any:
    for step in place[1:].split("/"):
        written = (written or {}).get(step)
    return written
