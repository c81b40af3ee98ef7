"""Networks: torsos that read observations, heads that make distributions, and their assembly."""
