"""The admin API over HTTP: health, metrics, and the index for operators and their tools."""

from mooncake_master.admin.application import create_application
from mooncake_master.admin.service import AdminService
from mooncake_master.admin.serving import AdminServer

__all__ = ["AdminServer", "AdminService", "create_application"]
