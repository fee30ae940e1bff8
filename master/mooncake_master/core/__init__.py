"""The master's decisions, pure: no I/O, no clock, no randomness of their own."""

from mooncake_master.core.accounting import labelled
from mooncake_master.core.capacity import Capacity, simulate_capacity
from mooncake_master.core.config import CoreConfig
from mooncake_master.core.instructions import (
    Close,
    Fail,
    Forget,
    Instruct,
    Instruction,
    Remember,
    Reply,
)
from mooncake_master.core.master import Master
from mooncake_master.core.measures import Statistics, Walk
from mooncake_master.core.remembered import Remembered

__all__ = [
    "Capacity",
    "Close",
    "CoreConfig",
    "Fail",
    "Forget",
    "Instruct",
    "Instruction",
    "Master",
    "Remember",
    "Remembered",
    "Reply",
    "Statistics",
    "Walk",
    "labelled",
    "simulate_capacity",
]
