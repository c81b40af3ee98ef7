"""Exact quantities of finite MDPs in NumPy float64: values, visitations, operators, bounds, policy iteration."""

from nextpolicy.tabular import api, four_rooms, operators, solve, theory
from nextpolicy.tabular.mdp import TabularMDP, random_mdp, random_policy

__all__ = ["TabularMDP", "api", "four_rooms", "operators", "random_mdp", "random_policy", "solve", "theory"]
