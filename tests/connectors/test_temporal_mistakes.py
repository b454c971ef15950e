"""Files that cannot be used are refused as a whole, with the line and key of every mistake."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectors.formats.yaml import MAX_BYTES, UnusableText
from connectors.temporal.config import read_definitions
from tests.thoroughness import examples

EXAMPLE = (Path(__file__).parent / "temporal_files" / "source_document.yaml").read_text()
DOC_ID = '        - doc_id: "The document ID to ingest."'
AT_FIELD = "workflows.IngestWorkflow.input.fields[0]"
QUEUE = 'taskQueue: "chat-queue"'
ORDER = """workflows:
  Order:
    purpose: Orders.
    taskQueue: orders
    workflowId: 'i-{{o}}'
    input: {{fields: [{{o: {}}}]}}
"""
SECRET = "hunter2-hunter2"


def refusals(text: str | bytes) -> list[str]:
    with pytest.raises(UnusableText) as refused:
        read_definitions(text if isinstance(text, bytes) else text.encode())
    return str(refused.value).splitlines()


def changed(old: str, new: str) -> str:
    """The example with one mistake."""
    assert old in EXAMPLE
    return EXAMPLE.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            QUEUE, 'taskQeue: "chat-queue"',
            "line 73, workflows.ChatWorkflow.taskQeue: unknown key; did you mean taskQueue?",
        ),
        (
            QUEUE, 'task_queue: "chat-queue"',
            "line 73, workflows.ChatWorkflow.task_queue: unknown key; did you mean taskQueue?",
        ),
        (
            '    taskQueue: "chat-queue"\n', "",
            "line 63, workflows.ChatWorkflow.taskQueue: required, but missing.",
        ),
        (
            QUEUE, QUEUE + "\n    asks: {query: open}",
            "line 74, workflows.ChatWorkflow.asks: must have update or signal, which takes the answer.",
        ),
        ("workflows:", "workflow:", "line 39, workflow: unknown key; did you mean workflows?"),
        (
            'timeout: "5s"', "timeout: 5",
            "line 8, temporal.timeout: must be a duration such as 5s, 100ms or 1h30m.",
        ),
        (
            'ttl: "24h"', 'ttl: "1d"',
            "line 35, cache.ttl: must be a duration such as 5s, 100ms or 1h30m; the longest unit is "
            "h: 24h.",
        ),
        (
            '"local"        #', '"lokal"  #',
            "line 5, temporal.environment: must be 'local' or 'remote'; did you mean local?",
        ),
        (
            "maximumAttempts: 5", 'maximumAttempts: "5"',
            "line 12, temporal.retryOptions.maximumAttempts: must be an integer.",
        ),
        (
            "maximumAttempts: 5", "maximumAttempts: 0",
            "line 12, temporal.retryOptions.maximumAttempts: must be at least 1.",
        ),
        ("enabled: true", "enabled: yes", "line 33, cache.enabled: must be true or false."),
        ('ttl: "24h"', "#", "line 32, cache: must have a ttl, such as 24h, if it is enabled."),
        (
            "        - doc_id:", "\t- doc_id:",
            "line 45: a tab; YAML wants spaces there.",
        ),
        (
            DOC_ID, "        - doc_id",
            f'line 45, {AT_FIELD}: must be one field, such as - doc_id: "What it is.".',
        ),
        (
            '        - action: "', '          action: "',
            "line 56, workflows.UpdateXHRWorkflow.input.fields[0]: must be one field; put '-' before each "
            "field.",
        ),
        (
            '        - action: "', '        - session_id: "',
            "line 57, workflows.UpdateXHRWorkflow.input.fields[1].session_id: the field occurs twice.",
        ),
        (
            DOC_ID, "        - doc_id: 5",
            f"line 45, {AT_FIELD}.doc_id: must be its description in quotes, or a mapping such "
            f"as {{type: number}}.",
        ),
        (
            DOC_ID, "        - doc_id: {type: int}",
            f"line 45, {AT_FIELD}.doc_id.type: must be 'string', 'number', 'integer', 'boolean', 'array', "
            "'object' or 'any'; did you mean integer?",
        ),
        (
            DOC_ID, "        - doc_id: {type: integer, default: x}",
            f"line 45, {AT_FIELD}.doc_id.default: is not valid for the field.",
        ),
        (
            DOC_ID, "        - doc_id: {minimum: 1}",
            f"line 45, {AT_FIELD}.doc_id.minimum: cannot be used with the type string.",
        ),
        (
            DOC_ID, "        - doc_id: {pattern: '(?=a)'}",
            f"line 45, {AT_FIELD}.doc_id.pattern: is not a valid regular expression; look-arounds are not "
            "supported.",
        ),
        (
            QUEUE, 'taskQueue: "chat-queue"\n    workflowId: "chat-{promptid}"',
            "line 74, workflows.ChatWorkflow.workflowId: {promptid} is unknown; did you mean {prompt_id}?",
        ),
        (
            DOC_ID, "        - doc_id: {minimum: 5, maximum: 3, type: number}",
            f"line 45, {AT_FIELD}.doc_id.maximum: allows no value together with minimum.",
        ),
        (
            DOC_ID, "        - doc_id: {minimum: 5, exclusiveMaximum: 5, type: integer}",
            f"line 45, {AT_FIELD}.doc_id.exclusiveMaximum: allows no value together with minimum.",
        ),
        (
            DOC_ID, "        - doc_id: {minLength: 2, maxLength: 1}",
            f"line 45, {AT_FIELD}.doc_id.maxLength: allows no value together with minLength.",
        ),
        (
            QUEUE, 'taskQueue: "chat-queue"\n    cache: maybe',
            "line 74, workflows.ChatWorkflow.cache: must be false or a mapping such as {ttl: 24h}.",
        ),
        (
            QUEUE, 'taskQueue: "chat-queue"\n    workflowId: "chat-{"',
            "line 74, workflows.ChatWorkflow.workflowId: has an unmatched brace.",
        ),
        (
            QUEUE, 'taskQueue: "chat-queue"\n    timeout: 721h',
            "line 74, workflows.ChatWorkflow.timeout: must be between 1s and 720h.",
        ),
        (
            QUEUE, 'taskQueue: "chat-queue"\n    version: 1.10',
            "line 74, workflows.ChatWorkflow.version: must be a string; put it in quotes.",
        ),
        (
            QUEUE, 'taskQueue: "chat-queue"\n    idReusePolicy: Reject',
            "line 74, workflows.ChatWorkflow.idReusePolicy: must be 'AllowDuplicate', "
            "'AllowDuplicateFailedOnly' or 'RejectDuplicate'.",
        ),
        (
            "  ChatWorkflow:", "  IngestWorkflow:",
            "line 63, workflows.IngestWorkflow: the key occurs twice; first on line 40.",
        ),
        ('purpose: "Processes chat', 'purpose: !!str "Processes chat',
         "line 64: tags such as '!' are not supported; put the text in quotes."),
        ('"localhost:7233"', '"https://localhost"',
         "line 3, temporal.hostPort: enter host:port, such as temporal.example.com:7233, without https:// "
         "and without a path."),
        ("  # environment", "  tls: {insecureSkipVerify: true}\n  # environment",
         "line 16, temporal.tls.insecureSkipVerify: cannot be turned on: certificates are always verified. "
         "For a self-signed certificate, enter its authority as the CA file, and its name as the server "
         "name if it differs from the host."),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_key(old, new, told):
    """E5: and what is probably meant."""
    assert told in refusals(changed(old, new))


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("{required: false}", "is optional; the field must be required or have a default"),
        ("{default: ''}", "is optional; the field must be required or have a default"),
        ("{type: boolean}", "must be a field of the type string, number or integer, and not nullable"),
        ("{nullable: true}", "must be a field of the type string, number or integer, and not nullable"),
        ("{type: array}", "must be a field of the type string, number or integer, and not nullable"),
    ],
)
def test_a_workflow_id_is_made_only_of_what_every_call_has(field, told):
    """E5: what every call without it, or with a strange value, would fail by is said at once."""
    (refusal,) = refusals(ORDER.format(field))
    assert refusal == f"line 5, workflows.Order.workflowId: {{o}} {told}."


@pytest.mark.parametrize(
    ("field", "defaults"),
    [("The order.", None), ("{type: integer}", None), ("{default: 7, type: integer}", {"o": 7})],
)
def test_a_workflow_id_may_be_made_of_a_field_with_a_value_in_every_call(field, defaults):
    """E5."""
    (order,) = read_definitions(ORDER.format(field).encode()).workflows
    assert order.metadata["temporal"].get("workflow_id_defaults") == defaults


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: the document is empty."),
        ("# only a comment", "line 1: the document is empty."),
        ("workflows:\n", "line 1, workflows: must be a mapping of keys and values."),
        ("[]", "line 1: must be a mapping of keys and values."),
        ("a: 1\n---\nb: 2", "line 2: only one document is allowed."),
        ("a: {b: c,\n  d: e\n\n", "line 1: a '{' here is never closed."),
        ("a:\n  - {b: c}\n  - {b: [c, d]\n# e\n", "line 3: a '{' here is never closed."),
        ("a:\n  - [b,\n", "line 2: a '[' here is never closed."),
        ("a: {b:\n", "line 1: a '{' here is never closed."),
        ("a: [b\nc: d", "line 2: expected ',' or ']'."),
        ('a:\n  "b\nc: d', "line 2: the quote that begins here is never closed."),
        ("a: b: c", "line 1: unexpected ':'; check the indentation, or put the text in quotes."),
        ("a:\n  b: 1\n c: 2", "line 3: the indentation does not match the lines above."),
        ("a: @b", "line 1: this character cannot begin a value; put the text in quotes."),
        ("a: *b", "line 1: '*' refers to an unknown anchor; put the text in quotes."),
        ("a: &a [*a]", "line 1: '*' refers to an unknown anchor; put the text in quotes."),
        ('a: "\\q"', "line 1: unknown escape sequence after '\\'; in single quotes '\\' is literal."),
        ('a: "\\UFFFFFFFF"', "line 1: an invalid character."),
        ("a: b\n\x00", "line 2: a control character or an invalid character."),
        (b"a: b\nc: \xff", "line 2: a byte is not UTF-8; save the text as UTF-8."),
        ("a: .inf", "line 1, a: infinite and undefined numbers are not allowed."),
        ("a: 1e999", "line 1, a: the number is too large; put a text in quotes."),
        ("a: " + "9" * 5000, "line 1, a: the number is too large; put a text in quotes."),
        ("? [a]\n: b", "line 1: a key must be a string."),
        ("a: {<<: {b: c}}", "line 1, a: '<<' is not supported here; write the keys out."),
        ("[" * 10_000, "line 1: nested deeper than 30 levels."),
        ("- " * 100, "line 1: nested deeper than 30 levels."),
        ("a: b\n" + "#" * MAX_BYTES, "line 1: larger than the maximum of 1,048,576 bytes."),
    ],
)  # fmt: skip
def test_what_is_no_usable_yaml_is_refused_by_its_line(text, told):
    """E5."""
    assert told in refusals(text)


def test_aliases_cannot_multiply_a_small_file_into_a_large_one():
    """E5: nine to the ninth values from nine lines."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"{new}: &{new} [{','.join(['*' + old] * 9)}]"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    (told,) = refusals("\n".join(lines))
    assert told.endswith("more than 100,000 values, or more than 30 levels.")


