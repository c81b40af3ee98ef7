"""Value targets and advantages of a frozen target policy pi, from data of a behavioural policy beta.

Arrays are time-major with any trailing shape. Index t is the step taken in state s_t:

    ratio[t]      = pi(a_t|s_t) / beta(a_t|s_t)
    discount[t]   = gamma * (1 - terminated[t])
    cut[t]        = terminated[t] or truncated[t]; traces stop here
    value[t]      = v(s_t)
    next_value[t] = v(s_{t+1}), with s_{t+1} the true successor, before auto-reset
    delta[t]      = reward[t] + discount[t] next_value[t] - value[t], the temporal-difference (TD) error

A truncated step bootstraps from `next_value`; a terminated step does not. Results have no gradient and the dtype of
`value`.

"The paper" is Sandhu and Parr, "Approximate Next Policy Sampling: Replacing Conservative Target Policy Updates in Deep
RL" (arXiv 2605.05481).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nextpolicy.core import check
from nextpolicy.types import Array

ADVANTAGE_KINDS = ("paper", "retrace", "vtrace")


def gae(reward: Array, discount: Array, cut: Array, value: Array, next_value: Array, *, lam: float | Array) -> Array:
    """Generalised advantage estimation (Schulman et al., 2016).

    A_t = delta_t + discount_t lam (1 - cut_t) A_{t+1}, with A = 0 after the last step
    """
    check.number("lam", lam, 0.0, 1.0)
    delta, keep = _errors(reward, discount, cut, value, next_value)
    return _backwards(delta, discount * keep * lam)


def vtrace(
    ratio: Array,
    reward: Array,
    discount: Array,
    cut: Array,
    value: Array,
    next_value: Array,
    *,
    lam: float | Array,
    rho_max: float | Array,
    rho_min: float | Array = 0.0,
) -> Array:
    """V-trace targets (Espeholt et al., 2018).

    y_t = value_t + rho_t delta_t + discount_t c_t (1 - cut_t) (y_{t+1} - value_{t+1})
    rho_t = clip(ratio_t, rho_min, rho_max),  c_t = min(lam, ratio_t)

    y - value is 0 after the last step. Espeholt et al. have rho_min = 0.
    """
    error, trace = _weighted(ratio, reward, discount, cut, value, next_value, lam, rho_max, rho_min)
    return jax.lax.stop_gradient(value) + _backwards(error, trace)


def vtrace_noise(
    ratio: Array,
    reward: Array,
    discount: Array,
    cut: Array,
    value: Array,
    next_value: Array,
    *,
    lam: float | Array,
    rho_max: float | Array,
    rho_min: float | Array = 0.0,
) -> Array:
    """The expected square of y_t - value_t, y from `vtrace`, for a critic without error.

    n_t = (rho_t delta_t)^2 + (discount_t c_t (1 - cut_t))^2 n_{t+1}

    If value = V^pi and no ratio is clipped, rho_t delta_t has mean zero given all earlier steps, so the squares of the
    terms of y - value add up: E[(y_t - value_t)^2] = E[n_t]. A larger mean square of y - value is an error of the
    critic that keeps its sign over several steps.
    """
    error, trace = _weighted(ratio, reward, discount, cut, value, next_value, lam, rho_max, rho_min)
    return _backwards(jnp.square(error), jnp.square(trace))


def retrace_gae(
    ratio: Array,
    reward: Array,
    discount: Array,
    cut: Array,
    value: Array,
    next_value: Array,
    *,
    lam: float | Array,
    kind: str = "paper",
    rho_max: float | Array = jnp.inf,
) -> Array:
    """Advantages of the target policy with the paper's traces c_t = min(lam, ratio_t).

    Munos et al. (2016) define Retrace with lam min(1, ratio_t) instead.

    `paper`    A_t = delta_t + discount_t c_t     (1 - cut_t) A_{t+1}    the paper's equation
    `retrace`  A_t = delta_t + discount_t c_{t+1} (1 - cut_t) A_{t+1}    Retrace's traces; c = 0 after the last step
    `vtrace`   A_t = delta_t + discount_t lam     (1 - cut_t) (y_{t+1} - value_{t+1})    y from `vtrace` with rho_max

    With ratio == 1 all three are GAE(lam). Off-policy, `paper` and `retrace` are biased even with an exact critic.
    `paper` weights the trace by the ratio of the action whose advantage it estimates. `retrace` does not, but it sums
    TD errors of state values, whereas Retrace sums TD errors of action values. With truncated traces, the former do not
    average to zero. Only `vtrace` uses `rho_max`.
    """
    check.one_of("kind", kind, ADVANTAGE_KINDS)
    check.number("lam", lam, 0.0, 1.0)
    check.number("rho_max", rho_max, 0.0, jnp.inf)
    check.same_shape(value=value, ratio=ratio)
    delta, keep = _errors(reward, discount, cut, value, next_value)
    ratio = jax.lax.stop_gradient(jnp.asarray(ratio)).astype(delta.dtype)
    trace = jnp.minimum(lam, ratio)
    if kind == "paper":
        return _backwards(delta, discount * keep * trace)
    if kind == "retrace":
        return _backwards(delta, discount * keep * _following(trace))
    excess = _backwards(jnp.clip(ratio, 0.0, rho_max) * delta, discount * keep * trace)
    reach = jax.lax.stop_gradient(discount * keep * lam).astype(delta.dtype)
    return delta + reach * _following(excess)


def on_policy(
    reward: Array,
    discount: Array,
    cut: Array,
    value: Array,
    next_value: Array,
    *,
    lam: float | Array,
    rho_max: float | Array,
    rho_min: float | Array = 0.0,
    kind: str = "paper",
) -> tuple[Array, Array]:
    """(`vtrace`, `retrace_gae`) with ratio == 1, by one recursion instead of two.

    Both follow from G = GAE(lam), since V-trace is linear in the TD errors:

    y_t = value_t + clip(1, rho_min, rho_max) G_t
    A_t = G_t; for `vtrace`, delta_t + discount_t lam (1 - cut_t) min(1, rho_max) G_{t+1}, which differs if rho_max < 1
    """
    check.one_of("kind", kind, ADVANTAGE_KINDS)
    advantage = excess = gae(reward, discount, cut, value, next_value, lam=lam)
    if kind == "vtrace":
        delta, keep = _errors(reward, discount, cut, value, next_value)
        reach = jax.lax.stop_gradient(discount * keep * lam).astype(delta.dtype)
        advantage = delta + reach * (jnp.minimum(1.0, rho_max) * _following(excess)).astype(delta.dtype)
    rho = jnp.clip(1.0, rho_min, rho_max)
    return jax.lax.stop_gradient(value) + (rho * excess).astype(excess.dtype), advantage


def q_lambda(
    reward: Array, discount: Array, cut: Array, bootstrap: Array, follows: Array, *, lam: float | Array
) -> Array:
    """Lambda-returns of action values; `bootstrap[t]` is Q(s_{t+1}, pi(s_{t+1})) at the true successor.

    y_t = reward_t + discount_t (bootstrap_t + lam follows_{t+1} (1 - cut_t) (y_{t+1} - bootstrap_t))

    The last step bootstraps. `follows` = 1 gives Peng's Q(lambda) (Peng and Williams, 1994), which does not correct for
    actions that pi would not take; `follows[t]` = [a_t = pi(s_t)] gives Watkins's (1989), which cuts the trace at them.
    """
    check.number("lam", lam, 0.0, 1.0)
    trace = lam * _following(follows.astype(reward.dtype)) * (1.0 - cut)
    gain = reward + discount * bootstrap * (1.0 - trace)
    return _backwards(gain, discount * trace)


def _weighted(
    ratio: Array,
    reward: Array,
    discount: Array,
    cut: Array,
    value: Array,
    next_value: Array,
    lam: float | Array,
    rho_max: float | Array,
    rho_min: float | Array,
) -> tuple[Array, Array]:
    """rho_t delta_t, and the weight discount_t c_t (1 - cut_t) of what follows, as V-trace defines them."""
    check.number("lam", lam, 0.0, 1.0)
    check.number("rho_max", rho_max, 0.0, jnp.inf)
    check.number("rho_min", rho_min, 0.0, rho_max if isinstance(rho_max, float | int) else jnp.inf)
    check.same_shape(value=value, ratio=ratio)
    delta, keep = _errors(reward, discount, cut, value, next_value)
    ratio = jax.lax.stop_gradient(jnp.asarray(ratio)).astype(delta.dtype)
    return jnp.clip(ratio, rho_min, rho_max) * delta, discount * keep * jnp.minimum(lam, ratio)


def _errors(reward: Array, discount: Array, cut: Array, value: Array, next_value: Array) -> tuple[Array, Array]:
    """TD errors delta_t and `keep` = 1 - cut, without gradient, in the dtype of `value`."""
    check.same_shape(value=value, reward=reward, discount=discount, cut=cut, next_value=next_value)
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"value: expected a floating-point array, got dtype {value.dtype}")
    if value.ndim == 0:
        raise ValueError("value: expected an array whose first axis is time, got a scalar")
    delta = jax.lax.stop_gradient(reward + discount * next_value - value).astype(value.dtype)
    return delta, 1.0 - jnp.asarray(cut).astype(value.dtype)


def _following(x: Array) -> Array:
    """x_{t+1} at index t, and 0 after the last step."""
    return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])


def _backwards(gain: Array, decay: Array) -> Array:
    """Solve x_t = gain_t + decay_t x_{t+1} backwards in time, with x = 0 after the last step.

    Long rollouts use an associative scan: log2(T) passes over all steps instead of T sequential steps, each of which
    costs a kernel launch on an accelerator.
    """
    gain, decay = jax.lax.stop_gradient((gain, jnp.broadcast_to(decay, gain.shape).astype(gain.dtype)))
    if gain.shape[0] >= _LONG:
        return jax.lax.associative_scan(_join, (decay, gain), reverse=True)[1]
    return jax.lax.scan(_step, jnp.zeros(gain.shape[1:], gain.dtype), (gain, decay), reverse=True)[1]


_LONG = 32  # number of steps from which the associative scan is used


def _join(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose two segments of x_t = gain + decay x; the later segment is the first argument."""
    return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]


# At module level, so that outside jit JAX compiles the scan once instead of at every call.
def _step(x: Array, gain_decay: tuple[Array, Array]) -> tuple[Array, Array]:
    gain, decay = gain_decay
    x = gain + decay * x
    return x, x
