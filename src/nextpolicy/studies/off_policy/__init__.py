"""How much does off-policy evaluation harm? Exact bias of the advantage estimators on Four Rooms."""
