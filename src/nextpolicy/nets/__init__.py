"""Networks: torsos (observations to features), heads (features to distributions and values), and their assembly."""
