"""Exact quantities of finite MDPs in NumPy float64: values, visitations, operators, bounds, policy iteration."""

from nextpolicy.tabular import evaluation, four_rooms_mdp, improvement, operators, policy_iteration, solve, theory
from nextpolicy.tabular.mdp import TabularMDP, random_mdp, random_policy

__all__ = [
    "TabularMDP",
    "evaluation",
    "four_rooms_mdp",
    "improvement",
    "operators",
    "policy_iteration",
    "random_mdp",
    "random_policy",
    "solve",
    "theory",
]
