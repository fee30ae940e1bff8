"""What an error that reaches a caller holds on to."""

from __future__ import annotations

import contextlib

from mooncake_store.errors import InternalError, StoreError, Unreachable, without_frames


def raised(error: BaseException) -> BaseException:
    """Return an error with the frames that it came through."""
    with contextlib.suppress(type(error)):
        raise error
    return error


def frames(*errors: BaseException) -> list[bool]:
    """Return which of them hold frames."""
    return [error.__traceback__ is not None for error in errors]


def test_an_error_loses_its_frames_and_those_of_all_it_came_from() -> None:
    """Also where it is the context of its own cause, as it happens where errors are kept."""
    error: StoreError = Unreachable("no answer")
    cause = raised(OSError("refused"))
    raised(error)
    error.__cause__, cause.__context__ = cause, error
    assert frames(error, cause) == [True, True]
    assert without_frames(error) is error
    assert frames(error, cause) == [False, False]
    assert error.__cause__ is cause


def test_a_bug_keeps_its_frames() -> None:
    error = InternalError("a bug")
    raised(error)
    assert without_frames(error).__traceback__ is not None
