"""The documentation page, written from the OpenAPI description: no other server, no script."""

from __future__ import annotations

from html import escape
from typing import Any, Final

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "code{background:#8881;padding:.1em .3em;border-radius:.2em}"
    "table{border-collapse:collapse}td{padding:.1em 1em .1em 0;vertical-align:top}"
    "section{border-top:1px solid #8884;margin-top:1.5em}:root{color-scheme:light dark}"
)


def render(description: dict[str, Any]) -> str:
    """Return an HTML page of all operations: what they do, take and answer."""
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    about = escape(description["info"]["description"])
    operations = "".join(
        _operation(method.upper(), path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{about} The same as a machine reads it:"
        f' <a href="/openapi.json">openapi.json</a>.</p>{operations}</html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    shown = escape(path)
    linked = f'<a href="{shown}">{shown}</a>' if method == "GET" else shown
    about = escape(operation.get("description", ""))
    rows = "".join(_parameter(parameter) for parameter in operation.get("parameters", []))
    answers = "".join(_answer(*item) for item in operation.get("responses", {}).items())
    return (
        f"<section><h3><code>{method}</code> {linked}</h3><p>{about}</p>"
        f"<table>{rows}{answers}</table></section>"
    )


def _parameter(parameter: dict[str, Any]) -> str:
    schema = parameter.get("schema", {})
    default = f", default {schema['default']!r}" if "default" in schema else ""
    needed = ", required" if parameter.get("required") else ""
    facts = escape(f"{schema.get('type', '')}{default}{needed}. {parameter.get('description', '')}")
    return f"<tr><td><code>{escape(parameter['name'])}</code><td>{facts}"


def _answer(status: str, answer: dict[str, Any]) -> str:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    model = str(schema.get("$ref", "")).rpartition("/")[2]
    return f"<tr><td>{escape(status)}<td>{escape(model)} {escape(answer['description'])}"
