"""Hooks of the documentation site: pages made from the code, links to the repository, and checks of both.

MkDocs calls the functions whose names begin with `on_`; `mkdocs.yml` names this file.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import click
import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import spark_statestore
from spark_statestore.cli.app import app

ROOT = Path(__file__).parents[1]

NOT_ON_THE_HOME_PAGE = ("More",)
"""Sections of README that are in the navigation."""

API = {
    "Session": ["spark_statestore.session"],
    "Reading": ["spark_statestore.rows"],
    "Writing": ["spark_statestore.writing"],
    "Monitoring": ["spark_statestore.monitoring"],
    "Savepoints and copies": ["spark_statestore.savepoints.api"],
    "Conversion": ["spark_statestore.conversion"],
    "Maintenance": [
        "spark_statestore.query.verify",
        "spark_statestore.query.repair",
        "spark_statestore.query.gc",
    ],
    "Operator state": ["spark_statestore.operator_state"],
    "Tests of your own storage": ["spark_statestore.testing"],
    "Errors": ["spark_statestore.errors"],
}
"""Sections of the API page, with the modules whose public names each of them has."""

PUBLIC = ("spark_statestore", "spark_statestore.operator_state", "spark_statestore.testing")
"""Modules whose `__all__` is the public interface."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from README and the code."""
    readme = (ROOT / "README.md").read_text()
    pages = {
        "index.md": home(readme),
        "reference/cli.md": cli_page(),
        "reference/api.md": api_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside of docs/ into links to the repository."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = Path(os.path.normpath(folder / target))
        if path.is_relative_to(docs):
            return link[0]
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist.")
        if config.repo_url is None:
            return text
        kind = "tree" if path.is_dir() else "blob"
        return f"[{text}]({config.repo_url.rstrip('/')}/{kind}/main/{path.relative_to(ROOT)}{anchor or ''})"

    return re.sub(r"\[([^\]\n]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", replaced, markdown)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Check that each public name has a docstring, which the API page shows."""
    package = griffe.load("spark_statestore", search_paths=[str(ROOT)], resolve_aliases=True)
    bare = [name for name in sorted(public_names()) if not package[name.partition(".")[2]].has_docstring]
    if bare:
        raise PluginError(f"public names without a docstring: {', '.join(bare)}.")
    return config


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Check that the API page has an entry for each public name."""
    if page.file.src_uri == "reference/api.md":
        missing = sorted(name for name in public_names() if f'id="{name}"' not in output)
        if missing:
            raise PluginError(
                f"the API page has no entry for {', '.join(missing)}: their modules need a section in "
                "docs/_hooks.py."
            )
    return output


def home(readme: str) -> str:
    """Return README without the sections that are pages of their own."""
    for name in NOT_ON_THE_HOME_PAGE:
        readme, found = re.subn(rf"^## {name}\n.*?(?=^## |\Z)", "", readme, flags=re.MULTILINE | re.DOTALL)
        if not found:
            raise PluginError(
                f"README.md has no section {name!r}, which docs/_hooks.py leaves out of the home page."
            )
    return moved_to(".", readme)


def moved_to(folder: str, text: str) -> str:
    """Return text of README with its links as they are in a folder of docs/."""

    def moved(link: re.Match[str]) -> str:
        return f"[{link[1]}]({os.path.relpath(link[2], os.path.join('docs', folder))})"

    return re.sub(r"\[([^\]\n]*)\]\((?!\w+:|#)([^)\s]+)\)", moved, text)


def cli_page() -> str:
    """Return the page of the commands, with their arguments and options."""
    return (
        "# Commands and their options\n\nThe help of each command. [The command line](../cli.md) has "
        "examples.\n\n" + ("\n".join(command_entries(app, None)))
    )


def command_entries(command: click.Command, parent: click.Context | None) -> list[str]:
    """Return the entries of a command and of those below it."""
    context = click.Context(command, info_name=command.name, parent=parent, max_content_width=100)
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    without_help = [option.opts[-1] for option in options if not option.help]
    if not command.help or without_help:
        raise PluginError(
            f"{context.command_path} lacks help: {', '.join(without_help) or 'the command itself'}."
        )
    entry = f"## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```\n"
    children = command.commands.values() if isinstance(command, click.Group) else ()
    return [entry, *(text for child in children for text in command_entries(child, context))]


def names_of(module: str) -> list[str]:
    """Return the public names of a module, by which users import them."""
    listed: list[str] = vars(importlib.import_module(module))["__all__"]
    public = listed if module in PUBLIC else vars(spark_statestore)["__all__"]
    return [name for name in listed if name in public and name != "__version__"]


def public_names() -> set[str]:
    """Return the full names of the public interface, as the API page has them."""
    return {f"{module}.{name}" for module in PUBLIC for name in names_of(module)}


def api_page() -> str:
    """Return the page of the API, which mkdocstrings fills in."""
    parts = ["# Python API\n"]
    for title, modules in API.items():
        parts.append(f"## {title}\n")
        for module in modules:
            prefix = module if module in PUBLIC else "spark_statestore"
            parts += [f"::: {prefix}.{name}\n" for name in names_of(module)]
    return "\n".join(parts)
