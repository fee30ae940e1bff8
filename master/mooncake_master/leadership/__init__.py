"""Who of several masters leads: an office that is held for the length of a lease at etcd."""

from mooncake_master.leadership.campaign import Actor, Campaign
from mooncake_master.leadership.coordinator import Coordinator, Lease, Reign, Seat
from mooncake_master.leadership.location import Location, parse_location
from mooncake_master.leadership.observer import Observer
from mooncake_master.leadership.office import Office
from mooncake_master.leadership.stage import Stage

__all__ = [
    "Actor",
    "Campaign",
    "Coordinator",
    "Lease",
    "Location",
    "Observer",
    "Office",
    "Reign",
    "Seat",
    "Stage",
    "parse_location",
]
