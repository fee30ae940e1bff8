"""Settings of the roles: declared once, read from flags, environment and file, documented."""

from mooncake_store.settings.fields import (
    ROLES,
    ByteSize,
    Conflict,
    Duration,
    Option,
    RoleSettings,
    TextList,
    setting,
)
from mooncake_store.settings.flags import takes_settings
from mooncake_store.settings.sources import Origin, load, show

__all__ = [
    "ROLES",
    "ByteSize",
    "Conflict",
    "Duration",
    "Option",
    "Origin",
    "RoleSettings",
    "TextList",
    "load",
    "setting",
    "show",
    "takes_settings",
]
