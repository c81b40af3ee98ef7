"""Value targets and advantages for a frozen target policy pi from the data of a behavioural policy beta.

Every array is time-major with any trailing shape, and index t means the step taken in state s_t:

    ratio[t]      = pi(a_t|s_t) / beta(a_t|s_t)
    discount[t]   = gamma * (1 - terminated[t])
    cut[t]        = terminated[t] or truncated[t]; no trace passes it
    value[t]      = v(s_t)
    next_value[t] = v(the true successor of s_t), taken before auto-reset

A truncated step therefore still bootstraps from `next_value`, and a terminated one does not. The results
carry no gradient and have the floating-point type of `value`.

The paper: Sandhu and Parr, "Approximate Next Policy Sampling: Replacing Conservative Target Policy Updates in Deep RL",
arXiv 2605.05481. GAE: Schulman et al. (2016). V-trace: Espeholt et al. (2018). Retrace: Munos et al. (2016).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nextpolicy.core import check
from nextpolicy.types import Array

ADVANTAGE_KINDS = ("paper", "retrace", "vtrace")


def gae(reward: Array, discount: Array, cut: Array, value: Array, next_value: Array, *, lam: float | Array) -> Array:
    """Generalised advantage estimation, A_t = delta_t + discount_t lam (1 - cut_t) A_{t+1}; A after the end is 0."""
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
    """V-trace targets y_t = value_t + rho_t delta_t + discount_t c_t (1 - cut_t) (y_{t+1} - value_{t+1}).

    rho_t = clip(ratio_t, rho_min, rho_max) and c_t = min(lam, ratio_t); y - value is 0 after the last step.
    """
    check.number("lam", lam, 0.0, 1.0)
    check.number("rho_max", rho_max, 0.0, jnp.inf)
    check.number("rho_min", rho_min, 0.0, rho_max if isinstance(rho_max, float | int) else jnp.inf)
    check.same_shape(value=value, ratio=ratio)
    delta, keep = _errors(reward, discount, cut, value, next_value)
    ratio = jax.lax.stop_gradient(jnp.asarray(ratio)).astype(delta.dtype)
    rho = jnp.clip(ratio, rho_min, rho_max)
    excess = _backwards(rho * delta, discount * keep * jnp.minimum(lam, ratio))
    return jax.lax.stop_gradient(value) + excess


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
    """Advantages of the target policy with traces cut as in Retrace, c_t = min(lam, ratio_t):

    `paper`    A_t = delta_t + discount_t c_t     (1 - cut_t) A_{t+1}    the paper's equation
    `retrace`  A_t = delta_t + discount_t c_{t+1} (1 - cut_t) A_{t+1}    Retrace's traces; the last one is 0
    `vtrace`   A_t = delta_t + discount_t lam     (1 - cut_t) (y_{t+1} - value_{t+1})    y from `vtrace`, rho_max

    With ratio == 1 all three are GAE(lam). Off-policy, `paper` cuts the trace by the ratio of the very action it
    judges. `retrace` does not, but its errors are of state values where Retrace's are of action values: under traces
    cut at 1 they do not average to zero, so both are biased even with an exact critic. `rho_max` matters to
    `vtrace` alone.
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


def _errors(reward: Array, discount: Array, cut: Array, value: Array, next_value: Array) -> tuple[Array, Array]:
    """Temporal-difference errors delta_t and `keep` = 1 - cut, without gradient, in the type of `value`."""
    check.same_shape(value=value, reward=reward, discount=discount, cut=cut, next_value=next_value)
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"value: expected a floating-point array, got dtype {value.dtype}")
    if value.ndim == 0:
        raise ValueError("value: expected an array whose first axis is time, got a number")
    delta = jax.lax.stop_gradient(reward + discount * next_value - value).astype(value.dtype)
    return delta, 1.0 - jnp.asarray(cut).astype(value.dtype)


def _following(x: Array) -> Array:
    """x_{t+1} at index t, and 0 after the last step."""
    return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])


def _backwards(gain: Array, decay: Array) -> Array:
    """Solve x_t = gain_t + decay_t x_{t+1} from the last step to the first, with x = 0 after the end.

    Long rollouts are solved in log2(T) passes over all steps instead of T dependent ones: on an accelerator each of
    those would cost a kernel launch.
    """
    gain, decay = jax.lax.stop_gradient((gain, jnp.broadcast_to(decay, gain.shape).astype(gain.dtype)))
    if gain.shape[0] >= _LONG:
        return jax.lax.associative_scan(_join, (decay, gain), reverse=True)[1]
    return jax.lax.scan(_step, jnp.zeros(gain.shape[1:], gain.dtype), (gain, decay), reverse=True)[1]


_LONG = 32


def _join(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two stretches of x_t = gain + decay x, the later one first, as one."""
    return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]


# Of the module, not of `_backwards`: outside jit, JAX then compiles the scan once and not at every call.
def _step(x: Array, gain_decay: tuple[Array, Array]) -> tuple[Array, Array]:
    gain, decay = gain_decay
    x = gain + decay * x
    return x, x
