"""Schemas that are valid, and that some client or model provider trips over."""

from typing import Any

Schema = dict[str, Any]
TREE: Schema = {
    "type": "object",
    "properties": {
        "label": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
    },
    "required": ["label"],
}

NASTY_SCHEMAS: dict[str, Schema] = {
    "nothing": {},
    "only a type": {"type": "object"},
    "no arguments": {"type": "object", "properties": {}, "additionalProperties": False},
    "true": {"type": "object", "properties": {"any": True, "list": {"type": "array", "items": True}}},
    "false": {"type": "object", "properties": {"never": False, "a": {"type": "string"}}},
    "items false": {
        "properties": {
            "nested": {
                "type": "object",
                "properties": {"pair": {"prefixItems": [{"type": "string"}, True], "items": False}},
            }
        }
    },
    "booleans everywhere": {
        "properties": {
            "a": {
                "not": False,
                "contains": True,
                "propertyNames": True,
                "if": True,
                "then": False,
                "else": True,
            },
            "b": {"anyOf": [True, {"type": "string"}], "allOf": [True], "oneOf": [{"type": "null"}, False]},
            "default": True,
            "items": {"enum": [True, {"items": True}], "default": {"properties": {"x": True}}},
        },
        "$defs": {"unused": True},
        "patternProperties": {"^x-": True},
        "dependentSchemas": {"a": True},
        "additionalProperties": False,
    },
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "string"}, False], "additionalItems": False}
        },
    },
    "root oneOf": {
        "oneOf": [
            {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        ]
    },
    "root anyOf beside properties": {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "why": {"type": "string"}},
        "required": ["why"],
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    },
    "root allOf of references": {
        "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {"type": "integer"}}}],
        "$defs": {"a": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
    },
    "root if": {
        "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"required": ["size"]},
    },
    "discriminated root": {
        "oneOf": [
            {"properties": {"kind": {"const": "a"}, "size": {"type": "integer"}}, "required": ["kind"]},
            {"allOf": [{"properties": {"kind": {"const": "b"}, "never": False}}, {"$ref": "#/$defs/rest"}]},
        ],
        "properties": {"note": {"type": "string"}},
        "$defs": {"rest": {"properties": {"rest": {"type": "string"}}, "required": ["kind", "rest"]}},
    },
    "look-ahead": {
        "properties": {
            "a": {"type": "string", "pattern": r"^(?=.*[a-z])\w+$", "description": "A word."},
            "b": {"type": "array", "items": {"type": "string", "pattern": "^(?!x)"}},
            "pattern": {"type": "string", "pattern": "^[a-z]+$"},
        }
    },
    "root reference": {
        "$ref": "#/$defs/all",
        "$defs": {"all": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
    },
    "odd names": {
        "type": "object",
        "properties": {
            "user-id": {"type": "string"},
            "$ref": {"type": "string"},
            "$filter": {"type": "string"},
            "from": {"type": "string"},
            "größe": {"type": "integer"},
            "page[size]": {"type": "integer"},
            "page.size": {"type": "integer"},
            "a b": {"type": "object", "properties": {"c d": {"type": "string"}, "": {}}, "required": ["c d"]},
            "_id": {"type": "string"},
            "1st": {"type": "string"},
            "n" * 80: {"type": "string"},
            "n" * 79 + "m": {"type": "string"},
        },
        "required": ["user-id", "$ref"],
    },
    "names that collide": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("a-b", "a.b", "a_b", "a b", "a-b_")},
    },
    "tree": {"type": "object", "properties": {"root": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": TREE}},
    "self": {
        "type": "object",
        "properties": {"and": {"type": "array", "items": {"$ref": "#"}}, "x": {"type": "string"}},
    },
    "mutual recursion": {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/a"}},
        "definitions": {
            "a": {"type": "object", "properties": {"b": {"$ref": "#/definitions/b"}}},
            "b": {"type": "object", "properties": {"a": {"$ref": "#/definitions/a"}}},
        },
    },
    "reference that doubles": {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/d9"}},
        "$defs": {"d0": {"type": "string"}}
        | {
            f"d{number}": {
                "type": "object",
                "properties": {side: {"$ref": f"#/$defs/d{number - 1}"} for side in ("left", "right")},
            }
            for number in range(1, 10)
        },
    },
    "free objects": {
        "type": "object",
        "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "anything": {"type": "object"},
            "known": {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "additionalProperties": True,
            },
            "rows": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
            "untyped": {},
            "list": {"type": "array"},
        },
        "additionalProperties": {"type": "integer"},
    },
    "types in lists": {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"type": ["string", "integer", "null"]},
            "c": {"type": ["object", "null"], "properties": {"x-y": {"type": "string"}}},
            "d": {"type": "null"},
        },
    },
    "values": {
        "type": "object",
        "properties": {
            "text": {"enum": ["a", "b", "b", ""]},
            "maybe": {"type": "string", "enum": ["a", None]},
            "number": {"enum": [1, 2]},
            "mixed": {"enum": ["a", 1, None]},
            "objects": {"enum": [{"a": 1}, [2]]},
            "const": {"const": "only"},
            "const number": {"const": 3},
            "many": {"enum": [f"value number {number}" for number in range(400)]},
        },
        "required": ["text", "const"],
    },
    "constraints": {
        "type": "object",
        "properties": {
            "mail": {
                "type": "string",
                "format": "email",
                "minLength": 3,
                "maxLength": 80,
                "pattern": "^(?=.)\\S+$",
            },
            "share": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "multipleOf": 0.1,
                "default": 0.5,
            },
            "tags": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": 5,
                "uniqueItems": True,
            },
            "when": {
                "type": "string",
                "format": "date-time",
                "examples": ["2026-01-01T00:00:00Z"],
                "title": "When",
            },
        },
    },
    "discriminated": {
        "type": "object",
        "properties": {
            "shape": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"kind-of": {"const": "circle"}, "radius": {"type": "number"}},
                        "required": ["kind-of", "radius"],
                    },
                    {"$ref": "#/$defs/square"},
                    {"type": "string"},
                ],
                "discriminator": {"propertyName": "kind-of"},
            }
        },
        "required": ["shape"],
        "$defs": {
            "square": {
                "type": "object",
                "properties": {"kind-of": {"const": "square"}, "side length": {"type": "number"}},
                "required": ["kind-of", "side length"],
                "additionalProperties": False,
            }
        },
    },
    "deep": {
        "type": "object",
        "properties": {
            "l1": {
                "properties": {
                    "l2": {
                        "properties": {
                            "l3": {
                                "properties": {
                                    "l4": {
                                        "properties": {
                                            "l5": {
                                                "properties": {
                                                    "l6": {
                                                        "properties": {
                                                            "l7": {"properties": {"l8": {"type": "string"}}}
                                                        }
                                                    }
                                                }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        },
    },
}
"""By what is nasty about it."""
