"""What the soak knows of the time in which the cluster served."""

from __future__ import annotations

import pytest

from tests.faults.soak.service import Service, Watch


def test_stretches_of_service_add_up_to_a_share_of_the_time() -> None:
    service = Service()
    looks = [(0.0, True), (1.0, True), (2.0, False), (5.0, True), (6.0, True), (7.0, True)]
    for at_s, serves in looks:
        service.looked(at_s, at_s + 0.5, serves=serves)
    assert service.share(0.0, 10.0) == pytest.approx((1.5 + 2.5) / 10.0)
    assert service.share(5.0, 6.0) == pytest.approx(1.0)
    assert service.share(2.0, 5.0) == 0.0
    assert service.current_s == pytest.approx(2.5)


def test_a_stretch_ends_where_the_service_is_harmed() -> None:
    service = Service()
    service.looked(0.0, 0.5, serves=True)
    service.looked(1.0, 1.5, serves=True)
    service.broken()
    assert service.current_s == 0.0
    service.looked(4.0, 4.5, serves=True)
    assert service.current_s == pytest.approx(0.5)
    assert service.share(0.0, 5.0) == pytest.approx(2.0 / 5.0)


def test_what_a_look_fails_with_is_not_lost() -> None:
    class Broken(Exception):
        pass

    def serves() -> bool:
        raise Broken

    watch = Watch(serves)
    with pytest.raises(Broken), watch:
        watch._thread.join()