def test_every_mistake_is_told_at_once_up_to_a_limit():
    """E5: those that only a second look can find, too."""
    text = changed(QUEUE, 'taskQeue: "chat-queue"')
    text = text.replace("maximumAttempts: 5", "maximumAttempts: 0")
    text = text.replace('taskQueue: "json-queue"', 'taskQueue: "json-queue"\n    workflowId: "{nothing}"')
    assert [told.partition(":")[0] for told in refusals(text)] == [
        "line 12, temporal.retryOptions.maximumAttempts",
        "line 73, workflows.ChatWorkflow.taskQeue",
        "line 102, workflows.ProxieJSONWorkflow.workflowId",
    ]
    many = refusals("workflows:\n" + "".join(f"  W{number}: {{}}\n" for number in range(50)))
    assert (len(many), many[-1]) == (21, "And 30 more.")


@pytest.mark.parametrize(
    "auth",
    [
        f"{{clientSecret: [{SECRET}]}}",
        f"{{clientID: a, {SECRET}: b}}",
        f"{{clientID: a, {SECRET}: b, {SECRET}: c}}",
        f"{{clientID: a, {SECRET}}}",
        f"[{SECRET}]",
        SECRET,
        f"{{clientSecret: {SECRET}: x}}",
        f"{{clientSecret: *{SECRET}}}",
        f"{{clientSecret: !{SECRET}!x y}}",
        f"{{clientSecret: !<{SECRET}> y}}",
        f"{{clientSecret: \"{SECRET}\\q\"}}",
        f"{{clientSecret: '{SECRET}",
        f"{{clientSecret: {SECRET}, oauth2URL: 'https://{SECRET}@x'}}",
        f"{{apiKey: {SECRET}, oauth2URL: https://x, clientID: c, clientSecret: {SECRET}}}",
        f"{{clientSecret: {{{SECRET}: x}}}}",
        f"&{SECRET}% x",
    ],
)  # fmt: skip
def test_no_secret_stands_in_a_refusal(auth):
    """E5, E6: wherever in its block it may have got."""
    told = refusals(f"temporal:\n  hostPort: localhost\n  auth: {auth}\nworkflows: {{}}\n")
    assert told and SECRET not in "".join(told)


