"""What outlives a master and no node can tell the next one: in a small file, or in etcd."""

from mooncake_master.standing.keeping import Keeping, open_keeping
from mooncake_master.standing.shared import SharedKeeping

__all__ = ["Keeping", "SharedKeeping", "open_keeping"]
