"""Frames of MinAtar and Brax, against MuJoCo's own kinematics."""

from __future__ import annotations

import importlib.util

import jax
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from nextpolicy.envs import brax, build, pictures
from nextpolicy.run import video

needs_brax = pytest.mark.skipif(importlib.util.find_spec("brax") is None, reason="brax is not installed")


def test_rotation_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        quaternion, vector = rng.normal(size=4), rng.normal(size=3)
        quaternion /= np.linalg.norm(quaternion)
        expected = Rotation.from_quat(np.roll(quaternion, -1)).apply(vector)  # scipy's w is last
        np.testing.assert_allclose(pictures.rotate(vector, quaternion), expected, atol=1e-12)


@needs_brax
@pytest.mark.parametrize("name", ["hopper", "ant", "pusher"])
def test_capsules_are_where_mujoco_has_them(name: str) -> None:
    import mujoco

    model = brax._construct(brax.import_brax(), name, "generalized").sys.mj_model
    data = mujoco.MjData(model)
    data.qpos = data.qpos + np.random.default_rng(0).uniform(-0.3, 0.3, model.nq)
    mujoco.mj_forward(model, data)
    shapes = pictures.capsules(model, data.xpos[1:], data.xquat[1:])
    geoms = [i for i in range(model.ngeom) if model.geom_type[i] in (2, 3) and model.geom_rgba[i][3] > 0]
    assert len(geoms) == {"hopper": 4, "ant": 17, "pusher": 19}[name]  # pusher has one that is transparent
    assert len(shapes) == len(geoms) > 2
    for i, (first, second, radius, _) in zip(geoms, shapes, strict=True):
        half = model.geom_size[i][1] if model.geom_type[i] == 3 else 0.0
        axis = half * data.geom_xmat[i].reshape(3, 3)[:, 2]
        np.testing.assert_allclose(first, data.geom_xpos[i] - axis, atol=1e-6)
        np.testing.assert_allclose(second, data.geom_xpos[i] + axis, atol=1e-6)
        assert radius == model.geom_size[i][0]


class Ball:
    """A model with one sphere of radius .1 in the world."""

    ngeom, geom_type, geom_bodyid = 1, [2], [1]
    geom_size, geom_pos, geom_quat = [[0.1, 0, 0]], [[0.0, 0.0, 0.0]], [[1.0, 0, 0, 0]]
    geom_rgba = ((1.0, 0.0, 0.0, 1.0),)


@pytest.mark.parametrize(
    ("view", "position", "pixel"),
    [
        (pictures.View(2.0), (5.0, 0.0, 1.0), (160, 72)),  # the camera follows it; the ground is at 192
        (pictures.View(2.0, above=True), (0.5, 0.25, 9.0), (220, 90)),
        (pictures.View(2.0, above=True, centre=(0.5, 0.0)), (0.5, 0.25, 9.0), (160, 90)),
    ],
)
def test_a_ball_is_drawn_at_its_place(view: pictures.View, position: tuple, pixel: tuple[int, int]) -> None:
    frame = pictures.body(Ball(), np.asarray([position]), np.asarray([[1.0, 0, 0, 0]]), view)
    assert frame.shape == (240, 320, 3)
    red = np.argwhere((frame[..., 0] > 240) & (frame[..., 1] < 20))
    np.testing.assert_allclose(red.mean(axis=0)[::-1], pixel, atol=1)
    np.testing.assert_allclose(np.ptp(red, axis=0) / 2, 12, atol=1.5)  # .1 m of 2 m on 240 pixels


def test_later_channels_cover_earlier_ones_on_a_screen() -> None:
    obs = np.zeros((10, 10, 4), bool)
    obs[2, 3, [0, 2]] = True
    frame = pictures.screen(obs)
    assert frame.shape == (240, 240, 3)
    np.testing.assert_array_equal(frame[2 * 24 + 12, 3 * 24 + 12], pictures._CHANNELS[2])
    assert frame.any(axis=2).mean() == 0.01


@pytest.mark.skipif(importlib.util.find_spec("gymnax") is None, reason="gymnax is not installed")
def test_gymnax_environments_render_where_a_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    breakout = build.make("gymnax/Breakout-MinAtar")
    state, obs = breakout.reset(jax.random.key(0), 1)
    frame = breakout.render(jax.device_get(jax.tree.map(lambda x: x[0], state)))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(frame, pictures.screen(np.asarray(obs[0])))
    assert not build.make("gymnax/DeepSea-bsuite").can_render  # type: ignore[attr-defined]
    cartpole = build.make("gymnax/CartPole-v1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert (cartpole.can_render, cartpole.needs_pygame) == (False, True)  # type: ignore[attr-defined]


def test_simulated_time_passes_as_in_reality() -> None:
    assert video.pace(None) == (1, 60)
    assert video.pace(0.008) == (5, 40)
    assert video.pace(0.05) == (1, 50)
    assert video.pace(0.015) == (3, 45)


@pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in ("gymnax", "pygame")), reason="needs pygame")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_classic_control_is_drawn_as_gymnax_draws_it(name: str) -> None:
    from gymnax.visualize.vis_gym import render_gym_frame

    env = build.make(f"gymnax/{name}")
    for seed in (0, 1):
        state = jax.device_get(jax.tree.map(lambda x: x[0], env.reset(jax.random.key(seed), 1)[0]))
        expected = render_gym_frame(name, state, env.params)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(env.render(state), expected)  # type: ignore[attr-defined]
