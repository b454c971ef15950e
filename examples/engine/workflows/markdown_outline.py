"""Outlines a Markdown document."""

from dataclasses import asdict

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject
from examples.engine.workflows.definition import ExecutionType, Workflow
from examples.engine.workflows.markdown_sections import Section, read_sections
from examples.engine.workflows.schema import array, integer, nullable, record, text


def outline_document(given: JsonObject, progress: Progress) -> JsonObject:
    preamble, *sections = read_sections(given["markdown"], progress)
    links = [asdict(link) for section in [preamble, *sections] for link in section.links]
    return {
        "title": sections[0].title if sections else None,
        "words": preamble.words + sum(section.words for section in sections),
        "preamble_words": preamble.words,
        "headings": build_tree(sections),
        "links": links,
    }


def build_tree(sections: list[Section]) -> list[JsonObject]:
    """Headings nested by level; a level that is skipped nests no deeper."""
    roots: list[JsonObject] = []
    ancestors: list[JsonObject] = []
    for section in sections:
        node = describe(section)
        while ancestors and ancestors[-1]["level"] >= section.level:
            ancestors.pop()
        siblings = ancestors[-1]["children"] if ancestors else roots
        siblings.append(node)
        ancestors.append(node)
    return roots


def describe(section: Section) -> JsonObject:
    return {
        "level": section.level,
        "title": section.title,
        "line": section.line,
        "words": section.words,
        "children": [],
    }


HEADING_NODE = record(
    "A heading and its section.",
    {
        "level": integer("1 for the topmost to 6."),
        "title": text("The heading without markup of links and code."),
        "line": integer("The line it is on, counted from 1."),
        "words": integer("How many words of prose follow up to the next heading."),
        "children": array("The headings below it.", {"$ref": "#/$defs/heading"}),
    },
)

WORKFLOW = Workflow(
    id="1008",
    name="markdown_outline",
    description=(
        "Outlines a Markdown document: the tree of its headings, how many words each section has, and every "
        "link. Use it to build a table of contents, find sections that are too long or collect links for "
        "checking. Understands # headings and underlined ones, inline links, images, link definitions and "
        "addresses in angle brackets; fenced code is left out. Returns the headings as a tree, the links "
        "with their line and the number of words."
    ),
    category="Text",
    execution_type=ExecutionType.ASYNC,
    tags=("markdown", "documentation", "structure"),
    input_schema=record("The document.", {"markdown": text("The Markdown source of the document.")}),
    output_schema=record(
        "The outline.",
        {
            "title": nullable(text("The first heading; null if there is none.")),
            "words": integer("How many words of prose the document has, headings not counted."),
            "preamble_words": integer("How many of them precede the first heading."),
            "headings": array("The topmost headings.", {"$ref": "#/$defs/heading"}),
            "links": array(
                "Every link and image, in the order of the document.",
                record(
                    "A link.",
                    {
                        "text": text("What a reader sees, or an image's alternative text."),
                        "url": text("Where it leads."),
                        "line": integer("The line it is on, counted from 1."),
                    },
                ),
            ),
        },
        **{"$defs": {"heading": HEADING_NODE}},
    ),
    example={
        "markdown": "# Guide\n\nHello there.\n\n## Install\n\nSee [the docs](https://example.org/docs).\n"
    },
    execute=outline_document,
)
