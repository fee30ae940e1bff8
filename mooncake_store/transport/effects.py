"""What an exchange asks its connection to do, and the first exchange of every connection.

The client's side of the data protocol is written as generators that yield these *effects* and are
sent how many bytes were moved; the blocking and the asyncio connection perform them in their own
way.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mooncake_store import limits
from mooncake_store.errors import ProtocolMismatch, WrongPeer
from mooncake_store.wire import data

if TYPE_CHECKING:
    from collections.abc import Iterator


class Send(NamedTuple):
    """Send all of these bytes."""

    buffers: list[memoryview]


class Receive(NamedTuple):
    """Receive into these buffers."""

    buffers: list[memoryview]
    at_least: int


Effects = Generator[Send | Receive, int, None]


class Exchange(Protocol):
    """A conversation over one connection.

    Attributes:
        done: How many tasks, from the first, have their result.
        answered: Whether any byte of a reply has come.
    """

    done: int
    answered: bool


class StreamExchange(Exchange, Protocol):
    """One that needs nothing but a stream of bytes."""

    def effects(self, ids: Iterator[int], scratch: memoryview, node: str) -> Effects:
        """Yield what is to be sent and received; every task has its result at the end.

        Args:
            ids: Numbers for the requests, different ones on one connection.
            scratch: Memory that is the exchange's until it ends.
            node: Name of the peer, for messages.
        """


def greeting_effects(node_id: str, node: str) -> Effects:
    """Exchange greetings: the peer proves that it is the wanted node.

    Raises:
        WrongPeer: Another process answers.
        ProtocolMismatch: It speaks another version.
        ProtocolError: It speaks something else.
    """
    hello = data.Greeting(limits.PROTOCOL_VERSION, node_id, 0)
    yield Send([memoryview(data.encode_greeting(hello, 0, reply=False))])
    answer = memoryview(bytearray(data.HEADER_BYTES + data.GREETING_BYTES))
    yield Receive([answer], len(answer))
    data.decode_header(answer, reply=True)
    check_greeting(data.decode_greeting(answer[data.HEADER_BYTES :]), node_id, node)


def check_greeting(answer: data.Greeting, node_id: str, node: str) -> None:
    """Compare a node's greeting with what was wanted; an empty ``node_id`` takes any node.

    Raises:
        WrongPeer, ProtocolMismatch: It is not what was wanted.
    """
    if answer.protocol != limits.PROTOCOL_VERSION:
        older = "this side" if answer.protocol > limits.PROTOCOL_VERSION else "the node"
        raise ProtocolMismatch(
            f"node {node} speaks data protocol {answer.protocol}, this side"
            f" {limits.PROTOCOL_VERSION}: upgrade {older}",
            node=node,
        )
    if node_id and answer.node_id != node_id:
        raise WrongPeer(
            f"another process ({answer.node_id}) answers on the address of node {node}", node=node
        )
