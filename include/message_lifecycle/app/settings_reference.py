"""The policy reference, written from the settings themselves: `python -m message_lifecycle.app.settings_reference > docs/settings.md`."""

from __future__ import annotations

from message_lifecycle.model.setting_list import SETTINGS, Setting

_HEAD = """# Settings

On this page you can look up every setting: the place where you set it, the allowed values, the default and the reason for it.

Written by `python -m message_lifecycle.app.settings_reference`; a test holds it equal to the code.

A topic's own setting (`lifecycle topic create|alter --set name=value`, kept as the table property `lifecycle.<name>`) wins over
the server file (`include/lifecycle.toml`, or the file that `LIFECYCLE_CONFIG` names), which wins over what is built in.
`lifecycle topic describe NAME` shows each effective value with its origin; `lifecycle topic create|alter` says which settings are others
now, from what to what, and what a run would remove by them. Unknown names and wrong values are errors.
The first run that would remove something after a setting marked *asks* was tightened waits for a person.

| setting | server file | topic | allowed | default | what it does |
|---|---|---|---|---|---|
"""


def reference() -> str:
    """The whole page."""
    return _HEAD + "".join(_row(setting) for setting in SETTINGS)


def _row(setting: Setting) -> str:
    default = "unset" if setting.default is None else str(setting.default).lower() if setting.kind == "bool" else str(setting.default)
    asks = " *asks*" if setting.tightness is not None else ""
    place = f"`[{setting.section}] {setting.key}`" if setting.section else ""
    on_topic = "yes" if setting.on_topic else ""
    return f"| `{setting.name}` | {place} | {on_topic} | {setting.allowed} | {default}: {setting.reason} | {setting.help}{asks} |\n"


if __name__ == "__main__":
    print(reference(), end="")
