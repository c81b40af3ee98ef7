"""What environments on the host return is data, or one line says what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nextpolicy.envs.base import HostEnvError
from nextpolicy.envs.returned import array_of, step_of

OBS, INFO, ENDS = object(), object(), np.asarray([True, False])


def test_rewards_and_ends_come_back_in_our_types() -> None:
    obs, reward, terminated, truncated, info = step_of("e", (OBS, [1, 2], ENDS, np.asarray([0, 1]), INFO), 2)
    assert obs is OBS
    assert info is INFO
    assert reward.dtype == np.float32
    assert reward.tolist() == [1.0, 2.0]
    assert terminated.tolist() == [True, False]
    assert truncated.tolist() == [False, True]
    assert truncated.dtype == bool


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ((OBS, ENDS, ENDS, INFO), r"step to return \(obs, reward, terminated, truncated, info\), got 4 values"),
        (None, r"step to return .*, got NoneType"),
        ((OBS, "much", ENDS, ENDS, INFO), r"reward to be numbers \[2\], got <U4 \[\]"),
        ((OBS, None, ENDS, ENDS, INFO), r"reward to be numbers \[2\], got None"),
        ((OBS, [1, [2]], ENDS, ENDS, INFO), r"reward to be numbers \[2\], got object \[\]"),
        ((OBS, [1, 2, 3], ENDS, ENDS, INFO), r"reward to be numbers \[2\], got int64 \[3\]"),
        ((OBS, [1, 2], [0.0, 1.0], ENDS, INFO), r"terminated to be booleans \[2\], got float64 \[2\]"),
        ((OBS, [1, 2], ENDS, False, INFO), r"truncated to be booleans \[2\], got bool \[\]"),
    ],
)
def test_other_values_are_named(returned: Any, said: str) -> None:
    with pytest.raises(HostEnvError, match=rf"^gym/X: expected {said}$"):
        step_of("gym/X", returned, 2)


def test_numbers_with_a_point_are_no_integers() -> None:
    value = np.zeros((2, 3))
    assert array_of("e", "obs", value, (2, 3)) is value
    with pytest.raises(HostEnvError, match=r"^e: expected obs to be integers \[2, 3\], got float64 \[2, 3\]$"):
        array_of("e", "obs", value, (2, 3), "integers")
