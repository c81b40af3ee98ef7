"""Which criterion sees what the theory asks for? All of them on Four Rooms, beside exact quantities."""