@settings(max_examples=examples(300))
@given(st.one_of(st.text(), st.binary(), st.text(alphabet="ab:-[]{}&*!|>'\"%@`,?#\t\n 01.~<=")))
@example('"\\UFFFFFFFF"')
@example("%YAML 99999999999999999999.1\n--- a")
@example("\ud800")
@example("a: !<%ff> b")
def test_no_text_does_anything_but_be_refused(text):
    """E5: whatever it is, the reason has a line."""
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    with pytest.raises(UnusableText) as refused:
        read_definitions(content)
    assert all(problem.line >= 1 and problem.message for problem in refused.value.problems)


@settings(max_examples=examples(150))
@given(st.data())
def test_no_mistake_in_the_example_does_anything_but_be_refused(data):
    """E5: lines lost, doubled, moved or indented, and characters put in."""
    lines = EXAMPLE.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(lines) - 1))
        line = lines.pop(position)
        lines[position:position] = data.draw(
            st.sampled_from([[], [line, line], [f"  {line}"], [line.lstrip()], [line.replace('"', "")]])
        )
    text = "\n".join(lines)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.text(max_size=2)) + text[at:]
    with contextlib.suppress(UnusableText):
        declared = read_definitions(text.encode("utf-8", "surrogatepass"))
        assert all(workflow.description for workflow in declared.workflows)
